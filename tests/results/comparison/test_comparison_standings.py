"""What is called best is best beyond chance, although the best row was picked by looking."""

import math
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from app.metrics.intervals import Interval
from app.metrics.membership import NotAvailable
from app.metrics.paired_tests import OVER_SEEDS, PairedDifference, block_design_p_values, compare_over_seeds
from app.results.comparison.standings import standings

DRAWS = 2000
LEVEL = 0.95
"""Share of repeated draws in which equal rows must come out indistinguishable."""


def over_seeds(values, lower_is_better, pool=True):
    """Standings of rows by name from an array (rows, seeds)."""
    rows = {f"row {number}": dict(enumerate(row)) for number, row in enumerate(values.tolist())}
    means = {name: float(np.mean([*row.values()])) for name, row in rows.items()}

    def compare(first, second):
        return compare_over_seeds(rows[first], rows[second], lower_is_better)

    return standings(means, lower_is_better, compare, block_design_p_values(rows) if pool else None)


def many_over_seeds(values, lower_is_better):
    """The same of an array (draws, rows, seeds), with the t-tests of all draws at once."""
    rows, seeds, unused = *values.shape[1:], Interval(0.0, 0.0)
    changes = values[:, :, None] - values[:, None]
    means, errors = changes.mean(axis=3), changes.std(axis=3, ddof=1) / math.sqrt(seeds)
    p_values = 2 * stats.t.sf(ratio(np.abs(means), errors), seeds - 1)
    residuals = values - values.mean(axis=2, keepdims=True) - values.mean(axis=1, keepdims=True)
    residuals += values.mean(axis=(1, 2), keepdims=True)
    freedom = (rows - 1) * (seeds - 1)
    chance = np.sqrt(2 / seeds * (residuals**2).sum(axis=(1, 2)) / freedom)
    pooled = 2 * stats.t.sf(np.abs(means) / chance[:, None, None], freedom)
    names = [str(row) for row in range(rows)]
    for draw, means_of_draw in enumerate(values.mean(axis=2)):

        def compare(first, second, draw=draw):
            pair = (draw, int(first), int(second))
            return PairedDifference(float(means[pair]), unused, float(p_values[pair]), OVER_SEEDS, lower_is_better)

        together = {(one, two): float(pooled[draw, int(one), int(two)]) for one, two in combinations(names, 2)}
        yield standings(dict(zip(names, means_of_draw, strict=True)), lower_is_better, compare, together)


def ratio(sizes, errors):
    """Sizes in units of their errors, 0 on the diagonal, where both are 0."""
    return np.divide(sizes, errors, out=np.zeros_like(errors), where=errors > 0)


def share_alike(rows, seeds, lower_is_better, worse=0, calm=1.0):
    """Share of draws in which equal rows come out indistinguishable; further rows are far worse, and may vary less.

    Every seed shifts all rows alike, as seeds do, so that pairing matters.
    """
    rng = np.random.default_rng([rows, seeds, lower_is_better, worse])
    values = rng.normal(size=(DRAWS, rows + worse, seeds))
    values[:, rows:] *= calm
    values += 3 * rng.normal(size=(DRAWS, 1, seeds))
    values[:, rows:] += (1000.0 if lower_is_better else -1000.0) * (1 + np.arange(worse))[:, None]
    found = [[*draw.values()][:rows] for draw in many_over_seeds(values, lower_is_better)]
    return np.mean([set(draw) == {"indistinguishable"} for draw in found])


def test_the_draws_are_compared_as_runs_are():
    """Tests of all draws at once give what `compare_over_seeds` gives."""
    values = np.random.default_rng(5).normal(size=(20, 4, 3)) + np.array([0.0, 0.0, 5.0, 20.0])[:, None]
    for draw, found in enumerate(many_over_seeds(values, True)):
        assert [*found.values()] == [*over_seeds(values[draw], True).values()]


@pytest.mark.parametrize(
    ("seeds", "lower_is_better", "worse"), [(3, True, 0), (3, False, 2), (5, False, 0), (5, True, 2)]
)
def test_two_equal_rows_are_indistinguishable(seeds, lower_is_better, worse):
    """In 95 % of the draws, alone and among rows that are worse."""
    assert share_alike(2, seeds, lower_is_better, worse) >= LEVEL


@pytest.mark.parametrize("seeds", [3, 5])
def test_two_equal_rows_that_vary_more_than_others_are_indistinguishable(seeds):
    """Also where chance, measured on all rows, is far too small for them: their own test stands in the way."""
    assert share_alike(2, seeds, True, worse=10, calm=0.01) >= LEVEL


