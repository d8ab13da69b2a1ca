"""Blocks of coordinates with the same contributors: the units of sums over unequal submodels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

_WORD = 62
"""Submodels per word of a coordinate's signature."""


@dataclass(frozen=True, eq=False)
class Contributors:
    """Who contributes to which coordinates in one round. Public: it follows from the plan."""

    coordinates: int  # number of coordinates of the server's vector
    submodels: tuple[np.ndarray, ...]  # the distinct index sets (int64, ascending)
    submodel_of: Mapping[int, int]  # position in `submodels` of every client that may contribute
    block_of: np.ndarray  # (coordinates) block of every coordinate; coordinates of one block have the same contributors
    holds: np.ndarray  # (submodels, blocks) bool, whether a submodel covers a block

    @classmethod
    def of(cls, coordinates: int, indices: Mapping[int, np.ndarray]) -> Contributors:
        """Sort coordinates into blocks, by those of every client (int64, strictly ascending; arrays may be shared)."""
        distinct = {id(index): index for index in indices.values()}
        place, submodels = {key: number for number, key in enumerate(distinct)}, list(distinct.values())
        submodel_of = {client: place[id(index)] for client, index in indices.items()}
        block_of = _blocks(coordinates, submodels)
        holds = np.zeros((len(submodels), int(block_of.max(initial=-1)) + 1), dtype=bool)
        for row, index in zip(holds, submodels, strict=True):
            row[block_of[index]] = True
        return cls(coordinates, tuple(submodels), submodel_of, block_of, holds)

    @property
    def blocks(self) -> int:
        return self.holds.shape[1]

    @property
    def clients(self) -> tuple[int, ...]:
        return tuple(sorted(self.submodel_of))

    def index(self, client: int) -> np.ndarray:
        return self.submodels[self.submodel_of[client]]

    def blocks_of(self, client: int) -> np.ndarray:
        return np.flatnonzero(self.holds[self.submodel_of[client]])

    def sum_over(self, weights: Mapping[int, float]) -> np.ndarray:
        """(blocks) float64: the clients' weights, added up block by block."""
        per_submodel = np.zeros(len(self.submodels))
        for client, weight in weights.items():
            per_submodel[self.submodel_of[client]] += weight
        total = np.zeros(self.blocks)
        for weight, held in zip(per_submodel, self.holds, strict=True):  # a product would make floats of all of `holds`
            total[held] += weight
        return total

    def few(self, present: Sequence[int], k: int) -> tuple[int, ...]:
        """Those of the clients present that contribute to a block with fewer than `k` of them, ascending."""
        counts = self.sum_over(dict.fromkeys(present, 1.0))
        small = (counts > 0) & (counts < k)
        return tuple(client for client in sorted(present) if (self.holds[self.submodel_of[client]] & small).any())


def _blocks(coordinates: int, submodels: Sequence[np.ndarray]) -> np.ndarray:
    """(coordinates) int64: block numbers from 0, equal where the same submodels cover two coordinates."""
    block_of = np.zeros(coordinates, dtype=np.int64)
    for start in range(0, len(submodels), _WORD):
        word = np.zeros(coordinates, dtype=np.int64)
        for bit, index in enumerate(submodels[start : start + _WORD]):
            word[index] |= 1 << bit
        _, part = np.unique(word, return_inverse=True)
        if start:
            _, part = np.unique(block_of * (int(part.max(initial=0)) + 1) + part, return_inverse=True)
        block_of = part
    return block_of
