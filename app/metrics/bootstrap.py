"""Bootstrap resamples as weights of rows, and the area and the TPR of weighted rows, many resamples at a time.

The same weights applied to two runs give paired resamples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from app.errors import Problem, raise_all
from app.metrics.membership import NO_CLIENT, Array, MembershipScores, NotAvailable
from app.seeding import numpy_generator

Unit = Literal["row", "client"]
"""What is drawn again: single rows, members and non-members apart, or clients with all their rows."""

Weights = NDArray[np.int64]
"""How often each row was drawn, resamples x rows."""

CHUNK = 1_000_000
"""Weights held at a time: more would fall out of the cache and gain nothing."""

SEVERAL = 5
"""Clients from which on they are drawn: fewer say next to nothing about how clients differ."""

LOST = 0.05
"""Largest share of resamples that may lack members or non-members; more would tilt the rest."""


def confidence_problems(confidence: float) -> Iterator[Problem]:
    """What is wrong with a confidence."""
    if not 0 < confidence < 1:
        yield Problem(f"the confidence is {confidence:g}", "no interval has it", "give a fraction such as 0.95")


@dataclass(frozen=True, eq=False)
class Ranking:
    """Rows from the most to the least member-like.

    Attributes:
        order: row numbers in that order.
        members: bool, in that order.
        ends: positions at which a block of equal scores ends.
    """

    order: NDArray[np.int64]
    members: NDArray[np.bool_]
    ends: NDArray[np.int64]

    @classmethod
    def of(cls, scores: MembershipScores) -> Ranking:
        """Ranking of these rows."""
        order = np.argsort(-scores.scores, kind="stable")
        ranked = scores.scores[order]
        ends = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True))
        return cls(order, scores.members[order], ends)

    def auc(self, weights: Weights) -> Array:
        """Area under the ROC curve of every resample, 0 to 1; NaN where members or non-members are missing."""
        found, alarms = self._counts(weights)
        doubled = np.sum(np.diff(alarms, axis=1) * (found[:, 1:] + found[:, :-1]), axis=1)
        return _divide(doubled, 2 * found[:, -1] * alarms[:, -1])

    def _counts(self, weights: Weights) -> tuple[Weights, Weights]:
        """True and false positives of every resample at every point of its curve, from 0 on."""
        ranked = weights[:, self.order]
        called = np.cumsum(ranked, axis=1)[:, self.ends]
        found = np.cumsum(ranked * self.members, axis=1)[:, self.ends]
        padding = ((0, 0), (1, 0))
        return np.pad(found, padding), np.pad(called - found, padding)


@dataclass(frozen=True, eq=False)
class Replicates:
    """A statistic over bootstrap resamples.

    Attributes:
        values: one per resample, in the unit of the statistic.
        units: independent observations behind each, 2 or more.
    """

    values: Array
    units: int

    @property
    def constant(self) -> bool:
        """Whether no resample differs from another."""
        return bool(np.ptp(self.values) == 0)

    @property
    def standard_error(self) -> float:
        """Standard deviation, corrected for resamples of n units spreading by (n - 1) / n of the variance."""
        return float(np.std(self.values, ddof=1)) * math.sqrt(self.units / (self.units - 1))


@dataclass(frozen=True)
class Bootstrap:
    """How to resample.

    Attributes:
        unit: what is drawn; None draws clients where there are `SEVERAL` or more, since the rows of one client share a
            model, and rows otherwise: then intervals speak of these clients only.
        confidence: of intervals and verdicts, between 0 and 1.
        resamples: number of resamples, 2 or more.
        seed: of the draws.
    """

    unit: Unit | None = None
    confidence: float = 0.95
    resamples: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        raise_all(self.problems())

    def problems(self) -> Iterator[Problem]:
        """What is wrong with these settings."""
        if self.resamples < 2:
            yield Problem(f"{self.resamples} resamples", "they show no spread", "draw 2 or more, 1000 as a rule")
        yield from confidence_problems(self.confidence)

    def run(self, statistic: Callable[[Weights], Array], scores: MembershipScores) -> Replicates | NotAvailable:
        """The statistic of every resample, or why it cannot be resampled.

        Args:
            statistic: one number per resample from its weights; NaN where undefined.
            scores: rows that are drawn from.
        """
        unit = self.unit or ("client" if scores.client_ids.size >= SEVERAL else "row")
        counted = {"client": scores.client_ids.size, "row": min(scores.member_count, scores.nonmember_count)}
        if counted[unit] < 2:
            what = "clients" if unit == "client" else "members and 2 non-members"
            return NotAvailable(f"an interval needs at least 2 {what}")
        chunks = draw_weights(scores, unit, self.resamples, numpy_generator(self.seed, "bootstrap"))
        values = np.concatenate([statistic(weights) for weights in chunks])
        defined = values[~np.isnan(values)]
        if defined.size < (1 - LOST) * self.resamples:
            return NotAvailable("too many resamples of the clients lack members or non-members")
        return Replicates(defined, counted[unit])


BOOTSTRAP = Bootstrap()
"""1000 resamples, 95 % confidence."""


def draw_weights(
    scores: MembershipScores, unit: Unit, resamples: int, generator: np.random.Generator
) -> Iterator[Weights]:
    """Weights of so many resamples, in chunks; each keeps the number of units.

    Rows of NO_CLIENT are drawn as rows also where clients are drawn.
    """
    size = max(1, CHUNK // scores.scores.size)
    for start in range(0, resamples, size):
        draws = min(size, resamples - start)
        if unit == "row":
            yield _row_weights([scores.members, ~scores.members], draws, generator)
        else:
            yield _client_weights(scores, draws, generator)


def _row_weights(strata: list[NDArray[np.bool_]], draws: int, generator: np.random.Generator) -> Weights:
    """Weights from drawing, in every stratum, as many rows as it has."""
    total = strata[0].size
    rows = [np.flatnonzero(stratum) for stratum in strata if stratum.any()]
    drawn = [stratum[generator.integers(0, stratum.size, (draws, stratum.size))] for stratum in rows]
    places = np.concatenate(drawn, axis=1) + np.arange(draws)[:, None] * total
    return np.bincount(places.ravel(), minlength=draws * total).reshape(draws, total)


def _client_weights(scores: MembershipScores, draws: int, generator: np.random.Generator) -> Weights:
    """Weights from drawing as many clients as there are."""
    ids = scores.client_ids
    times = _row_weights([np.ones(ids.size, dtype=np.bool_)], draws, generator)
    nobody = scores.clients == NO_CLIENT
    weights = times[:, np.searchsorted(ids, np.where(nobody, ids[0], scores.clients))]
    if nobody.any():
        weights[:, nobody] = _row_weights([nobody], draws, generator)[:, nobody]
    return weights


def _divide(counts: Weights, totals: Weights) -> Array:
    """Quotients; NaN where the total is 0."""
    return np.where(totals > 0, counts / np.maximum(totals, 1), math.nan)
