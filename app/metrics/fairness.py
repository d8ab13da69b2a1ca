"""How accuracy is distributed over clients: mean, worst, variance, and gaps between groups."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from app.metrics.bootstrap import BOOTSTRAP, Bootstrap, Replicates
from app.metrics.intervals import Estimate, Interval, bounded_interval
from app.metrics.membership import Array, NotAvailable
from app.seeding import numpy_generator


@dataclass(frozen=True)
class Spread:
    """Mean, worst (smallest) and population standard deviation over clients; NaN without any value."""

    mean: float
    worst: float
    std: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Spread of the values that are not NaN."""
        present = [value for value in values if not math.isnan(value)]
        if not present:
            return cls(math.nan, math.nan, math.nan)
        mean = math.fsum(present) / len(present)
        variance = math.fsum((value - mean) ** 2 for value in present) / len(present)
        return cls(mean, min(present), math.sqrt(variance))


POINTS = 100
"""Percentage points of a fraction; variances are in squared points, as q-FFL and WAFFLe print them."""

MAJORITY, MINORITY = "majority", "minority"
"""Names of the two groups between which the published gap lies."""


@dataclass(frozen=True)
class GroupMean:
    """A subpopulation of the clients and its mean accuracy, a fraction in [0, 1]."""

    name: str
    clients: int
    mean: float


@dataclass(frozen=True)
class Fairness:
    """How accuracies spread over clients, each counted once. All are fractions in [0, 1] but the variance.

    Attributes:
        clients: clients that were measured.
        mean: mean accuracy.
        worst: accuracy of the worst client.
        best: accuracy of the best client.
        worst_tenth: mean of the worst tenth of the clients, rounded up to whole clients.
        best_tenth: mean of the best tenth.
        variance: population variance of the accuracies in percent, so in squared percentage points.
        groups: the subpopulations in the order in which they first occur.
        gap: the majority's mean less the minority's where these are the groups, so negative where the minority is
            ahead; else the best group's less the worst's; NaN with one group.
    """

    clients: int
    mean: float
    worst: float
    best: float
    worst_tenth: float
    best_tenth: float
    variance: float
    groups: tuple[GroupMean, ...]
    gap: float

    @classmethod
    def of(cls, accuracies: Sequence[float], groups: Sequence[str]) -> Fairness:
        """Fairness of these accuracies.

        Args:
            accuracies: fraction correct of every client, in [0, 1]; one or more.
            groups: name of every client's subpopulation.
        """
        ranked = sorted(accuracies)
        mean, tenth = _mean(ranked), math.ceil(len(ranked) / 10)
        means = _group_means(accuracies, groups)
        pair = _compared(means)
        return cls(
            clients=len(ranked),
            mean=mean,
            worst=ranked[0],
            best=ranked[-1],
            worst_tenth=_mean(ranked[:tenth]),
            best_tenth=_mean(ranked[-tenth:]),
            variance=_mean([(POINTS * (accuracy - mean)) ** 2 for accuracy in ranked]),
            groups=means,
            gap=pair[0].mean - pair[1].mean if pair else math.nan,
        )


@dataclass(frozen=True)
class Swap:
    """Whether a client's model is its own: what it loses with the private part of another client.

    Attributes:
        clients: clients that hold a private part.
        cost: mean over them of the accuracy with their own part less that with another client's, -1 to 1.
    """

    clients: int
    cost: Estimate

    @property
    def personal(self) -> bool | None:
        """Whether swapping costs more than chance explains; None where too few clients were measured."""
        return self.cost.interval.low > 0 if isinstance(self.cost.interval, Interval) else None

    @property
    def verdict(self) -> str:
        """The same in words."""
        if self.personal is None:
            return "too few clients have a choice of their own to tell whether the models are personal"
        if self.personal:
            return "the models are personal"
        return "the models are not personal: another client's choice does as well"


def mean_estimate(accuracies: Sequence[float], groups: Sequence[str], bootstrap: Bootstrap = BOOTSTRAP) -> Estimate:
    """Mean accuracy over clients, 0 to 1, with its interval: clients are drawn anew within their groups.

    Args:
        accuracies: fraction correct of every client, in [0, 1].
        groups: name of every client's subpopulation.
        bootstrap: how often to draw, and the confidence.
    """
    value, parts = _mean(accuracies), _by_group(accuracies, groups)
    if too_few := _too_few(parts.values()):
        return Estimate(value, too_few)
    drawn = [part.size * _drawn_means(part, bootstrap, number) for number, part in enumerate(parts.values())]
    total = len(accuracies)
    # every group has a mean of its own, so that so many observations tell about the spread
    replicates = Replicates(np.sum(drawn, axis=0) / total, total - len(parts) + 1)
    return Estimate(value, bounded_interval(value, replicates, bootstrap.confidence))


