"""Clients by the owner of each sample: writer, hospital, camera ... (LEAF; MaPP-FL's FEMNIST federation)."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from app.common.errors import Problem
from app.common.ranges import Count, Seed, Whole
from datamodules.partitions.base import Partition


class Natural(Partition):
    """By owner: a client holds all samples of one or more owners (writers, sites), and no owner is split.

    One owner per client keeps the order of the owners; more are dealt in an order shuffled by the seed.

    Args:
        owners_per_client: owners of each client, the last client taking what remains; or a list with one number per
            client, owners beyond its sum being left out.
        min_samples: owners with fewer samples are left out.
    """

    fewer_owners = "--data.partition.owners_per_client or --data.partition.min_samples"

    def __init__(
        self, owners_per_client: Count | list[Count] = 1, min_samples: Whole = 1, seed: Seed | None = None
    ) -> None:
        super().__init__(None if isinstance(owners_per_client, int) else len(owners_per_client), seed)
        self.owners_per_client = owners_per_client
        self.min_samples = min_samples
        self.shuffled = owners_per_client != 1

    def owner_counts(self, owners: int) -> list[int]:
        """How many of `owners` owners each client gets."""
        if not isinstance(self.owners_per_client, int):
            return self.owners_per_client
        whole, rest = divmod(owners, self.owners_per_client)
        return [self.owners_per_client] * whole + [rest] * (rest > 0)

    def problems(self) -> list[Problem]:
        if self.owners_per_client != []:
            return super().problems()
        remedy = "give --data.partition.owners_per_client a number for every client"
        return [Problem("partition.owners_per_client is empty", "there would be no client", remedy)]

    def misfits(self, labels: np.ndarray, owners: np.ndarray | None) -> list[Problem]:
        if owners is None:
            cause = f"{type(self).__name__} deals samples by owner, and this dataset does not say who owns what"
            remedy = "choose FEMNIST or ImageFolder as --data, or another --data.partition such as Iid"
            return [Problem(cause, "there is nothing to deal by", remedy)]
        if too_many := super().misfits(labels, owners):
            return too_many
        kept = len(self._kept(owners))
        needed = max(1, sum(self.owner_counts(kept)))
        if needed <= kept:
            return []
        cause = f"{needed} owners asked for, {kept} have at least {self.min_samples} samples"
        return [Problem(cause, "some clients would have no owner", f"lower {self.fewer_owners}")]

    def deal(self, labels: np.ndarray, owners: np.ndarray | None, seed: int) -> list[np.ndarray]:
        assert owners is not None
        kept = self._kept(owners)
        if self.shuffled:
            kept = np.random.default_rng(seed).permutation(kept)
        counts = self.owner_counts(len(kept))
        cuts = np.split(kept[: sum(counts)], np.cumsum(counts)[:-1])
        client_of = np.full(int(owners.max(initial=0)) + 1, -1)
        for client, group in enumerate(cuts):
            client_of[group] = client
        order = np.argsort(client_of[owners], kind="stable")
        borders = np.searchsorted(client_of[owners][order], np.arange(len(cuts) + 1))
        return [order[start:end] for start, end in pairwise(borders)]

    def _kept(self, owners: np.ndarray) -> np.ndarray:
        names, counts = np.unique(owners, return_counts=True)
        return names[counts >= self.min_samples]


class Staircase(Natural):
    """By owner, in steps: clients of step, 2 step, 3 step ... owners and one with the rest, largest first.

    MaPP-FL's FEMNIST federation: 3, 6, ..., 27 writers and the rest, in reverse, so that client 0 holds the rest.

    Args:
        clients: number of clients, at least 1.
        step: how many owners more each client has than the next, at least 1.
    """

    clients: int
    fewer_owners = "--data.partition.clients, --data.partition.step or --data.partition.min_samples"

    def __init__(self, clients: Count = 10, step: Count = 3, min_samples: Whole = 1, seed: Seed | None = None) -> None:
        super().__init__(step, min_samples, seed)
        self.clients = clients
        self.step = step
        self.shuffled = True

    def owner_counts(self, owners: int) -> list[int]:
        """Steps in the order of dealing, the last client taking the rest (at least one)."""
        steps = [self.step * (place + 1) for place in range(self.clients - 1)]
        return [*steps, max(1, owners - sum(steps))]

    def deal(self, labels: np.ndarray, owners: np.ndarray | None, seed: int) -> list[np.ndarray]:
        return super().deal(labels, owners, seed)[::-1]
