"""Differences in pairs, with chance measured on all rows."""

import numpy as np
import pytest
from scipy import stats

from app.metrics.repetitions import compare_over_seeds, pooled_p_values


def table(values):
    """Rows by name from an array (rows, seeds); nan for a seed that a row lacks."""
    return {
        f"row {at}": {seed: float(value) for seed, value in enumerate(row) if np.isfinite(value)}
        for at, row in enumerate(values)
    }


def test_two_rows_are_a_paired_t_test():
    """The pooled test has nothing else to go by."""
    rows = table(np.random.default_rng(0).normal(size=(2, 6)))
    found = pooled_p_values(rows)
    assert found == {("row 0", "row 1"): pytest.approx(compare_over_seeds(*rows.values()).p_value)}


def test_closed_form_of_full_blocks():
    """The textbook's formula: residuals of row and seed means, (rows - 1)(seeds - 1) degrees of freedom."""
    values = np.random.default_rng(1).normal(size=(5, 4)) + 10 * np.arange(4)
    residuals = values - values.mean(1, keepdims=True) - values.mean(0) + values.mean()
    error = np.sqrt(2 / 4 * (residuals**2).sum() / 12)
    found = pooled_p_values(table(values))
    expected = 2 * stats.t.sf(abs(values[1].mean() - values[3].mean()) / error, 12)
    assert found["row 1", "row 3"] == pytest.approx(expected)
    assert len(found) == 10


def test_a_seed_that_shifts_all_rows_does_not_matter():
    """Also where rows lack seeds, and their means are of different ones."""
    values = np.random.default_rng(2).normal(size=(4, 5))
    values[0, 0] = values[2, 3] = np.nan
    shifted = values + np.array([0.0, 100.0, -50.0, 7.0, 3.0])
    plain = pooled_p_values(table(values))
    assert pooled_p_values(table(shifted)) == {pair: pytest.approx(value) for pair, value in plain.items()}


def test_rows_without_a_common_seed():
    """They are compared through a third row that shares seeds with both, and not at all without one."""
    values = np.random.default_rng(3).normal(size=(3, 6))
    values[0, 3:] = values[1, :3] = np.nan
    assert ("row 0", "row 1") in pooled_p_values(table(values))
    assert pooled_p_values(table(values[:2])) == {}


def test_nothing_left_to_chance():
    """Results that no seed changes, a single row, and none."""
    assert pooled_p_values(table(np.array([[0.1] * 3, [0.7] * 3]))) == {}
    assert pooled_p_values(table(np.ones((1, 3)))) == {}
    assert pooled_p_values({}) == {}


def test_equal_rows_differ_by_chance_only():
    """Any pair of four equal rows has a p-value below 5 % in 5 % of the draws."""
    rng = np.random.default_rng(4)
    found = [pooled_p_values(table(rng.normal(size=(4, 3))))["row 0", "row 2"] for _ in range(1500)]
    assert np.mean(np.array(found) < 0.05) == pytest.approx(0.05, abs=0.017)
