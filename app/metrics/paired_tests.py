"""Paired tests of whether two runs differ: bootstrap over samples, t-test over seeds, all rows as one block design.

Differences are first minus second. Runs without a significant difference are indistinguishable, not equal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np
from scipy import stats

from app.common.errors import Problem, raise_all
from app.common.wording import counted
from app.metrics.bootstrap import BOOTSTRAP, Bootstrap, Ranking, Weights, confidence_problems
from app.metrics.intervals import Interval, bounded_interval, student_quantile
from app.metrics.membership import Array, MembershipScores, NotAvailable
from app.metrics.roc import roc_curve

Verdict = Literal["better", "worse", "indistinguishable"]

OVER_SEEDS = "paired t over seeds"
"""Name of the test of `compare_over_seeds`."""

DIGITS = 12
"""Decimal places kept of differences, so that rounding neither makes nor breaks ties."""


@dataclass(frozen=True)
class PairedDifference:
    """Difference of two runs."""

    difference: float  # first minus second, in the unit of what is compared
    interval: Interval  # of the difference; not corrected for multiple comparisons
    p_value: float  # two-sided
    test: str  # name of the test
    lower_is_better: bool = True  # True for leakage, False for accuracy

    @property
    def verdict(self) -> Verdict:
        """Whether the first run is significantly better than the second, by the p-value."""
        if self.p_value >= 1 - self.interval.confidence or self.difference == 0:
            return "indistinguishable"
        return "better" if (self.difference < 0) == self.lower_is_better else "worse"


def compare_auc(
    first: MembershipScores, second: MembershipScores, bootstrap: Bootstrap = BOOTSTRAP
) -> PairedDifference | NotAvailable:
    """Paired bootstrap test of the difference of two areas under the ROC curve, -1 to 1.

    Both runs must audit the same samples of the same clients with the same membership, in any order.
    """
    one, two = aligned(first, second)
    left, right = Ranking.of(one), Ranking.of(two)

    def resampled(weights: Weights) -> Array:
        return left.auc(weights) - right.auc(weights)

    difference, confidence = roc_curve(one).auc - roc_curve(two).auc, bootstrap.confidence
    replicates = bootstrap.run(resampled, one)
    if isinstance(replicates, NotAvailable):
        return replicates
    error, units, name = replicates.standard_error, replicates.units, "paired bootstrap"
    if replicates.constant:
        # All resamples agree: a sign test of as many pairs as there are units, with exact bounds for unseen pairs.
        interval = bounded_interval(difference, replicates, confidence, -1.0, 1.0)
        return PairedDifference(difference, interval, 1.0 if difference == 0 else min(1.0, 2 * 0.5**units), name)
    reach = student_quantile(units, confidence) * error
    interval = Interval(max(-1.0, difference - reach), min(1.0, difference + reach), confidence)
    return PairedDifference(difference, interval, float(2 * stats.t.sf(abs(difference) / error, units - 1)), name)


def aligned(first: MembershipScores, second: MembershipScores) -> tuple[MembershipScores, MembershipScores]:
    """Both runs with their rows ordered by client and sample; refused unless they audit the same rows."""
    one, two = (run.select(np.lexsort((run.samples, run.clients))) for run in (first, second))
    raise_all(_pairing_problems(one, two))
    return one, two


def compare_over_seeds(
    first: Mapping[int, float], second: Mapping[int, float], lower_is_better: bool = True, confidence: float = 0.95
) -> PairedDifference | NotAvailable:
    """Paired t-test of the mean difference of two runs, whose results are given by seed.

    Not available with fewer than 3 seeds, or where all seeds differ by the same amount other than 0.
    """
    raise_all(_seed_problems(first, second, confidence))
    changes = np.round([first[seed] - second[seed] for seed in sorted(first)], DIGITS).astype(np.float64)
    if changes.size < 3:
        return NotAvailable(f"a comparison over seeds needs at least 3 seeds, there are {changes.size}")
    mean = float(changes.mean())
    if np.ptp(changes) == 0:
        if mean == 0:
            return PairedDifference(0.0, Interval(0.0, 0.0, confidence), 1.0, OVER_SEEDS, lower_is_better)
        return NotAvailable("the difference is the same for every seed: the seeds probably did not change the runs")
    error = float(changes.std(ddof=1)) / math.sqrt(changes.size)
    reach = student_quantile(changes.size, confidence) * error
    p_value = float(2 * stats.t.sf(abs(mean) / error, changes.size - 1))
    interval = Interval(mean - reach, mean + reach, confidence)
    return PairedDifference(mean, interval, p_value, OVER_SEEDS, lower_is_better)


def block_design_p_values(rows: Mapping[str, Mapping[int, float]]) -> dict[tuple[str, str], float]:
    """Two-sided p-value, 0 to 1, of the difference of every pair of rows, by names in the order of `rows`.

    Randomised block design with seeds as blocks: least squares of row and seed effects, t-tests of the contrasts with
    the residual variance pooled over all rows (assumed equal). With two rows it is the paired t-test. Rows hold results
    by seed, in any unit; a row may lack seeds. Only pairs that the seeds connect, directly or through other rows, have
    a p-value, and none where the residual variance is 0.
    """
    names, seeds = list(rows), sorted({seed for row in rows.values() for seed in row})
    results = [
        (names.index(name), seeds.index(seed), value) for name, row in rows.items() for seed, value in row.items()
    ]
    if len(names) < 2 or not results:
        return {}
    design = np.zeros((len(results), len(names) + len(seeds)))
    for at, (row, seed, _) in enumerate(results):
        design[at, [row, len(names) + seed]] = 1
    values = np.array([value for *_, value in results])
    gram = design.T @ design
    inverse = np.linalg.pinv(gram)
    effects = inverse @ design.T @ values
    freedom = len(results) - int(np.linalg.matrix_rank(design))
    residuals = values - design @ effects
    # residuals up to this share of the largest result are rounding errors: the seeds changed nothing
    if freedom < 1 or np.abs(residuals).max() <= 1e-12 * np.abs(values).max():
        return {}
    variance = float(residuals @ residuals) / freedom
    sizes = {}
    for pair in combinations(names, 2):
        contrast = np.zeros(design.shape[1])
        contrast[names.index(pair[0])], contrast[names.index(pair[1])] = 1, -1
        if np.allclose(contrast @ inverse @ gram, contrast):  # estimable
            error = math.sqrt(variance * float(contrast @ inverse @ contrast))
            sizes[pair] = abs(float(contrast @ effects)) / error
    p_values = 2 * stats.t.sf(list(sizes.values()), freedom)
    return dict(zip(sizes, p_values.tolist(), strict=True))


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """P-values, 0 to 1, adjusted by Holm's step-down procedure, which controls the family-wise error rate."""
    order = np.argsort(p_values, kind="stable")
    factors = np.arange(len(p_values), 0, -1)
    raised = np.minimum(1.0, np.maximum.accumulate(np.asarray(p_values, dtype=np.float64)[order] * factors))
    adjusted = np.empty_like(raised)
    adjusted[order] = raised
    return tuple(adjusted.tolist())


