"""Fairness of accuracy over clients: mean, worst client, variance, and gaps between groups."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from app.common.seeding import numpy_generator
from app.metrics.bootstrap import BOOTSTRAP, Bootstrap, Replicates
from app.metrics.intervals import Estimate, Interval, bounded_interval
from app.metrics.membership import Array, NotAvailable


@dataclass(frozen=True)
class Spread:
    """Mean, worst (smallest) and population standard deviation over clients; NaN without any value."""

    mean: float
    worst: float
    std: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        present = [value for value in values if not math.isnan(value)]
        if not present:
            return cls(math.nan, math.nan, math.nan)
        try:
            mean = fmean(present)
            return cls(mean, min(present), math.sqrt(fmean((value - mean) ** 2 for value in present)))
        except OverflowError:  # losses of clients that all but diverge
            return cls(math.inf, min(present), math.inf)


POINTS = 100
"""Percentage points of 1; variances are in squared points, as in the papers of q-FFL and WAFFLe."""

MAJORITY, MINORITY = "majority", "minority"
"""Names of the two groups of the published fairness gap."""


@dataclass(frozen=True)
class GroupMean:
    """A subpopulation of the clients and its mean accuracy, a fraction in [0, 1]."""

    name: str
    clients: int
    mean: float


@dataclass(frozen=True)
class Fairness:
    """Distribution of accuracy over clients, unweighted; fractions in [0, 1] except the variance."""

    clients: int  # number of clients
    mean: float
    worst: float  # accuracy of the worst client
    best: float  # accuracy of the best client
    worst_tenth: float  # mean of the worst tenth of the clients, rounded up to whole clients
    best_tenth: float  # mean of the best tenth
    variance: float  # population variance in squared percentage points
    groups: tuple[GroupMean, ...]  # the groups in the order in which they first occur
    # mean of the majority minus that of the minority where these are the groups, else best minus worst mean; NaN with
    # one group
    gap: float

    @classmethod
    def of(cls, accuracies: Sequence[float], groups: Sequence[str]) -> Fairness:
        """Fairness of one or more clients, from the accuracy, in [0, 1], and the group name of each."""
        ranked = sorted(accuracies)
        mean, tenth = fmean(ranked), math.ceil(len(ranked) / 10)
        means = _group_means(accuracies, groups)
        pair = _compared(means)
        return cls(
            clients=len(ranked),
            mean=mean,
            worst=ranked[0],
            best=ranked[-1],
            worst_tenth=fmean(ranked[:tenth]),
            best_tenth=fmean(ranked[-tenth:]),
            variance=fmean((POINTS * (accuracy - mean)) ** 2 for accuracy in ranked),
            groups=means,
            gap=pair[0].mean - pair[1].mean if pair else math.nan,
        )


@dataclass(frozen=True)
class Swap:
    """Accuracy that clients lose when their private part is replaced by that of another client."""

    clients: int  # clients that hold a private part
    cost: Estimate  # mean over them of the accuracy with their own part minus that with another client's, -1 to 1

    @property
    def personal(self) -> bool | None:
        """Whether swapping costs significantly more than 0; None where there are too few clients."""
        return self.cost.interval.low > 0 if isinstance(self.cost.interval, Interval) else None

    @property
    def verdict(self) -> str:
        if self.personal is None:
            return "too few clients have a choice of their own to tell whether the models are personal"
        if self.personal:
            return "the models are personal"
        return "the models are not personal: another client's choice does as well"


def mean_estimate(accuracies: Sequence[float], groups: Sequence[str], bootstrap: Bootstrap = BOOTSTRAP) -> Estimate:
    """Mean accuracy over clients, 0 to 1, with the interval of a bootstrap of clients stratified by group."""
    parts, total = [(part.size, part) for part in _by_group(accuracies, groups).values()], len(accuracies)
    units = total - len(parts) + 1  # degrees of freedom: one mean is estimated per group
    return _estimate(fmean(accuracies), parts, units, bootstrap, total, lowest=0.0)


def gap_estimate(accuracies: Sequence[float], groups: Sequence[str], bootstrap: Bootstrap = BOOTSTRAP) -> Estimate:
    """Gap between two groups, -1 to 1, with its bootstrap interval; no interval of the best and worst of several."""
    pair = _compared(_group_means(accuracies, groups))
    if pair is None:
        return Estimate(math.nan, NotAvailable("a gap needs at least 2 groups of clients"))
    value = pair[0].mean - pair[1].mean
    if len(set(groups)) > 2:
        return Estimate(value, NotAvailable("the best and the worst of several groups are picked by their results"))
    parts = _by_group(accuracies, groups)
    ahead, behind = (parts[group.name] for group in pair)
    return _estimate(value, [(1, ahead), (-1, behind)], min(ahead.size, behind.size), bootstrap)


def swap_estimate(own: Sequence[float], another: Sequence[float], bootstrap: Bootstrap = BOOTSTRAP) -> Swap:
    """Mean cost of swapping private parts, with the paired bootstrap interval over clients.

    `own` holds the accuracy of every client that has a private part, with that part, `another` that of the same clients
    with the private part of another one.
    """
    changes = np.asarray(own, dtype=np.float64) - np.asarray(another, dtype=np.float64)
    value = fmean(changes.tolist()) if changes.size else math.nan
    return Swap(changes.size, _estimate(value, [(1, changes)], changes.size, bootstrap))


def _by_group(accuracies: Sequence[float], groups: Sequence[str]) -> dict[str, Array]:
    parts: dict[str, list[float]] = {}
    for accuracy, group in zip(accuracies, groups, strict=True):
        parts.setdefault(group, []).append(accuracy)
    return {group: np.array(part, dtype=np.float64) for group, part in parts.items()}


def _group_means(accuracies: Sequence[float], groups: Sequence[str]) -> tuple[GroupMean, ...]:
    parts = _by_group(accuracies, groups)
    return tuple(GroupMean(name, part.size, fmean(part.tolist())) for name, part in parts.items())


def _compared(means: Sequence[GroupMean]) -> tuple[GroupMean, GroupMean] | None:
    """The two groups of the gap: majority and minority, or best and worst; None with one group."""
    if len(means) < 2:
        return None
    named = {group.name: group for group in means}
    if set(named) == {MAJORITY, MINORITY}:
        return named[MAJORITY], named[MINORITY]
    ranked = sorted(means, key=lambda group: group.mean)
    return ranked[-1], ranked[0]


_AT_A_TIME = 2**15
"""Clients that are drawn at a time."""


def _estimate(
    value: float, parts: list[tuple[int, Array]], units: int, bootstrap: Bootstrap, total: int = 1, lowest: float = -1.0
) -> Estimate:
    """A sum of group means, each times its weight / total, with its interval up to 1; groups are resampled apart."""
    if min(part.size for _, part in parts) < 2:
        return Estimate(value, NotAvailable("an interval needs at least 2 clients in every group"))
    drawn = []
    for number, (weight, part) in enumerate(parts):
        generator, size = numpy_generator(bootstrap.seed, "fairness", number), part.size
        step = 1 + _AT_A_TIME // size  # draws and means of many resamples are those of one after the other
        counts = [min(step, bootstrap.resamples - done) for done in range(0, bootstrap.resamples, step)]
        means = [part[generator.integers(0, size, (count, size))].mean(axis=1) for count in counts]
        drawn.append(weight * np.concatenate(means))
    replicates = Replicates(np.sum(drawn, axis=0) / total, units)
    return Estimate(value, bounded_interval(value, replicates, bootstrap.confidence, lowest, 1.0))
