"""Base class of partitions, which deal the samples of a pool to clients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from app.common.described import Described
from app.common.errors import Problem, UserError, raise_all
from app.common.ranges import Count, Seed, range_problems
from app.common.wording import counted
from datamodules.checks import first_few


class Partition(Described, ABC):
    """Deals the samples of a pool to clients.

    A subclass overrides `deal`, and `problems` or `misfits` where it has settings of its own to check.

    Args:
        clients: number of clients, at least 1; None where the data decide.
        seed: seed of this partition alone, at least 0; None takes the seed of the run.
    """

    def __init__(self, clients: Count | None, seed: Seed | None = None) -> None:
        self.clients = clients
        self.seed = seed

    @abstractmethod
    def deal(self, labels: np.ndarray, owners: np.ndarray | None, seed: int) -> list[np.ndarray]:
        """Positions in `labels` for each client, in any order; called after `problems` and `misfits`."""

    def problems(self) -> list[Problem]:
        """Problems of the settings that do not depend on the data."""
        return list(range_problems(self, "data.partition"))

    def misfits(self, labels: np.ndarray, owners: np.ndarray | None) -> list[Problem]:
        """Settings that these data cannot meet."""
        if self.clients is None or self.clients <= len(labels):
            return []
        return [
            Problem(
                f"{counted(self.clients, 'client')} share {counted(len(labels), 'sample')}",
                f"at least {self.clients - len(labels)} of them would have none",
                "lower --data.partition.clients, or --data.holdout.shadow and --data.holdout.population",
            )
        ]

    def assign(self, labels: np.ndarray, owners: np.ndarray | None, seed: int) -> list[np.ndarray]:
        """Share of each client; one error names every setting that cannot be met.

        Args:
            labels: (n,) class of each sample.
            owners: (n,) number of the person or site each sample came from, None where the dataset has none.
            seed: seed of the run, used unless the partition has its own.

        Returns:
            One sorted int64 array of positions in `labels` per client, pairwise disjoint, none empty.
        """
        raise_all(self.problems() or self.misfits(labels, owners))
        chosen = self.seed if self.seed is not None else seed
        shares = [np.sort(np.asarray(share, dtype=np.int64)) for share in self.deal(labels, owners, chosen)]
        if empty := [str(client) for client, share in enumerate(shares) if len(share) == 0]:
            raise UserError.of(
                f"no samples for client {first_few(empty)}",
                "a client without data can neither train nor be attacked",
                "lower --data.partition.clients, make shares more even (a larger alpha), or try another seed",
            )
        return shares

    def further_classes(self, client: int) -> Sequence[int]:
        """Classes that `client` owns beside those of its share, as label masks count them; known after `deal`."""
        return ()

    def groups(self, clients: int) -> list[str]:
        """Subpopulation of each of the `clients` clients, for fairness reports."""
        return ["all"] * clients
