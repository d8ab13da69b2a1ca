"""What every partition offers: who owns which sample of the pool."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from app.errors import Problem, UserError, raise_all


class Partition(ABC):
    """Deals the samples of a pool to clients.

    A subclass overrides `deal`, and `problems` or `misfits` where it has settings of its own to check.

    Args:
        clients: number of clients, None where the data decide.
        seed: seed of this partition alone, at least 0; None takes the seed of the run.
    """

    def __init__(self, clients: int | None, seed: int | None = None) -> None:
        self.clients = clients
        self.seed = seed

    @abstractmethod
    def deal(self, labels: np.ndarray, owners: np.ndarray | None, seed: int) -> list[np.ndarray]:
        """Positions in `labels` for each client, in any order; the settings are known to be possible."""

    def problems(self) -> list[Problem]:
        """What is wrong with the settings, whatever the data."""
        found = []
        if self.clients is not None and self.clients < 1:
            cause = f"partition.clients is {self.clients}"
            found.append(Problem(cause, "there would be nobody to train", "set --data.partition.clients to 1 or more"))
        return found + seed_problems("partition.seed", self.seed)

    def misfits(self, labels: np.ndarray, owners: np.ndarray | None) -> list[Problem]:
        """What the settings ask for that these data cannot give."""
        if self.clients is None or self.clients <= len(labels):
            return []
        return [
            Problem(
                f"{self.clients} clients share {len(labels)} samples",
                f"at least {self.clients - len(labels)} of them would have none",
                "lower --data.partition.clients, or --data.holdout.shadow and --data.holdout.population",
            )
        ]

    def assign(self, labels: np.ndarray, owners: np.ndarray | None, seed: int) -> list[np.ndarray]:
        """Share of each client.

        Args:
            labels: (n,) class of each sample.
            owners: (n,) number of the person or site each sample came from, None where the dataset has none.
            seed: seed of the run, used unless the partition has its own.

        Returns:
            One sorted int64 array of positions in `labels` per client, pairwise disjoint, none empty.

        Raises:
            UserError: naming every setting that cannot be met.
        """
        raise_all(self.problems() or self.misfits(labels, owners))
        chosen = self.seed if self.seed is not None else seed
        shares = [np.sort(np.asarray(share, dtype=np.int64)) for share in self.deal(labels, owners, chosen)]
        _refuse_empty(shares)
        return shares

    def groups(self, clients: int) -> list[str]:
        """Subpopulation of each of the `clients` clients, for fairness reports."""
        return ["all"] * clients


def _refuse_empty(shares: Sequence[np.ndarray]) -> None:
    empty = [client for client, share in enumerate(shares) if len(share) == 0]
    if empty:
        raise UserError.of(
            f"no samples for client {first_few([str(client) for client in empty])}",
            "a client without data can neither train nor be attacked",
            "lower --data.partition.clients, make shares more even (a larger alpha), or try another seed",
        )


def seed_problems(option: str, seed: int | None) -> list[Problem]:
    """Complaint about a negative seed, given under --data.`option`."""
    if seed is None or seed >= 0:
        return []
    remedy = f"set --data.{option} to 0 or more"
    return [Problem(f"{option} is {seed}", "random generators take no negative seed", remedy)]


def first_few(names: Sequence[str], shown: int = 5) -> str:
    """The first names and how many more there are: "a, b, c, d, e and 7 more"."""
    text = ", ".join(names[:shown])
    return text if len(names) <= shown else f"{text} and {len(names) - shown} more"
