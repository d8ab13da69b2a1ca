"""Clients with different classes in different amounts: per-class Dirichlet shares."""

from __future__ import annotations

import numpy as np

from app.errors import Problem, UserError
from app.seeding import numpy_generator
from datamodules.partitions.base import Partition
from datamodules.partitions.dirichlet_sizes import alpha_problems


class DirichletLabels(Partition):
    """Label skew: every class is dealt by a Dirichlet draw of its own.

    Args:
        clients: number of clients, at least 1.
        alpha: concentration, above 0; 0.1 gives clients a few classes each, 100 is nearly iid.
        min_samples: smallest share accepted, at least 1; draws with a smaller one are thrown away.
        attempts: draws to try before giving up, at least 1.
        seed: seed of this partition alone; None takes the seed of the run.
    """

    def __init__(
        self,
        clients: int = 10,
        alpha: float = 0.5,
        min_samples: int = 10,
        attempts: int = 100,
        seed: int | None = None,
    ) -> None:
        super().__init__(clients, seed)
        self.alpha = alpha
        self.min_samples = min_samples
        self.attempts = attempts

    def problems(self) -> list[Problem]:
        """Settings of the base, and alpha, min_samples and attempts."""
        found = super().problems() + alpha_problems(self.alpha)
        for name, value in (("min_samples", self.min_samples), ("attempts", self.attempts)):
            if value < 1:
                cause = f"partition.{name} is {value}"
                found.append(Problem(cause, "no draw could be accepted", f"set --data.partition.{name} to 1 or more"))
        return found

    def misfits(self, labels: np.ndarray, owners: np.ndarray | None) -> list[Problem]:
        """More samples asked for than there are."""
        assert self.clients is not None
        needed = self.clients * self.min_samples
        if needed <= len(labels):
            return []
        return [
            Problem(
                f"{self.clients} clients with at least {self.min_samples} samples each need {needed}, "
                f"the pool has {len(labels)}",
                "no draw can succeed, so none was tried",
                f"lower --data.partition.clients to {len(labels) // self.min_samples} or less, "
                f"or --data.partition.min_samples to {len(labels) // self.clients} or less",
            )
        ]

    def deal(self, labels: np.ndarray, owners: np.ndarray | None, seed: int) -> list[np.ndarray]:
        """Draw until the smallest share is large enough, at most `attempts` times."""
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
        assert self.clients is not None
        parts: list[list[np.ndarray]] = [[] for _ in range(self.clients)]
        for label in np.unique(labels):
            members = generator.permutation(np.flatnonzero(labels == label))
            shares = generator.dirichlet(np.full(self.clients, self.alpha))
            cuts = np.rint(np.cumsum(shares)[:-1] * len(members)).astype(np.int64)
            for part, piece in zip(parts, np.split(members, cuts), strict=True):
                part.append(piece)
        return [np.concatenate(part) for part in parts]
