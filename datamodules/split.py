"""The disjoint sets of a membership evaluation: members, non-members, shadow and population data, test set."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from app.common.errors import Problem, UserError, raise_all
from app.common.ranges import Decay, range_problems
from app.common.seeding import numpy_generator
from app.common.wording import counted
from datamodules.checks import first_few
from datamodules.partitions.base import Partition


@dataclass(frozen=True)
class Holdout:
    """What is kept out of training, as fractions in [0, 1). All 0 is the papers' setting: everything is trained on.

    Args:
        clients: of each client's share, drawn by a seeded coin: its non-members, which are also its own test set.
        shadow: of the pool, before it is dealt: data the attacker trains shadow models on.
        population: of the pool, before it is dealt: data from the same distribution that nobody trains on.
        reference: of each client's share, besides its non-members: data that the client keeps out of training and of
            every audit, for defenses that compare with samples the model has not seen.
        validation: of the pool, before anything else is drawn and the same for every seed: data to choose settings by,
            which no run trains on, tests on or audits.
        evaluated: what the common test set is: `validation` puts the validation set in its place, and leaves out test
            set and non-members altogether, so that settings can be chosen without them.
    """

    clients: Decay = 0.25
    shadow: Decay = 0.2
    population: Decay = 0.1
    reference: Decay = 0.0
    validation: Decay = 0.0
    evaluated: Literal["test", "validation"] = "test"

    def problems(self) -> list[Problem]:
        """Fractions out of range, or nothing left for the clients."""
        problems = list(range_problems(self, "data.holdout"))
        if not problems and self.shadow + self.population + self.validation >= 1:
            names = ("shadow", "population", *(("validation",) if self.validation else ()))
            return [self._too_much(names, "the whole pool", "no sample is left for the clients")]
        if not problems and self.clients + self.reference >= 1:
            return [self._too_much(("clients", "reference"), "a client's share", "nothing is left to train on")]
        if not problems and self.evaluated == "validation" and not self.validation:
            cause = "holdout.evaluated is validation, and there is no validation set"
            return [Problem(cause, "there is nothing to evaluate on", "set --data.holdout.validation, such as 0.1")]
        return problems

    def _too_much(self, names: Sequence[str], whole: str, consequence: str) -> Problem:
        cause = f"{' and '.join(f'holdout.{name} {getattr(self, name)}' for name in names)} take {whole}"
        return Problem(cause, consequence, f"lower {' or '.join(f'--data.holdout.{name}' for name in names)}")


@dataclass(frozen=True, eq=False)
class Membership:
    """Disjoint sets of sample ids (sorted int64 arrays)."""

    members: tuple[np.ndarray, ...]  # per client, what it trains on
    # per client, what it owns and never trains on: same distribution as its members, its test set
    nonmembers: tuple[np.ndarray, ...]
    shadow: np.ndarray  # the attacker's data, from the same pool
    population: np.ndarray  # further data of the attacker's, from the same pool, that nobody trains on
    test: np.ndarray  # the common test set
    # per client, what it owns and keeps out of training and of every audit; empty where there is none
    reference: tuple[np.ndarray, ...] = ()
    # of the pool, the same for every seed: what settings are chosen by
    validation: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    # per client, what an audit of a privacy budget has inserted, and which belongs to no other set; mostly empty
    canaries: tuple[np.ndarray, ...] = ()

    def for_tuning(self) -> Membership:
        """The sets of a run that settings are chosen by: the validation set as test set, and no non-members."""
        nothing = np.empty(0, dtype=np.int64)
        return replace(self, test=self.validation, validation=nothing, nonmembers=tuple(nothing for _ in self.members))

    def among(self, clients: Collection[int]) -> Membership:
        """The same sets where those of all other clients are empty."""
        nothing = np.empty(0, dtype=np.int64)

        def kept(sets: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
            return tuple(own if client in clients else nothing for client, own in enumerate(sets))

        return replace(
            self,
            members=kept(self.members),
            nonmembers=kept(self.nonmembers),
            reference=kept(self.reference),
            canaries=kept(self.canaries),
        )

    def trained_on(self, client: int) -> np.ndarray:
        """What a client trains on: its members, and canaries where some were inserted."""
        return np.concatenate([self.members[client], *(self.canaries[client : client + 1])])

    def outsiders(self, client: int) -> np.ndarray:
        """Non-members of a client: what it holds out, or the common test set where no client holds out anything."""
        return self.nonmembers[client] if any(map(len, self.nonmembers)) else self.test

    def reference_problems(self, least: int = 1) -> list[Problem]:
        """Why a defense that needs at least `least` reference samples of every client cannot work."""
        if not self.reference:
            consequence = "the defense has nothing to compare the clients' members with"
            remedy = "keep a part of every client's share: --data.holdout.reference 0.1"
            return [Problem("no client has a reference set", consequence, remedy)]
        lacking = [f"{client} (it has {len(own)})" for client, own in enumerate(self.reference) if len(own) < least]
        if not lacking:
            return []
        cause = f"fewer than {least} reference samples for client {first_few(lacking)}"
        remedy = "raise --data.holdout.reference, or give clients more samples (fewer clients, a larger min_samples)"
        return [Problem(cause, "the defense has nothing to compare the client's members with", remedy)]

    def check_disjoint(self) -> None:
        """Raise AssertionError if any sample is in two sets, or twice in one."""
        own = [*self.members, *self.nonmembers, *self.reference]
        every = np.concatenate([*own, self.shadow, self.population, self.validation, self.test])
        ids, counts = np.unique(every, return_counts=True)
        twice = ids[counts > 1]
        assert len(twice) == 0, f"in more than one set: {counted(len(twice), 'sample')}, first {twice[:5].tolist()}"


def stratified_mask(labels: np.ndarray, fraction: float, generator: np.random.Generator) -> np.ndarray:
    """Mask of a random fraction of the samples, balanced over the classes.

    Systematic sampling along an order that is sorted by class and random otherwise. Each sample is drawn with
    probability exactly `fraction`, and a class of n samples gives floor or ceil of n * fraction. Rounding each class on
    its own would instead leave small classes always in or always out, which a membership attack could read from the
    label alone. The mask is (n,) bool for (n,) labels; the fraction is in [0, 1].
    """
    class_order = generator.permutation(int(labels.max(initial=-1)) + 1)
    order = np.lexsort((generator.random(len(labels)), class_order[labels]))
    ticks = np.floor(np.arange(len(labels) + 1) * fraction + generator.random())
    mask = np.zeros(len(labels), dtype=bool)
    mask[order] = np.diff(ticks) > 0
    return mask


def wrong_labels(labels: Tensor, share: float, classes: int, seed: int) -> Tensor:
    """The (n,) int64 labels, a random share in [0, 1) of them replaced by one of the other classes, equally likely."""
    generator = numpy_generator(seed, "label noise")
    chosen = generator.permutation(len(labels))[: round(share * len(labels))]
    shifted = (labels[chosen].numpy() + generator.integers(1, classes, len(chosen))) % classes
    result = labels.clone()
    result[chosen] = torch.from_numpy(shifted)
    return result


def common_test_mask(labels: np.ndarray, fraction: float) -> np.ndarray:
    """Samples of the common test set, stratified by class and independent of the run, so that runs compare."""
    return stratified_mask(labels, fraction, numpy_generator(0, "common test"))


def split_pool(
    labels: np.ndarray, owners: np.ndarray | None, tests: int, partition: Partition, holdout: Holdout, seed: int
) -> Membership:
    """Sets of a federation.

    Args:
        labels: (n,) classes of the pool, whose sample ids are 0 .. n-1.
        owners: (n,) owners of the pool, None where unknown.
        tests: size of the common test set, whose sample ids follow those of the pool.
        partition: deals what is left of the pool after shadow and population data are drawn.
    """
    raise_all(holdout.problems() + partition.problems())
    rest = np.arange(len(labels))
    validation, rest = _draw(labels, rest, holdout.validation, numpy_generator(0, "validation"))
    share = holdout.shadow / (1 - holdout.validation)
    shadow, rest = _draw(labels, rest, share, numpy_generator(seed, "shadow"))
    share = holdout.population / (1 - holdout.validation - holdout.shadow)
    population, rest = _draw(labels, rest, share, numpy_generator(seed, "population"))
    dealt = partition.assign(labels[rest], None if owners is None else owners[rest], seed)

    def draw_each(sets: Sequence[np.ndarray], fraction: float, purpose: str) -> Iterator[tuple[np.ndarray, ...]]:
        generators = [numpy_generator(seed, purpose, client) for client in range(len(sets))]
        pairs = [_draw(labels, ids, fraction, own) for ids, own in zip(sets, generators, strict=True)]
        return zip(*pairs, strict=True)

    nonmembers, members = draw_each([rest[positions] for positions in dealt], holdout.clients, "membership")
    reference: tuple[np.ndarray, ...] = ()
    if holdout.reference:  # a fraction of the whole share, drawn after the non-members
        reference, members = draw_each(members, holdout.reference / (1 - holdout.clients), "reference")
    _refuse_memberless(members, nonmembers, reference)
    test = np.arange(len(labels), len(labels) + tests)
    membership = Membership(members, nonmembers, shadow, population, test, reference, validation)
    membership.check_disjoint()
    return membership if holdout.evaluated == "test" else membership.for_tuning()


def _draw(
    labels: np.ndarray, ids: np.ndarray, fraction: float, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """The ids that are drawn, class by class, and those that remain."""
    mask = stratified_mask(labels[ids], fraction, generator)
    return ids[mask], ids[~mask]


def _refuse_memberless(
    members: Sequence[np.ndarray], nonmembers: Sequence[np.ndarray], reference: Sequence[np.ndarray]
) -> None:
    kept = [sum(len(sets[client]) for sets in (nonmembers, reference) if sets) for client in range(len(members))]
    lacking = [
        f"{client} (of its {counted(kept[client], 'sample')})" for client, own in enumerate(members) if len(own) == 0
    ]
    if lacking:
        also = " and --data.holdout.reference" if reference else ""
        raise UserError.of(
            f"no sample to train on for client {first_few(lacking)}",
            f"the whole share was held out as non-members{' and reference set' if reference else ''}",
            f"lower --data.holdout.clients{also}, or give clients more samples (fewer clients, a larger min_samples)",
        )
