"""Several runs over the same seeds, compared in pairs by what all of them together tell about chance.

Three seeds say little about how much one difference varies, and more about how much all differences do: every result is
taken as that of its run plus that of its seed plus chance, and chance is measured on all runs (randomised blocks).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import combinations

import numpy as np
from scipy import stats

from app.metrics.membership import Array

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
