"""Who is a member, a non-member, shadow data: the sets that an honest membership evaluation needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from app.errors import Problem, UserError, raise_all
from app.seeding import numpy_generator
from datamodules.partitions.base import Partition, first_few
from datamodules.sampling import stratified_mask


@dataclass(frozen=True)
class Holdout:
    """What is kept out of training, as fractions in [0, 1). All 0 is the papers' setting: everything is trained on.

    Args:
        clients: of each client's share, drawn by a seeded coin: its non-members, which are also its own test set.
        shadow: of the pool, before it is dealt: data the attacker trains shadow models on.
        population: of the pool, before it is dealt: data from the same distribution that nobody trains on.
    """

    clients: float = 0.25
    shadow: float = 0.2
    population: float = 0.1

    def problems(self) -> list[Problem]:
        """Fractions out of range, or nothing left for the clients."""
        found = []
        for name in ("clients", "shadow", "population"):
            value = getattr(self, name)
            if not 0 <= value < 1:
                remedy = f"set --data.holdout.{name} to at least 0 and below 1"
                found.append(Problem(f"holdout.{name} is {value}", "it is no share of the data", remedy))
        if not found and self.shadow + self.population >= 1:
            cause = f"holdout.shadow {self.shadow} and holdout.population {self.population} take the whole pool"
            remedy = "lower --data.holdout.shadow or --data.holdout.population"
            found.append(Problem(cause, "no sample is left for the clients", remedy))
        return found


@dataclass(frozen=True, eq=False)
class Membership:
    """Disjoint sets of sample ids (sorted int64 arrays).

    Attributes:
        members: per client, what it trains on.
        nonmembers: per client, what it owns and never trains on: same distribution as its members, its test set.
        shadow: the attacker's data, from the same pool.
        population: reference data, from the same pool.
        test: the common test set.
    """

    members: tuple[np.ndarray, ...]
    nonmembers: tuple[np.ndarray, ...]
    shadow: np.ndarray
    population: np.ndarray
    test: np.ndarray

    def check_disjoint(self) -> None:
        """Raise AssertionError if any sample is in two sets, or twice in one."""
        every = np.concatenate([*self.members, *self.nonmembers, self.shadow, self.population, self.test])
        ids, counts = np.unique(every, return_counts=True)
        twice = ids[counts > 1]
        assert len(twice) == 0, f"{len(twice)} samples are in more than one set, first {twice[:5].tolist()}"


def split_pool(
    labels: np.ndarray,
    owners: np.ndarray | None,
    tests: int,
    partition: Partition,
    holdout: Holdout,
    seed: int,
) -> Membership:
    """Sets of a federation.

    Args:
        labels: (n,) classes of the pool, whose sample ids are 0 .. n-1.
        owners: (n,) owners of the pool, None where unknown.
        tests: size of the common test set, whose sample ids follow those of the pool.
        partition: deals what is left of the pool after shadow and population data are drawn.
        holdout: fractions to keep out of training.
        seed: seed of the run.
    """
    raise_all(holdout.problems() + partition.problems())
    rest = np.arange(len(labels))
    shadow, rest = _draw(labels, rest, holdout.shadow, numpy_generator(seed, "shadow"))
    share = holdout.population / (1 - holdout.shadow)
    population, rest = _draw(labels, rest, share, numpy_generator(seed, "population"))
    dealt = partition.assign(labels[rest], None if owners is None else owners[rest], seed)
    pairs = [
        _draw(labels, rest[positions], holdout.clients, numpy_generator(seed, "membership", client))
        for client, positions in enumerate(dealt)
    ]
    nonmembers, members = zip(*pairs, strict=True)
    _refuse_memberless(members, nonmembers)
    test = np.arange(len(labels), len(labels) + tests)
    membership = Membership(members, nonmembers, shadow, population, test)
    membership.check_disjoint()
    return membership


def _draw(
    labels: np.ndarray, ids: np.ndarray, fraction: float, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """The ids that are drawn, class by class, and those that remain."""
    mask = stratified_mask(labels[ids], fraction, generator)
    return ids[mask], ids[~mask]


def _refuse_memberless(members: Sequence[np.ndarray], nonmembers: Sequence[np.ndarray]) -> None:
    lacking = [
        f"{client} (of its {len(nonmembers[client])} samples)" for client, own in enumerate(members) if len(own) == 0
    ]
    if lacking:
        raise UserError.of(
            f"no sample to train on for client {first_few(lacking)}",
            "the whole share was held out as non-members",
            "lower --data.holdout.clients, or give clients more samples (fewer clients, a larger min_samples)",
        )
