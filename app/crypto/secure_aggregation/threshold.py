"""Enough clients, or none at all: when a round of secure aggregation cannot go on."""

from __future__ import annotations

from collections.abc import Iterable


class AbortedError(Exception):
    """A round that cannot go on, or a request that a client refuses.

    Attributes:
        reason: why, in words.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def require(present: int, threshold: int, what: str, missing: Iterable[int] = ()) -> None:
    """Go on where enough clients are left.

    Args:
        present: how many are left.
        threshold: how many are needed.
        what: what they did, in words.
        missing: who did not, where that is known.

    Raises:
        AbortedError: where they are fewer than the threshold; it names the counts and who is missing.
    """
    if present >= threshold:
        return
    names = listed(missing)
    raise AbortedError(f"{present} clients {what}, threshold {threshold}" + (f"; missing: {names}" if names else ""))


def listed(clients: Iterable[int]) -> str:
    """Numbers of clients in ascending order."""
    return ", ".join(str(client) for client in sorted(clients))