def gap_estimate(accuracies: Sequence[float], groups: Sequence[str], bootstrap: Bootstrap = BOOTSTRAP) -> Estimate:
    """Gap between the groups, -1 to 1, with its interval; none where best and worst are picked out of more than two.

    Args:
        accuracies: fraction correct of every client, in [0, 1].
        groups: name of every client's subpopulation.
        bootstrap: how often to draw, and the confidence.
    """
    pair = _compared(_group_means(accuracies, groups))
    if pair is None:
        return Estimate(math.nan, NotAvailable("a gap needs at least 2 groups of clients"))
    value = pair[0].mean - pair[1].mean
    if len(set(groups)) > 2:
        return Estimate(value, NotAvailable("the best and the worst of several groups are picked by their results"))
    parts = _by_group(accuracies, groups)
    compared = [parts[group.name] for group in pair]
    if too_few := _too_few(compared):
        return Estimate(value, too_few)
    ahead, behind = (_drawn_means(part, bootstrap, number) for number, part in enumerate(compared))
    replicates = Replicates(ahead - behind, min(part.size for part in compared))
    return Estimate(value, bounded_interval(value, replicates, bootstrap.confidence, -1.0, 1.0))


def swap_estimate(own: Sequence[float], another: Sequence[float], bootstrap: Bootstrap = BOOTSTRAP) -> Swap:
    """What swapping private parts costs, paired by client.

    Args:
        own: fraction correct of every client that holds a private part, with that part.
        another: of the same clients, with the part of another one.
        bootstrap: how often to draw, and the confidence.
    """
    changes = np.asarray(own, dtype=np.float64) - np.asarray(another, dtype=np.float64)
    value = _mean(changes.tolist()) if changes.size else math.nan
    if too_few := _too_few([changes]):
        return Swap(changes.size, Estimate(value, too_few))
    replicates = Replicates(_drawn_means(changes, bootstrap, 0), changes.size)
    return Swap(changes.size, Estimate(value, bounded_interval(value, replicates, bootstrap.confidence, -1.0, 1.0)))


def _mean(values: Sequence[float]) -> float:
    """Mean without rounding on the way, so that the order of the clients does not matter."""
    return math.fsum(values) / len(values)


def _by_group(accuracies: Sequence[float], groups: Sequence[str]) -> dict[str, Array]:
    """Accuracies of every group, in the order in which groups first occur."""
    parts: dict[str, list[float]] = {}
    for accuracy, group in zip(accuracies, groups, strict=True):
        parts.setdefault(group, []).append(accuracy)
    return {group: np.array(part, dtype=np.float64) for group, part in parts.items()}


def _group_means(accuracies: Sequence[float], groups: Sequence[str]) -> tuple[GroupMean, ...]:
    parts = _by_group(accuracies, groups)
    return tuple(GroupMean(name, part.size, _mean(part.tolist())) for name, part in parts.items())


def _compared(means: Sequence[GroupMean]) -> tuple[GroupMean, GroupMean] | None:
    """The two groups between which the gap lies, the one expected ahead first; None with one group."""
    if len(means) < 2:
        return None
    named = {group.name: group for group in means}
    if set(named) == {MAJORITY, MINORITY}:
        return named[MAJORITY], named[MINORITY]
    ranked = sorted(means, key=lambda group: group.mean)
    return ranked[-1], ranked[0]


def _drawn_means(part: Array, bootstrap: Bootstrap, number: int) -> Array:
    """Means of resamples of one group, each of as many clients as the group has."""
    generator, size = numpy_generator(bootstrap.seed, "fairness", number), part.size
    return np.array([part[generator.integers(0, size, size)].mean() for _ in range(bootstrap.resamples)])


def _too_few(parts: Iterable[Array]) -> NotAvailable | None:
    """Why groups of these sizes show no spread."""
    if min(part.size for part in parts) < 2:
        return NotAvailable("an interval needs at least 2 clients in every group")
    return None
