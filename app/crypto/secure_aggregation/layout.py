"""The public layout of one round's vectors: which client holds which positions of the sum."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from app.crypto.secure_aggregation.graph import NeighbourGraph

Where = slice | np.ndarray
"""Positions inside a vector: a slice where they are contiguous, int64 positions elsewhere."""

_ROOM = 1 << 24
"""Positions that are kept for later; pairs beyond that are worked out each time."""


class _Kept:
    """Cache of the overlaps of pairs of arrays, up to a total size."""

    def __init__(self) -> None:
        self.pairs: dict[tuple[int, int], Where] = {}
        self.room = _ROOM

    def add(self, pair: tuple[int, int], overlap: Where) -> None:
        size = 0 if isinstance(overlap, slice) else overlap.size
        if size <= self.room:
            self.pairs[pair] = overlap
            self.room -= size


@dataclass(frozen=True, eq=False)
class VectorLayout:
    """Who holds which positions. Pairwise masks cover only what both clients hold, so that unequal submodels cancel.

    A position that a single surviving client holds is not hidden: the sum there is that client's value.
    """

    length: int  # number of positions of the sum
    word: np.dtype  # unsigned integers of 32 or 64 bits that sums are taken in
    # of every client of the round: where its values lie in the sum (int64, strictly ascending). Clients with the same
    # submodel share one array
    positions: Mapping[int, np.ndarray]
    # how many clients must survive, in [1, clients]. Above half of the clients, the server cannot play two halves off
    # against each other and learn both secrets of a client
    threshold: int
    # who masks with whom and who holds whose shares; all with all without one
    graph: NeighbourGraph | None = None
    _kept: _Kept = field(default_factory=_Kept, init=False, repr=False)

    def __post_init__(self) -> None:
        if not 1 <= self.threshold <= len(self.positions):
            raise ValueError(f"a threshold of {self.threshold} for {len(self.positions)} clients")
        for array in {id(array): array for array in self.positions.values()}.values():
            inside = not array.size or (array[0] >= 0 and array[-1] < self.length)
            if array.dtype != np.int64 or not inside or (np.diff(array) <= 0).any():
                raise ValueError(f"positions must be int64, strictly ascending and within [0, {self.length})")

    def __reduce__(self) -> tuple[type[VectorLayout], tuple[object, ...]]:
        """Leave the cache out: its keys are the identities of arrays."""
        return VectorLayout, (self.length, self.word, dict(self.positions), self.threshold, self.graph)

    @cached_property
    def points(self) -> dict[int, int]:
        """Point of every client's shares where all hold all: 1, 2, ... in the order of the clients' numbers."""
        return {client: place for place, client in enumerate(sorted(self.positions), start=1)}

    def holders(self, client: int) -> Mapping[int, int]:
        """The clients that hold shares of a client's secrets, itself among them, ascending, with their points."""
        return self.points if self.graph is None else self.graph.points[client]

    @property
    def needed(self) -> int:
        """How many shares restore a secret."""
        return self.threshold if self.graph is None else self.graph.threshold

    def partners(self, client: int) -> Collection[int]:
        """The clients with which a client masks; itself may be among them."""
        return self.positions.keys() if self.graph is None else self.graph.partners[client]

    def size(self, client: int) -> int:
        """Number of values of a client."""
        return self.positions[client].size

    def place(self, client: int) -> Where:
        """Where a client's values lie in the sum."""
        return _compact(self.positions[client])

    def overlap(self, u: int, v: int) -> Where:
        """Where the positions that both clients hold lie inside the vector of `u`."""
        first, second = self.positions[u], self.positions[v]
        if first is second:
            return slice(0, first.size)
        pair = (id(first), id(second))
        overlap = self._kept.pairs.get(pair)
        if overlap is None:
            overlap = self._common(first, second)
            self._kept.add(pair, overlap)
        return overlap

    def _common(self, positions: np.ndarray, others: np.ndarray) -> Where:
        held = np.zeros(self.length, dtype=bool)
        held[others] = True
        return _compact(np.flatnonzero(held[positions]))


def _compact(positions: np.ndarray) -> Where:
    """Neighbouring ascending positions as a slice."""
    if not positions.size:
        return slice(0, 0)
    first, last = int(positions[0]), int(positions[-1])
    return slice(first, last + 1) if last - first + 1 == positions.size else positions
