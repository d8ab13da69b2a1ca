"""Digests of the model of a round, by which clients notice that a server sends them different models.

`Commitment` covers one model for all clients of a round, although each of them receives other weights of it.
The server publishes a digest of every block of coordinates with the same holders, and a root over all digests. A
client's coordinates are a union of whole blocks, so it can check its own; clients that saw the same root were shown the
same digests, and so received the same values wherever their submodels overlap.

Nothing is hidden: a block of one coordinate can be guessed from its digest, and nothing says that the model is an
honest one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from app.crypto.contributors import Contributors

DIGEST_BYTES = 32


@dataclass(frozen=True)
class Commitment:
    """What the server publishes at the start of a round."""

    round: int  # 0-based round
    digests: tuple[bytes, ...]  # SHA-256 of the values of every block
    root: bytes  # of all digests and the round

    @classmethod
    def to(cls, round_: int, holders: Contributors, model: np.ndarray) -> Commitment:
        """Commit to a model (values of all coordinates) in a 0-based round."""
        by_block = block_digests(holders.block_of, model)
        digests = tuple(by_block[block] for block in range(holders.blocks))
        return cls(round_, digests, root_of(round_, digests))

    @property
    def size(self) -> int:
        """Bytes that every client downloads: the digests and the root."""
        return DIGEST_BYTES * (len(self.digests) + 1)

    def shown(self, root: bytes, round_: int) -> bool:
        """Whether these are the digests of this round behind the root that all clients have seen."""
        return self.round == round_ and root == self.root == root_of(round_, self.digests)

    def holds(self, holders: Contributors, client: int, values: np.ndarray) -> bool:
        """Whether the values that a client has received are those of the committed model."""
        index = holders.index(client)
        if len(index) != len(values) or len(self.digests) != holders.blocks:
            return False
        own = block_digests(holders.block_of[index], values)
        return all(self.digests[block] == digest for block, digest in own.items())


def root_of(round_: int, digests: Sequence[bytes]) -> bytes:
    """Digest of all digests of a round."""
    return hashlib.sha256(b"".join([round_.to_bytes(8, "big"), len(digests).to_bytes(8, "big"), *digests])).digest()


MANY = 20_000
"""More blocks than that are hashed pair by pair: a digest of each would take longer than the values."""


class BlockDigests:
    """Digests of received values, one per block: masks bound to them cancel only among clients with the same values.

    A server that sends different models to different clients, to tell their updates apart in the sum, gets noise where
    the clients' coordinates overlap (after Pasquini et al. 2022; here block by block, so that unequal submodels can
    overlap).

    Args:
        contributors: the blocks of the round.
        index: coordinates that were received (int64, ascending).
        values: their values.
    """

    def __init__(self, contributors: Contributors, index: np.ndarray, values: np.ndarray) -> None:
        self._contributors, self._index, self._values = contributors, index, values
        self._digests = {} if contributors.blocks > MANY else block_digests(contributors.block_of[index], values)
        self._bindings: dict[tuple[int, int], bytes] = {}

    def binding(self, one: int, other: int) -> bytes:
        """Digest of the values that two clients have in common."""
        submodels = self._contributors.submodel_of
        pair = (submodels[one], submodels[other])
        if pair not in self._bindings:
            common = self._contributors.holds[pair[0]] & self._contributors.holds[pair[1]]
            if self._contributors.blocks > MANY:
                text = self._values[common[self._contributors.block_of[self._index]]].tobytes()
            else:
                text = b"".join(self._digests[block] for block in np.flatnonzero(common).tolist())
            self._bindings[pair] = hashlib.sha256(text).digest()
        return self._bindings[pair]


def block_digests(blocks: np.ndarray, values: np.ndarray) -> dict[int, bytes]:
    """SHA-256 of the values of every block, in the order of the coordinates; `blocks` has the block of every value."""
    order = np.argsort(blocks, kind="stable")
    numbers, starts = np.unique(blocks[order], return_index=True)
    ordered, ends = values[order], [*starts[1:], len(order)]
    return {
        int(block): hashlib.sha256(ordered[start:end].tobytes()).digest()
        for block, start, end in zip(numbers, starts, ends, strict=False)
    }
