"""Nonparametric bootstrap of rows or whole clients (cluster bootstrap); a resample is a vector of row weights.

The same weights applied to two runs give paired resamples. The AUC of resampled rows needs no draws: its standard
deviation over all resamples has a closed form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from app.common.errors import Problem, raise_all
from app.common.seeding import numpy_generator
from app.metrics.membership import NO_CLIENT, Array, MembershipScores, NotAvailable
from app.metrics.roc import RocCurve

Unit = Literal["row", "client"]
"""What is resampled: rows, members and non-members separately (stratified), or clients with all their rows."""

Weights = NDArray[np.int64]
"""How often each row was drawn, resamples x rows."""

CHUNK = 1_000_000
"""Weights drawn at a time, which bounds the memory."""

BLOCK = 200_000
"""Weights that a statistic is computed from at a time; with more, its sums would not fit the CPU cache."""

MATRIX = 300
"""Most clients whose pairs are counted in a matrix; with many more, resampling the rows is faster."""

SEVERAL = 5
"""Smallest number of clients that are resampled as clients; fewer hardly show how clients differ."""

LOST = 0.05
"""Largest share of resamples that may lack members or non-members; more would bias the rest."""


def confidence_problems(confidence: float) -> Iterator[Problem]:
    """A confidence level outside (0, 1)."""
    if not 0 < confidence < 1:
        yield Problem(f"the confidence is {confidence:g}", "no interval has it", "give a fraction such as 0.95")


@dataclass(frozen=True, eq=False)
class Ranking:
    """Members and non-members by rising score."""

    members: NDArray[np.int64]  # row numbers of the members
    nonmembers: NDArray[np.int64]  # row numbers of the non-members
    below: NDArray[np.int64]  # non-members with a lower score than each member
    up_to: NDArray[np.int64]  # non-members with a lower score or the same

    @classmethod
    def of(cls, scores: MembershipScores) -> Ranking:
        order = np.argsort(scores.scores, kind="stable")
        inside = scores.members[order]
        members, nonmembers = order[inside], order[~inside]
        high, low = scores.scores[members], scores.scores[nonmembers]
        return cls(members, nonmembers, *(np.searchsorted(low, high, side) for side in ("left", "right")))

    def auc(self, weights: Weights) -> Array:
        """Area under the ROC curve of every resample, 0 to 1; NaN where members or non-members are missing."""
        outside = np.zeros((len(weights), len(self.nonmembers) + 1), dtype=np.int64)
        np.cumsum(weights.take(self.nonmembers, axis=1), axis=1, out=outside[:, 1:])
        outscored = outside.take(self.below, axis=1)
        outscored += outside.take(self.up_to, axis=1)
        inside = weights.take(self.members, axis=1)
        return _ratio(np.einsum("ij,ij->i", inside, outscored), 2 * inside.sum(axis=1) * outside[:, -1])

    def between(self, owners: NDArray[np.int64], clients: int) -> Array:
        """(clients, clients) pairs in which a member of one client outscores a non-member of another, doubled.

        Ties count half a pair. The clients are numbered from 0; `owners` are those of the rows.
        """
        pairs, inside, outside = np.empty((clients, clients)), owners[self.members], owners[self.nonmembers]
        for client in range(clients):
            passed = np.append(0, np.cumsum(outside == client))
            pairs[:, client] = np.bincount(inside, passed[self.below] + passed[self.up_to], clients)
        return pairs


def _ratio(counts: Array | Weights, totals: Weights) -> Array:
    """Shares, NaN of nothing."""
    return np.where(totals > 0, counts / np.maximum(totals, 1), math.nan)


@dataclass(frozen=True, eq=False)
class Replicates:
    """Bootstrap distribution of a statistic."""

    values: Array  # one per resample, in the unit of the statistic
    units: int  # independent observations behind each, 2 or more

    @property
    def constant(self) -> bool:
        """Whether all resamples give the same value."""
        return bool(np.ptp(self.values) == 0)

    @property
    def standard_error(self) -> float:
        """Bootstrap standard error with the small-sample correction n / (n - 1) of the variance, n the units."""
        return float(np.std(self.values, ddof=1)) * math.sqrt(self.units / (self.units - 1))


@dataclass(frozen=True)
class AllResamples:
    """Spread of a statistic over all possible resamples, which `Replicates` are drawn from."""

    deviation: float  # standard deviation, in the unit of the statistic
    units: int  # independent observations behind each, 2 or more

    @property
    def constant(self) -> bool:
        """Whether all resamples give the same value."""
        return self.deviation == 0

    @property
    def standard_error(self) -> float:
        """Bootstrap standard error with the same correction as that of `Replicates`."""
        return self.deviation * math.sqrt(self.units / (self.units - 1))


def area_deviation(curve: RocCurve) -> float:
    """Standard deviation of the AUC over all resamples of rows, members and non-members apart.

    The limit of ever more resamples (the ideal bootstrap of Efron and Tibshirani 1993, section 6.2). The AUC is the
    mean of K over all pairs of a member and a non-member, K = 1 where the member scores higher, 1/2 for a tie, else 0,
    so its variance is (Var K + (N - 1) Var A + (M - 1) Var B) / (M N): M members, N non-members, A the mean of K over
    all pairs of a member, B over those of a non-member. Everything is doubled here, so that counts are whole.
    """
    true, false = curve.true_positives, curve.false_positives
    members, nonmembers = int(true[-1]), int(false[-1])
    with_score, others_with_score = np.diff(true), np.diff(false)
    by_member = _variance(2 * nonmembers - false[1:] - false[:-1], with_score) / nonmembers**2
    by_nonmember = _variance(true[1:] + true[:-1], others_with_score) / members**2
    squares = int(np.sum(others_with_score * (4 * true[:-1] + with_score))) / (members * nonmembers)
    of_pair = max(0.0, squares - (2 * curve.auc) ** 2)
    variance = of_pair + (nonmembers - 1) * by_member + (members - 1) * by_nonmember
    return math.sqrt(variance / (members * nonmembers)) / 2


def _variance(values: NDArray[np.int64], counts: NDArray[np.int64]) -> float:
    """Variance of values that occur so many times."""
    centred = values - np.average(values, weights=counts)
    return float(np.average(centred**2, weights=counts))


@dataclass(frozen=True)
class Bootstrap:
    """Settings of a bootstrap."""

    # what is resampled; None resamples clients where there are `SEVERAL` or more, since the rows of one client share a
    # model, and rows otherwise: then intervals hold for these clients only
    unit: Unit | None = None
    confidence: float = 0.95  # confidence level of intervals, between 0 and 1
    resamples: int = 1000  # number of resamples that are drawn, 2 or more
    seed: int = 0  # seed of the random draws

    def __post_init__(self) -> None:
        few = Problem(f"{self.resamples} resamples", "they show no spread", "draw 2 or more, 1000 as a rule")
        raise_all([few] * (self.resamples < 2), confidence_problems(self.confidence))

    def run(self, statistic: Callable[[Weights], Array], scores: MembershipScores) -> Replicates | NotAvailable:
        """The statistic of every resample, or why the rows of `scores` cannot be resampled.

        The statistic maps weights (resamples x rows) to one number per resample, NaN where it is undefined.
        """
        resampled = self._units(scores)
        if isinstance(resampled, NotAvailable):
            return resampled
        unit, units = resampled
        chunks = draw_weights(scores, unit, self.resamples, numpy_generator(self.seed, "bootstrap"))
        rows = max(1, BLOCK // scores.scores.size)
        blocks = (chunk[start : start + rows] for chunk in chunks for start in range(0, len(chunk), rows))
        return self._defined(np.concatenate([statistic(weights) for weights in blocks]), units)

    def area(self, scores: MembershipScores, curve: RocCurve) -> Replicates | AllResamples | NotAvailable:
        """Spread of the area under the ROC curve of the scores, or why their rows cannot be resampled.

        Resamples of rows need not be drawn, and those of up to `MATRIX` clients not be written out in rows.
        """
        resampled = self._units(scores)
        if isinstance(resampled, NotAvailable):
            return resampled
        unit, units = resampled
        if unit == "row":
            return AllResamples(area_deviation(curve), units)
        if units > MATRIX or np.any(scores.clients == NO_CLIENT):
            return self.run(Ranking.of(scores).auc, scores)
        owners = np.searchsorted(scores.client_ids, scores.clients)
        drawn = _row_weights([np.ones(units, np.bool_)], self.resamples, numpy_generator(self.seed, "bootstrap"))
        members, nonmembers = (np.bincount(owners[part], minlength=units) for part in (scores.members, ~scores.members))
        doubled = np.sum(drawn @ Ranking.of(scores).between(owners, units) * drawn, axis=1)
        return self._defined(_ratio(doubled, 2 * (drawn @ members) * (drawn @ nonmembers)), units)

    def _defined(self, values: Array, units: int) -> Replicates | NotAvailable:
        """The resamples that have members and non-members, unless too many have not."""
        defined = values[~np.isnan(values)]
        if defined.size < (1 - LOST) * self.resamples:
            return NotAvailable("too many resamples of the clients lack members or non-members")
        return Replicates(defined, units)

    def _units(self, scores: MembershipScores) -> tuple[Unit, int] | NotAvailable:
        """What is resampled, and how many of them there are, 2 or more."""
        clients = scores.client_ids.size
        unit = self.unit or ("client" if clients >= SEVERAL else "row")
        units = clients if unit == "client" else min(scores.member_count, scores.nonmember_count)
        if units >= 2:
            return unit, units
        what = "clients" if unit == "client" else "members and 2 non-members"
        return NotAvailable(f"an interval needs at least 2 {what}")


BOOTSTRAP = Bootstrap()
"""1000 resamples, 95 % confidence."""


def draw_weights(
    scores: MembershipScores, unit: Unit, resamples: int, generator: np.random.Generator
) -> Iterator[Weights]:
    """Weights of the resamples, in chunks; every resample has as many units as the original.

    Rows of NO_CLIENT are resampled as rows also where clients are resampled.
    """
    size = max(1, CHUNK // scores.scores.size)
    for start in range(0, resamples, size):
        draws = min(size, resamples - start)
        if unit == "row":
            yield _row_weights([scores.members, ~scores.members], draws, generator)
        else:
            yield _client_weights(scores, draws, generator)


def _row_weights(strata: list[NDArray[np.bool_]], draws: int, generator: np.random.Generator) -> Weights:
    """Weights from drawing with replacement, in every stratum, as many rows as it has."""
    total = strata[0].size
    rows = [np.flatnonzero(stratum) for stratum in strata if stratum.any()]
    drawn = [stratum[generator.integers(0, stratum.size, (draws, stratum.size))] for stratum in rows]
    places = np.concatenate(drawn, axis=1) + np.arange(draws)[:, None] * total
    return np.bincount(places.ravel(), minlength=draws * total).reshape(draws, total)


def _client_weights(scores: MembershipScores, draws: int, generator: np.random.Generator) -> Weights:
    """Weights from drawing with replacement as many clients as there are."""
    ids = scores.client_ids
    times = _row_weights([np.ones(ids.size, dtype=np.bool_)], draws, generator)
    unowned = scores.clients == NO_CLIENT
    weights = times.take(np.searchsorted(ids, np.where(unowned, ids[0], scores.clients)), axis=1)
    if unowned.any():
        weights[:, unowned] = _row_weights([unowned], draws, generator)[:, unowned]
    return weights