def _pairing_problems(one: MembershipScores, two: MembershipScores) -> Iterator[Problem]:
    """Why two runs with ordered rows cannot be paired row by row."""
    same = one.samples.size == two.samples.size
    if not same or np.any(one.samples != two.samples) or np.any(one.clients != two.clients):
        yield Problem(
            "the two runs audit different samples or clients",
            "their scores cannot be paired",
            "attack both with the same audit set, or compare them over seeds",
        )
    elif changed := int(np.sum(one.members != two.members)):
        yield Problem(
            f"members in one run only: {counted(changed, 'sample')}",
            "a difference could come from the samples",
            "train both runs with the same seed of membership, or compare them over seeds",
        )


def _seed_problems(first: Mapping[int, float], second: Mapping[int, float], confidence: float) -> Iterator[Problem]:
    if alone := sorted(set(first) ^ set(second)):
        cause = f"seeds {', '.join(map(str, alone))} exist for one run only"
        yield Problem(cause, "the results cannot be paired", "run both with the same seeds")
    if bad := [seed for run in (first, second) for seed, value in run.items() if not math.isfinite(value)]:
        cause = f"the result of seed {bad[0]} is not finite"
        yield Problem(cause, "no difference can be formed", "leave the seed out of both runs, and say so")
    yield from confidence_problems(confidence)
