"""Clients with different classes in different amounts: per-class Dirichlet shares."""

from __future__ import annotations

import numpy as np

from app.common.errors import Problem, UserError
from app.common.ranges import Count, Positive, Seed
from app.common.seeding import numpy_generator
from app.common.wording import counted
from datamodules.partitions.base import Partition
from datamodules.partitions.dirichlet_sizes import deal_classes


class DirichletLabels(Partition):
    """Label skew: every class is dealt by a Dirichlet draw of its own.

    Args:
        clients: number of clients, at least 1.
        alpha: concentration, above 0; 0.1 gives clients a few classes each, 100 is nearly iid.
        min_samples: smallest share accepted, at least 1; draws with a smaller one are thrown away.
        attempts: draws to try before giving up, at least 1.
    """

    clients: int

    def __init__(
        self,
        clients: Count = 10,
        alpha: Positive = 0.5,
        min_samples: Count = 10,
        attempts: Count = 100,
        seed: Seed | None = None,
    ) -> None:
        super().__init__(clients, seed)
        self.alpha = alpha
        self.min_samples = min_samples
        self.attempts = attempts

    def misfits(self, labels: np.ndarray, owners: np.ndarray | None) -> list[Problem]:
        needed = self.clients * self.min_samples
        if needed <= len(labels):
            return []
        return [
            Problem(
                f"{counted(self.clients, 'client')} with at least {self.min_samples} samples each: {needed} in all, "
                f"the pool has {len(labels)}",
                "no draw can succeed, so none was tried",
                f"lower --data.partition.clients to {len(labels) // self.min_samples} or less, "
                f"or --data.partition.min_samples to {len(labels) // self.clients} or less",
            )
        ]

    def deal(self, labels: np.ndarray, owners: np.ndarray | None, seed: int) -> list[np.ndarray]:
        generator = numpy_generator(seed, "partition")
        closest = 0
        for _ in range(self.attempts):
            shares = self._draw(labels, generator)
            smallest = min(len(share) for share in shares)
            if smallest >= self.min_samples:
                return shares
            closest = max(closest, smallest)
        raise UserError.of(
            f"{self.attempts} draws with alpha {self.alpha} left some of the {self.clients} clients with fewer than "
            f"{self.min_samples} samples; the best draw gave its smallest client {closest}",
            "the partition asked for is (nearly) impossible on this pool",
            f"raise --data.partition.alpha, lower --data.partition.clients, set --data.partition.min_samples to "
            f"{max(closest, 1)}, or raise --data.partition.attempts",
        )

    def _draw(self, labels: np.ndarray, generator: np.random.Generator) -> list[np.ndarray]:
        def divide(positions: np.ndarray) -> list[np.ndarray]:
            shuffled = generator.permutation(positions)
            shares = generator.dirichlet(np.full(self.clients, self.alpha))
            return np.split(shuffled, np.rint(np.cumsum(shares)[:-1] * len(positions)).astype(np.int64))

        return deal_classes(labels, self.clients, divide)