@pytest.mark.parametrize(
    ("seeds", "rows", "lower_is_better"),
    [(3, 3, True), (3, 5, False), (3, 8, True), (5, 3, False), (5, 5, True), (5, 8, False)],
)
def test_many_equal_rows_are_indistinguishable(seeds, rows, lower_is_better):
    """All of them, in more than 95 % of the draws, although the best one was picked by looking."""
    assert share_alike(rows, seeds, lower_is_better) >= LEVEL


def test_comparing_only_with_the_row_that_looks_best_would_not_do():
    """The reason for comparing all pairs: with Holm over the others alone, equal rows differ too often."""
    rng, rows, seeds, draws = np.random.default_rng(0), 8, 10, 4000
    values = rng.normal(size=(draws, rows, seeds))
    best = values[np.arange(draws), values.mean(axis=2).argmax(axis=1)]
    changes = best[:, None] - values
    error = changes.std(axis=2, ddof=1) / math.sqrt(seeds)
    size = np.divide(changes.mean(axis=2), error, out=np.zeros_like(error), where=error > 0)
    smallest = 2 * stats.t.sf(size.max(axis=1), seeds - 1)
    assert np.mean(smallest * (rows - 1) < 0.05) > 0.08
    assert np.mean(smallest * rows * (rows - 1) / 2 < 0.05) < 0.05


def test_three_seeds_tell_a_large_difference_among_many_rows():
    """Accuracies that differ by 30 points and vary by 4 are told apart; by their own tests with Holm's correction
    alone, which know the spread of three differences only, they seldom were.
    """
    rng, draws = np.random.default_rng(7), 60
    values = np.array([[91.0], [90.0], [88.0], [87.0], [61.0], [88.0]]) + rng.normal(size=(draws, 6, 3)) * 4
    found = [over_seeds(each, False)["row 4"] for each in values]
    alone = [over_seeds(each, False, pool=False)["row 4"] for each in values]
    assert np.mean([standing == "worse" for standing in found]) > 0.8
    assert np.mean([standing == "worse" for standing in alone]) < 0.4


@pytest.mark.parametrize("lower_is_better", [True, False])
def test_planted_differences_are_found(lower_is_better):
    """A row that is better in every seed by far is best, all others are worse."""
    rng = np.random.default_rng(1)
    values = rng.normal(size=(4, 5)) * 0.01 + np.array([[3.0], [1.0], [2.0], [4.0]])
    found = over_seeds(values, lower_is_better)
    best = "row 1" if lower_is_better else "row 3"
    assert found == {name: "best" if name == best else "worse" for name in found}


def test_two_good_rows_share_the_lead():
    """No row is best where another cannot be told from it; a third one is worse."""
    rng = np.random.default_rng(2)
    noise = rng.normal(size=(3, 5)) * 0.01
    found = over_seeds(noise + np.array([[1.0], [1.0], [5.0]]), True)
    assert [*found.values()] == ["indistinguishable", "indistinguishable", "worse"]


def scripted(verdicts):
    """A comparison by script: p-values by pair; None where there is none."""

    def compare(first, second):
        p_value = verdicts.get((first, second), verdicts.get((second, first)))
        if p_value is None:
            return NotAvailable("too few seeds")
        return PairedDifference(1.0, Interval(0.5, 1.5), p_value, "script")

    return compare


def test_rows_that_cannot_be_compared_are_unknown():
    """They neither are best nor keep others from being compared, but nothing is best beside them."""
    means = {"lucky": 0.1, "good": 0.5, "bad": 0.9}
    assert standings(means, True, scripted({("good", "bad"): 0.001})) == {
        "lucky": "unknown",
        "good": "unknown",
        "bad": "worse",
    }
    assert standings(means, True, scripted({("good", "bad"): 0.5})) == {
        "lucky": "unknown",
        "good": "indistinguishable",
        "bad": "indistinguishable",
    }
    assert set(standings(means, True, scripted({})).values()) == {"unknown"}
    assert standings({"alone": 1.0}, True, scripted({})) == {"alone": "unknown"}
    assert standings({}, True, scripted({})) == {}


def test_the_correction_is_for_all_pairs():
    """With three rows a p-value of 0.02 is not enough, of 0.01 it is."""
    means = {"a": 1.0, "b": 2.0, "c": 3.0}
    pairs = {("a", "b"): 0.02, ("a", "c"): 0.02, ("b", "c"): 0.9}
    assert standings(means, True, scripted(pairs))["b"] == "indistinguishable"
    assert standings(means, True, scripted({**pairs, ("a", "b"): 0.01, ("a", "c"): 0.01}))["a"] == "best"
