"""Whether two rows of a comparison differ over seeds: paired tests, pooled variance, Holm's correction."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from app.errors import Problem, raise_all
from app.metrics.comparison import PairedDifference
from app.metrics.intervals import Interval, student_quantile
from app.metrics.membership import Array, NotAvailable
from app.metrics.resampling import confidence_problems

NO_CHANCE = 1e-12
"""Share of the results' size that is rounding: where residuals are no larger, nothing is left to chance."""


def pooled_p_values(rows: Mapping[str, Mapping[int, float]]) -> dict[tuple[str, str], float]:
    """Two-sided p-value, 0 to 1, of the difference of every pair of rows, by names in the order given.

    Sound where all rows vary alike; with two rows it is the paired t-test.

    Args:
        rows: results by seed, of every row by name, in any unit; a row may lack seeds.

    Returns:
        Pairs that the seeds connect, if only through other rows; none where nothing is left to chance.
    """
    names, seeds = list(rows), sorted({seed for row in rows.values() for seed in row})
    found = [(names.index(name), seeds.index(seed), value) for name, row in rows.items() for seed, value in row.items()]
    if len(names) < 2 or not found:
        return {}
    design = np.zeros((len(found), len(names) + len(seeds)))
    for at, (row, seed, _) in enumerate(found):
        design[at, [row, len(names) + seed]] = 1
    values = np.array([value for *_, value in found])
    inverse = np.linalg.pinv(design.T @ design)
    effects = inverse @ design.T @ values
    freedom = len(found) - int(np.linalg.matrix_rank(design))
    residuals = values - design @ effects
    if freedom < 1 or np.abs(residuals).max() <= NO_CHANCE * np.abs(values).max():
        return {}
    variance = float(residuals @ residuals) / freedom
    pairs = {pair: _contrast(names, pair, design.shape[1]) for pair in combinations(names, 2)}
    return {
        pair: _p_value(float(contrast @ effects), variance * float(contrast @ inverse @ contrast), freedom)
        for pair, contrast in pairs.items()
        if np.allclose(contrast @ inverse @ (design.T @ design), contrast)
    }


def _contrast(names: list[str], pair: tuple[str, str], width: int) -> Array:
    """First minus second."""
    contrast = np.zeros(width)
    contrast[names.index(pair[0])], contrast[names.index(pair[1])] = 1, -1
    return contrast


def _p_value(difference: float, variance: float, freedom: int) -> float:
    return float(2 * stats.t.sf(abs(difference) / math.sqrt(variance), freedom))


OVER_SEEDS = "paired t over seeds"
"""Name of the test of `compare_over_seeds`."""

DIGITS = 12
"""Decimal places kept of differences, so that rounding neither makes nor breaks ties."""


def compare_over_seeds(
    first: Mapping[int, float], second: Mapping[int, float], lower_is_better: bool = True, confidence: float = 0.95
) -> PairedDifference | NotAvailable:
    """Paired t-test of the mean difference: for 3 or more seeds whose differences look normal.

    Args:
        first: a result per seed of one run, in any unit.
        second: the same of the other run.
        lower_is_better: as for leakage; False for accuracy.
        confidence: between 0 and 1.

    Returns:
        The comparison; unavailable with fewer than 3 seeds, or where all differ by the same amount other than 0.
    """
    changes = _changes(first, second, confidence)
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
    return PairedDifference(
        mean, Interval(mean - reach, mean + reach, confidence), p_value, OVER_SEEDS, lower_is_better
    )


def rank_over_seeds(
    first: Mapping[int, float], second: Mapping[int, float], lower_is_better: bool = True, confidence: float = 0.95
) -> PairedDifference | NotAvailable:
    """Wilcoxon's exact signed-rank test: needs no normal differences, but 6 seeds to reach 0.05.

    The difference is the median of the means of all pairs of differences (Hodges and Lehmann), with its exact interval.

    Args:
        first: a result per seed of one run, in any unit.
        second: the same of the other run.
        lower_is_better: as for leakage; False for accuracy.
        confidence: between 0 and 1.

    Returns:
        The comparison; unavailable with so few seeds that no outcome could be significant.
    """
    changes = _changes(first, second, confidence)
    needed = math.ceil(1 - math.log2(1 - confidence))
    if changes.size < needed:
        return NotAvailable(f"Wilcoxon's test at {confidence:g} needs {needed} seeds, there are {changes.size}")
    i, j = np.triu_indices(changes.size)
    means = np.sort((changes[i] + changes[j]) / 2)
    null = np.cumsum(_sign_sums(np.arange(1, changes.size + 1)))
    skipped = int(np.searchsorted(null, (1 - confidence) / 2, side="right"))
    interval = Interval(float(means[skipped - 1]), float(means[-skipped]), confidence)
    name = "Wilcoxon over seeds"
    return PairedDifference(float(np.median(means)), interval, _signed_rank_p(changes), name, lower_is_better)


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Holm's correction: p-values, 0 to 1, of which any below a level is significant among all at that level."""
    order = np.argsort(p_values, kind="stable")
    factors = np.arange(len(p_values), 0, -1)
    raised = np.minimum(1.0, np.maximum.accumulate(np.asarray(p_values, dtype=np.float64)[order] * factors))
    adjusted = np.empty_like(raised)
    adjusted[order] = raised
    return tuple(adjusted.tolist())


def _changes(first: Mapping[int, float], second: Mapping[int, float], confidence: float) -> Array:
    """First minus second for every seed."""
    raise_all(_seed_problems(first, second, confidence))
    return np.round([first[seed] - second[seed] for seed in sorted(first)], DIGITS).astype(np.float64)


def _signed_rank_p(changes: Array) -> float:
    """Exact two-sided p-value of the signed ranks; differences of 0 are left out, ties share their mean rank."""
    changed = changes[changes != 0]
    if not changed.size:
        return 1.0
    # Mean ranks are halves; twice them are whole numbers, whose sums can be counted.
    ranks = np.rint(2 * stats.rankdata(np.abs(changed))).astype(np.int64)
    null = _sign_sums(ranks)
    up = int(ranks[changed > 0].sum())
    smaller = min(up, int(ranks.sum()) - up)
    return min(1.0, 2 * float(null[: smaller + 1].sum()))


def _sign_sums(ranks: NDArray[np.int64]) -> Array:
    """Probability of every sum of ranks when each is counted or not by a fair coin."""
    chances = np.zeros(int(ranks.sum()) + 1)
    chances[0] = 1
    for rank in ranks:
        moved = np.zeros_like(chances)
        moved[rank:] = chances[: chances.size - rank]
        chances = (chances + moved) / 2
    return chances


def _seed_problems(first: Mapping[int, float], second: Mapping[int, float], confidence: float) -> Iterator[Problem]:
    """Why two sets of results cannot be paired by seed."""
    if alone := sorted(set(first) ^ set(second)):
        cause = f"seeds {', '.join(map(str, alone))} exist for one run only"
        yield Problem(cause, "the results cannot be paired", "run both with the same seeds")
    if bad := [seed for run in (first, second) for seed, value in run.items() if not math.isfinite(value)]:
        cause = f"the result of seed {bad[0]} is not finite"
        yield Problem(cause, "no difference can be formed", "leave the seed out of both runs, and say so")
    yield from confidence_problems(confidence)
