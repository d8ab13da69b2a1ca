"""Nonparametric bootstrap of rows or whole clients (cluster bootstrap); a resample is a vector of row weights.

The same weights applied to two runs give paired resamples.
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

Unit = Literal["row", "client"]
"""What is resampled: rows, members and non-members separately (stratified), or clients with all their rows."""

Weights = NDArray[np.int64]
"""How often each row was drawn, resamples x rows."""

CHUNK = 1_000_000
"""Weights held in memory at a time; more would not fit the CPU cache."""

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
    """Rows by falling score."""

    order: NDArray[np.int64]  # row numbers by falling score
    members: NDArray[np.bool_]  # bool, in that order
    ends: NDArray[np.int64]  # positions at which a block of equal scores ends

    @classmethod
    def of(cls, scores: MembershipScores) -> Ranking:
        order = np.argsort(-scores.scores, kind="stable")
        ranked = scores.scores[order]
        ends = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True))
        return cls(order, scores.members[order], ends)

    def auc(self, weights: Weights) -> Array:
        """Area under the ROC curve of every resample, 0 to 1; NaN where members or non-members are missing."""
        true, false = self._counts(weights)
        doubled = np.sum(np.diff(false, axis=1) * (true[:, 1:] + true[:, :-1]), axis=1)
        total = 2 * true[:, -1] * false[:, -1]
        return np.where(total > 0, doubled / np.maximum(total, 1), math.nan)

    def _counts(self, weights: Weights) -> tuple[Weights, Weights]:
        """True and false positives of every resample at every point of its ROC curve, starting with 0."""
        ranked = weights[:, self.order]
        positives = np.cumsum(ranked, axis=1)[:, self.ends]
        true = np.cumsum(ranked * self.members, axis=1)[:, self.ends]
        padding = ((0, 0), (1, 0))
        return np.pad(true, padding), np.pad(positives - true, padding)


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
class Bootstrap:
    """Settings of a bootstrap."""

    # what is resampled; None resamples clients where there are `SEVERAL` or more, since the rows of one client share a
    # model, and rows otherwise: then intervals hold for these clients only
    unit: Unit | None = None
    confidence: float = 0.95  # confidence level of intervals, between 0 and 1
    resamples: int = 1000  # number of resamples, 2 or more
    seed: int = 0  # seed of the random draws

    def __post_init__(self) -> None:
        few = Problem(f"{self.resamples} resamples", "they show no spread", "draw 2 or more, 1000 as a rule")
        raise_all([few] * (self.resamples < 2), confidence_problems(self.confidence))

    def run(self, statistic: Callable[[Weights], Array], scores: MembershipScores) -> Replicates | NotAvailable:
        """The statistic of every resample, or why the rows of `scores` cannot be resampled.

        The statistic maps weights (resamples x rows) to one number per resample, NaN where it is undefined.
        """
        unit = self.unit or ("client" if scores.client_ids.size >= SEVERAL else "row")
        units = {"client": scores.client_ids.size, "row": min(scores.member_count, scores.nonmember_count)}
        if units[unit] < 2:
            what = "clients" if unit == "client" else "members and 2 non-members"
            return NotAvailable(f"an interval needs at least 2 {what}")
        chunks = draw_weights(scores, unit, self.resamples, numpy_generator(self.seed, "bootstrap"))
        values = np.concatenate([statistic(weights) for weights in chunks])
        defined = values[~np.isnan(values)]
        if defined.size < (1 - LOST) * self.resamples:
            return NotAvailable("too many resamples of the clients lack members or non-members")
        return Replicates(defined, units[unit])


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
    weights = times[:, np.searchsorted(ids, np.where(unowned, ids[0], scores.clients))]
    if unowned.any():
        weights[:, unowned] = _row_weights([unowned], draws, generator)[:, unowned]
    return weights
