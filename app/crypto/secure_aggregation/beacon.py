"""Public randomness that neither the server nor a client chooses: commitments first, then what was committed to."""

from __future__ import annotations

import hashlib

CONTRIBUTION_BYTES = 32


def commitment(contribution: bytes) -> bytes:
    """SHA-256 that binds a client to a contribution of 32 random bytes without showing it."""
    return hashlib.sha256(b"rampart beacon" + contribution).digest()


class RandomnessBeacon:
    """Randomness from all clients, fixed together with the registry of identity keys before the first round.

    Every client commits to a contribution, and contributions are opened once all commitments are entered: the value is
    uniformly random if one client is honest, and known to all before any round's keys are. Clients that do not open
    theirs are left out of the federation, with everybody's commitments made anew.
    """

    def __init__(self) -> None:
        self._commitments: dict[int, bytes] = {}
        self._contributions: dict[int, bytes] = {}

    def commit(self, client: int, digest: bytes) -> None:
        """Enter a client's commitment; a ValueError after the first opening, or where it entered another one."""
        if self._contributions:
            raise ValueError(f"client {client} commits after contributions were opened, and could choose the outcome")
        if self._commitments.setdefault(client, digest) != digest:
            raise ValueError(f"client {client} has committed to another contribution")

    def open(self, client: int, contribution: bytes) -> None:
        """Open a client's contribution; a ValueError where it is not what the client committed to."""
        if len(contribution) != CONTRIBUTION_BYTES or self._commitments.get(client) != commitment(contribution):
            raise ValueError(f"the contribution of client {client} is not the one it committed to")
        self._contributions[client] = contribution

    def value(self, round_: int) -> bytes:
        """32 bytes for a round; a ValueError while contributions are missing."""
        if missing := self._commitments.keys() - self._contributions.keys():
            raise ValueError(f"the contributions of clients {sorted(missing)} are missing")
        parts = (client.to_bytes(8, "big") + self._contributions[client] for client in sorted(self._contributions))
        return hashlib.sha256(b"rampart graph" + round_.to_bytes(8, "big") + b"".join(parts)).digest()
