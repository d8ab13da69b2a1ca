"""Equal shares of one shuffled pool."""

from __future__ import annotations

import numpy as np

from app.common.errors import Problem
from app.common.ranges import Count, Seed
from app.common.seeding import numpy_generator
from app.common.wording import counted
from datamodules.partitions.base import Partition


class Iid(Partition):
    """Equal shares (within one sample) of the shuffled pool: every client has the same distribution.

    Args:
        clients: number of clients, at least 1.
        samples: samples per client, the rest is used by nobody; None deals the whole pool.
    """

    clients: int

    def __init__(self, clients: Count = 10, seed: Seed | None = None, samples: Count | None = None) -> None:
        super().__init__(clients, seed)
        self.samples = samples

    def misfits(self, labels: np.ndarray, owners: np.ndarray | None) -> list[Problem]:
        problems = super().misfits(labels, owners)
        if self.samples is not None and self.samples * self.clients > len(labels):
            cause = f"{counted(self.clients, 'client')} x {self.samples} samples, but there are {len(labels)} in all"
            remedy = "lower --data.partition.samples or the number of clients"
            problems.append(Problem(cause, "some clients would be empty", remedy))
        return problems

    def deal(self, labels: np.ndarray, owners: np.ndarray | None, seed: int) -> list[np.ndarray]:
        order = numpy_generator(seed, "partition").permutation(len(labels))
        if self.samples is not None:
            order = order[: self.clients * self.samples]
        return np.array_split(order, self.clients)


class Centralised(Partition):
    """One client holds everything: the reference that federated learning is compared with."""

    def __init__(self) -> None:
        super().__init__(clients=1)

    def deal(self, labels: np.ndarray, owners: np.ndarray | None, seed: int) -> list[np.ndarray]:
        return [np.arange(len(labels))]
