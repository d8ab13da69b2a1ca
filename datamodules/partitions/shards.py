"""Clients with a few classes each: shards of equal size, each of one class (McMahan 2017, WAFFLe appendix B.1)."""

from __future__ import annotations

import numpy as np

from app.common.errors import Problem
from app.common.ranges import Count, Seed, Whole
from app.common.seeding import numpy_generator
from datamodules.partitions.base import Partition


class Shards(Partition):
    """Pathological label skew: each client gets equal shards of exactly `classes_per_client` different classes.

    Every class is cut into shards of one size, the largest that serves all clients; the samples left over are used by
    nobody.

    Args:
        clients: number of clients, at least 1.
        classes_per_client: Z of the papers, at least 1 and at most the number of classes.
        shard_size: samples per shard; None takes the largest possible.
        unused_classes: further classes of each client, at least 0, whose shards it owns and does not train on. They
            count for label masks only. The public code of Haldankar et al. (2024) uses the first samples of a share of
            two classes, all of one class.
    """

    clients: int

    def __init__(
        self,
        clients: Count = 100,
        classes_per_client: Count = 2,
        shard_size: Count | None = None,
        seed: Seed | None = None,
        unused_classes: Whole = 0,
    ) -> None:
        super().__init__(clients, seed)
        self.classes_per_client = classes_per_client
        self.shard_size = shard_size
        self.unused_classes = unused_classes
        self._owned: list[np.ndarray] = []

    def misfits(self, labels: np.ndarray, owners: np.ndarray | None) -> list[Problem]:
        return shard_misfits(labels, self.clients, self.classes_per_client + self.unused_classes, self.shard_size)

    def deal(self, labels: np.ndarray, owners: np.ndarray | None, seed: int) -> list[np.ndarray]:
        classes = self.classes_per_client + self.unused_classes
        size = self.shard_size or largest_shard(labels, self.clients, classes)
        shares = deal_shards(labels, self.clients, classes, size, numpy_generator(seed, "partition"))
        self._owned = [np.unique(labels[share]) for share in shares]
        return [share[: self.classes_per_client * size] for share in shares]

    def further_classes(self, client: int) -> list[int]:
        return self._owned[client].tolist() if self._owned else []


def shard_misfits(
    labels: np.ndarray, clients: int, classes_per_client: int, shard_size: int | None, who: str = "clients"
) -> list[Problem]:
    """Why `labels` cannot be cut into `clients` x `classes_per_client` shards; `who` names the clients concerned."""
    classes = len(np.unique(labels))
    if classes_per_client > classes:
        cause = f"{classes_per_client} different classes for each of the {who}, but the data have {classes}"
        remedy = f"set --data.partition.classes_per_client to {classes} or less"
        return [Problem(cause, "a client would get the same class twice", remedy)]
    largest = largest_shard(labels, clients, classes_per_client)
    if largest >= (shard_size or 1):
        return []
    cause = f"{clients} {who} x {classes_per_client} shards of {shard_size or 1} samples"
    consequence = f"of {len(labels)} samples in {classes} classes, at most {largest} per shard are possible"
    remedy = "lower --data.partition.shard_size, the number of clients or --data.partition.classes_per_client"
    return [Problem(cause, consequence, remedy)]


def largest_shard(labels: np.ndarray, clients: int, classes_per_client: int) -> int:
    """Largest shard size for which every client can get shards of different classes; 0 where there is none.

    It suffices that the classes give clients x classes_per_client shards in all when each counts at most one shard per
    client: such shards can always be dealt without giving a client one class twice.
    """
    counts = np.unique(labels, return_counts=True)[1]
    low, high = 0, int(counts.max(initial=0))
    while low < high:
        size = (low + high + 1) // 2
        if np.minimum(counts // size, clients).sum() >= clients * classes_per_client:
            low = size
        else:
            high = size - 1
    return low


def deal_shards(
    labels: np.ndarray, clients: int, classes_per_client: int, size: int, generator: np.random.Generator
) -> list[np.ndarray]:
    """Shards of `size` samples, `classes_per_client` of different classes for each client."""
    classes, counts = np.unique(labels, return_counts=True)
    left = _shards_used(np.minimum(counts // size, clients), clients * classes_per_client, generator)
    stacks = [generator.permutation(np.flatnonzero(labels == label)) for label in classes]
    shares = []
    for client in range(clients):
        chosen = _choose_classes(left, clients - client, classes_per_client, generator)
        left[chosen] -= 1
        shares.append(np.concatenate([stacks[c][left[c] * size : (left[c] + 1) * size] for c in chosen]))
    return shares


def _shards_used(available: np.ndarray, needed: int, generator: np.random.Generator) -> np.ndarray:
    """How many shards of each class are dealt: as even as the classes allow, `needed` in all."""
    level = 0
    while np.minimum(available, level).sum() < needed:
        level += 1
    used = np.minimum(available, level)
    highest = generator.permutation(np.flatnonzero(used == level))
    used[highest[: used.sum() - needed]] -= 1
    return used


def _choose_classes(left: np.ndarray, clients_left: int, count: int, generator: np.random.Generator) -> np.ndarray:
    """Classes of the next client: those that all remaining clients must take, then the rest by what is left of them.

    With count x clients_left shards left and no class above clients_left, this never runs into a dead end.
    """
    forced = np.flatnonzero(left == clients_left)
    weights = np.where(left == clients_left, 0, left)
    free = count - len(forced)
    if free == 0:
        return forced
    return np.concatenate([forced, generator.choice(len(left), free, replace=False, p=weights / weights.sum())])
