"""Clients of unequal size with the same classes: the balanced split of MaPP-FL (Table 2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from app.common.ranges import Count, Positive, Seed
from datamodules.partitions.base import Partition


class DirichletSizes(Partition):
    """Unequal sizes, equal classes: one Dirichlet draw gives each client its share of every class.

    The split behind the published tables of MaPP-FL: seed 41, 10 clients and alpha 0.85 on CIFAR-10 give 17020, 7400,
    7040, 6310, 4060, 3110, 1660, 1650, 1260 and 490 training images. Client 0 is the largest.

    Args:
        clients: number of clients, at least 1.
        alpha: concentration, above 0; the smaller, the more unequal the sizes.
        shuffle_seed: which samples go where; `run` takes the seed of the run, None that of the sizes. The published
            repeats keep `seed` and change this one.
        seed: seed of the sizes; None takes the seed of the run.
    """

    clients: int

    def __init__(
        self,
        clients: Count = 10,
        alpha: Positive = 0.85,
        shuffle_seed: Seed | Literal["run"] | None = None,
        seed: Seed | None = None,
    ) -> None:
        super().__init__(clients, seed)
        self.alpha = alpha
        self.shuffle_seed = shuffle_seed
        self._run_seed = 0

    def assign(self, labels: np.ndarray, owners: np.ndarray | None, seed: int) -> list[np.ndarray]:
        self._run_seed = seed
        return super().assign(labels, owners, seed)

    def deal(self, labels: np.ndarray, owners: np.ndarray | None, seed: int) -> list[np.ndarray]:
        # The published sizes hang on NumPy's generator being seeded with the bare number, not with a derived key.
        shares = np.sort(np.random.default_rng(seed).dirichlet(np.full(self.clients, self.alpha)))[::-1]
        chosen = self._run_seed if self.shuffle_seed == "run" else self.shuffle_seed
        shuffle_seed = seed if chosen is None else chosen

        def divide(positions: np.ndarray) -> list[np.ndarray]:
            shuffled = np.random.default_rng(shuffle_seed).permutation(positions)
            return np.split(shuffled, np.cumsum(rounded_counts(shares, len(positions)))[:-1])

        return deal_classes(labels, self.clients, divide)


def deal_classes(
    labels: np.ndarray, clients: int, divide: Callable[[np.ndarray], list[np.ndarray]]
) -> list[np.ndarray]:
    """Shares made up of the pieces, one per client, into which `divide` cuts the positions of each class."""
    shares: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for label in np.unique(labels):
        for share, piece in zip(shares, divide(np.flatnonzero(labels == label)), strict=True):
            share.append(piece)
    return [np.concatenate(share) for share in shares]


def rounded_counts(shares: np.ndarray, total: int) -> np.ndarray:
    """Whole numbers near shares * total (shares descending) that add up to `total`.

    A shortfall goes to the last, smallest client; an excess is taken from the first, largest one, and from the next
    where that one has too little.
    """
    counts = np.rint(shares * total).astype(np.int64)
    excess = int(counts.sum()) - total
    if excess <= 0:
        counts[-1] -= excess
        return counts
    before = np.concatenate([[0], np.cumsum(counts)[:-1]])
    return counts - np.clip(excess - before, 0, counts)
