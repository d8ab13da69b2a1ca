"""Digests of the models that clients have trained on, by which they recognise a model that they are sent again.

A server that sends one model in several rounds gets the same updates in sums over other clients each time, and can
solve for single ones. A client that trains on a model once is in one such sum only.

A digest is of the values of one tensor, whatever their order and their place in the server's vector: moving channels
about, or the window of a rolling method, does not make a model a new one. Any value that is changed does: nothing here
recognises a model that is nearly the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from app.crypto.commitment import DIGEST_BYTES

LEAST_VALUES = 16
"""Tensors with fewer distinct values count as part of the whole model only: a handful may honestly stay the same, such
as the ones of a normalisation in half precision."""

_NEVER = bytes(DIGEST_BYTES)


def model_digests(tensors: Sequence[tuple[str, np.ndarray]]) -> dict[str, bytes]:
    """SHA-256 of every tensor (name, values) with enough distinct values, and under the empty name, of all of them."""
    judged, whole = {}, hashlib.sha256()
    for name, values in tensors:
        ordered = np.sort(values.view(f"i{values.itemsize}"))
        digest = hashlib.sha256(name.encode() + b"\0" + ordered.tobytes()).digest()
        whole.update(digest)
        if np.count_nonzero(np.diff(ordered)) + 1 >= LEAST_VALUES:
            judged[name] = digest
    return judged | {"": whole.digest()}


class TrainedModels:
    """What each client has trained on and may be part of a sum that the server has read; 64 bytes per tensor and round.

    A client does not train on it again. If the round was given up after clients had revealed their shares, the server
    may have read the sum all the same, but an honest one has the same model still: the client then trains on it again
    only together with the same clients, in a sum that says nothing new.
    """

    def __init__(self) -> None:
        self._known: dict[int, dict[bytes, bytes]] = {}

    def refuses(self, client: int, digests: Iterable[bytes], peers: Collection[int]) -> bool:
        """Whether a client does not train on a model with these digests, in a sum with these clients."""
        known, again = self._known.get(client, {}), _set_digest(peers)
        return any(known.get(digest, again) != again for digest in digests)

    def remember(self, trained: Mapping[int, Iterable[bytes]], released: bool) -> None:
        """Keep the digests of what the clients of a sum trained on; `released` if the server certainly has the sum."""
        mark = _NEVER if released else _set_digest(trained)
        for client, digests in trained.items():
            self._known.setdefault(client, {}).update(dict.fromkeys(digests, mark))

    def state_dict(self) -> dict[str, np.ndarray]:
        """For every client (digests, 64) uint8: a digest, and that of the clients with whom it may train again."""
        return {
            str(client): np.frombuffer(b"".join(map(b"".join, known.items())), np.uint8).reshape(-1, 2 * DIGEST_BYTES)
            for client, known in self._known.items()
        }

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        self._known = {
            int(client): {row[:DIGEST_BYTES].tobytes(): row[DIGEST_BYTES:].tobytes() for row in rows}
            for client, rows in state.items()
        }


def _set_digest(clients: Iterable[int]) -> bytes:
    return hashlib.sha256(",".join(map(str, sorted(clients))).encode()).digest()
