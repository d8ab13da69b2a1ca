"""Equal shares of one shuffled pool."""

from __future__ import annotations

import numpy as np

from app.seeding import numpy_generator
from datamodules.partitions.base import Partition


class Iid(Partition):
    """Equal shares (within one sample) of the shuffled pool: every client has the same distribution.

    Args:
        clients: number of clients, at least 1.
        seed: seed of this partition alone; None takes the seed of the run.
    """

    def __init__(self, clients: int = 10, seed: int | None = None) -> None:
        super().__init__(clients, seed)

    def deal(self, labels: np.ndarray, owners: np.ndarray | None, seed: int) -> list[np.ndarray]:
        """Cut one permutation into equal pieces."""
        assert self.clients is not None
        return np.array_split(numpy_generator(seed, "partition").permutation(len(labels)), self.clients)


class Centralised(Partition):
    """One client holds everything: the reference that federated learning is compared with."""

    def __init__(self) -> None:
        super().__init__(clients=1)

    def deal(self, labels: np.ndarray, owners: np.ndarray | None, seed: int) -> list[np.ndarray]:
        """The whole pool."""
        return [np.arange(len(labels))]
