"""Masks that are bound to the model: they cancel only among clients that received the same values.

A server that sends different models to different clients, to tell their updates apart in the sum, gets noise where the
clients' coordinates overlap (after Pasquini et al. 2022; here block by block, so that unequal submodels can overlap).
"""

from __future__ import annotations

import hashlib

import numpy as np

from app.crypto.contributors import Contributors

MANY = 20_000
"""More blocks than that are hashed pair by pair: a digest of each would take longer than the values."""


class BlockDigests:
    """Digests of received values, one for each block of coordinates with the same contributors.

    Args:
        contributors: the blocks of the round.
        index: coordinates that were received (int64, ascending).
        values: their values.
    """

    def __init__(self, contributors: Contributors, index: np.ndarray, values: np.ndarray) -> None:
        self._contributors, self._values = contributors, values
        self._blocks = blocks = contributors.block_of[index]
        self._digests: dict[int, bytes] = {}
        self._bindings: dict[tuple[int, int], bytes] = {}
        if contributors.blocks > MANY:
            return
        self._digests = block_digests(blocks, values)

    def binding(self, one: int, other: int) -> bytes:
        """Digest of the values that two clients have in common."""
        submodels = self._contributors.submodel_of
        pair = (submodels[one], submodels[other])
        if pair not in self._bindings:
            common = self._contributors.holds[pair[0]] & self._contributors.holds[pair[1]]
            if self._contributors.blocks > MANY:
                text = self._values[common[self._blocks]].tobytes()
            else:
                text = b"".join(self._digests[block] for block in np.flatnonzero(common).tolist())
            self._bindings[pair] = hashlib.sha256(text).digest()
        return self._bindings[pair]


def block_digests(blocks: np.ndarray, values: np.ndarray) -> dict[int, bytes]:
    """SHA-256 of the values of every block, in the order of the coordinates; `blocks` has the block of every value."""
    order = np.argsort(blocks, kind="stable")
    found, starts = np.unique(blocks[order], return_index=True)
    ordered, ends = values[order], [*starts[1:], len(order)]
    return {
        int(block): hashlib.sha256(ordered[start:end].tobytes()).digest()
        for block, start, end in zip(found, starts, ends, strict=False)
    }
