"""Two subpopulations with classes of their own: WAFFLe's multimodal split (section 4.1, appendix B.2)."""

from __future__ import annotations

import numpy as np

from app.common.errors import Problem
from app.common.ranges import Count, Seed, Whole
from app.common.seeding import numpy_generator
from datamodules.checks import first_few
from datamodules.partitions.base import Partition
from datamodules.partitions.shards import deal_shards, largest_shard, shard_misfits


class Multimodal(Partition):
    """A majority and a minority of clients that share no class, each client with shards of a few of its classes.

    Shards have one size in both groups, the largest that serves both; the samples left over are used by nobody.
    The published settings: MNIST 100 clients with odd digits against 20 with even ones; FashionMNIST 90 against 20,
    whose classes are footwear and shirts (0 5 6 7 9); CIFAR-10 90 with animals against 20 with vehicles (0 1 8 9).

    Args:
        majority_clients: clients 0, 1, ...: they draw from all classes that are not of the minority.
        minority_clients: the clients after those.
        minority_classes: classes of the minority; None takes the even ones, as published for MNIST.
        classes_per_client: Z of the paper, 2, 3 or 4 there.
    """

    def __init__(
        self,
        majority_clients: Count = 100,
        minority_clients: Count = 20,
        minority_classes: list[Whole] | None = None,
        classes_per_client: Count = 2,
        seed: Seed | None = None,
    ) -> None:
        super().__init__(majority_clients + minority_clients, seed)
        self.majority_clients = majority_clients
        self.minority_clients = minority_clients
        self.minority_classes = minority_classes
        self.classes_per_client = classes_per_client

    def misfits(self, labels: np.ndarray, owners: np.ndarray | None) -> list[Problem]:
        unknown = sorted(set(self.minority_classes or []) - set(np.unique(labels).tolist()))
        if unknown:
            cause = f"partition.minority_classes has {first_few([str(label) for label in unknown])}, not in the data"
            remedy = "list classes of the dataset in --data.partition.minority_classes, counting from 0"
            return [Problem(cause, "the minority would be smaller than asked for", remedy)]
        problems = []
        for name, clients, positions in self._modes(labels):
            problems += shard_misfits(labels[positions], clients, self.classes_per_client, None, f"{name} clients")
        return problems

    def deal(self, labels: np.ndarray, owners: np.ndarray | None, seed: int) -> list[np.ndarray]:
        modes = self._modes(labels)
        size = min(largest_shard(labels[ids], clients, self.classes_per_client) for _, clients, ids in modes)
        shares = []
        for name, clients, ids in modes:
            generator = numpy_generator(seed, f"partition {name}")
            dealt = deal_shards(labels[ids], clients, self.classes_per_client, size, generator)
            shares += [ids[share] for share in dealt]
        return shares

    def groups(self, clients: int) -> list[str]:
        return ["majority"] * self.majority_clients + ["minority"] * self.minority_clients

    def _modes(self, labels: np.ndarray) -> list[tuple[str, int, np.ndarray]]:
        minority = labels % 2 == 0 if self.minority_classes is None else np.isin(labels, self.minority_classes)
        return [
            ("majority", self.majority_clients, np.flatnonzero(~minority)),
            ("minority", self.minority_clients, np.flatnonzero(minority)),
        ]
