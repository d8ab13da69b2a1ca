"""What is called best is best beyond chance, although the best row was picked by looking."""

import math

import numpy as np
import pytest
from scipy import stats

from app.metrics.comparison import Comparison
from app.metrics.intervals import Interval
from app.metrics.membership import NotAvailable
from app.metrics.repetitions import compare_over_seeds
from app.results.comparison.standings import standings

DRAWS = 4000
LEVEL = 0.95
CHANCE = 3 * math.sqrt(LEVEL * (1 - LEVEL) / DRAWS)
"""What the share of so many draws may lie below its expectation, which is 95 % where Holm's correction is sharp."""


def over_seeds(values, lower_is_better):
    """Standings of rows by name from an array (rows, seeds)."""
    rows = {f"row {number}": dict(enumerate(row)) for number, row in enumerate(values.tolist())}
    means = {name: float(np.mean([*row.values()])) for name, row in rows.items()}

    def compare(first, second):
        return compare_over_seeds(rows[first], rows[second], lower_is_better)

    return standings(means, lower_is_better, compare)


def many_over_seeds(values, lower_is_better):
    """The same of an array (draws, rows, seeds), with the t-tests of all draws at once."""
    seeds, unused = values.shape[2], Interval(0.0, 0.0)
    changes = values[:, :, None] - values[:, None]
    means, errors = changes.mean(axis=3), changes.std(axis=3, ddof=1) / math.sqrt(seeds)
    sizes = np.divide(np.abs(means), errors, out=np.zeros_like(errors), where=errors > 0)
    p_values = 2 * stats.t.sf(sizes, seeds - 1)
    for draw, means_of_draw in enumerate(values.mean(axis=2)):

        def compare(first, second, draw=draw):
            pair = (draw, int(first), int(second))
            return Comparison(float(means[pair]), unused, float(p_values[pair]), "t", lower_is_better)

        yield standings(
            dict(zip(map(str, range(values.shape[1])), means_of_draw, strict=True)), lower_is_better, compare
        )


def share_alike(rows, seeds, lower_is_better, worse=0):
    """Share of draws in which equal rows come out indistinguishable; further rows are far worse.

    Every seed shifts all rows alike, as seeds do, so that pairing matters.
    """
    rng = np.random.default_rng([rows, seeds, lower_is_better, worse])
    values = rng.normal(size=(DRAWS, rows + worse, seeds)) + 3 * rng.normal(size=(DRAWS, 1, seeds))
    values[:, rows:] += (1000.0 if lower_is_better else -1000.0) * (1 + np.arange(worse))[:, None]
    found = [[*draw.values()][:rows] for draw in many_over_seeds(values, lower_is_better)]
    return np.mean([set(draw) == {"indistinguishable"} for draw in found])


def test_the_draws_are_compared_as_runs_are():
    """Tests of all draws at once give what `compare_over_seeds` gives."""
    values = np.random.default_rng(5).normal(size=(20, 4, 3)) + np.array([0.0, 0.0, 5.0, 20.0])[:, None]
    for draw, found in enumerate(many_over_seeds(values, True)):
        assert [*found.values()] == [*over_seeds(values[draw], True).values()]


@pytest.mark.parametrize("lower_is_better", [True, False])
@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("worse", [0, 2])
def test_two_equal_rows_are_indistinguishable(seeds, lower_is_better, worse):
    """In 95 % of the draws, alone and among rows that are worse."""
    assert share_alike(2, seeds, lower_is_better, worse) >= LEVEL - CHANCE


@pytest.mark.parametrize("lower_is_better", [True, False])
@pytest.mark.parametrize("rows", [3, 5, 8])
@pytest.mark.parametrize("seeds", [3, 5])
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
        return Comparison(1.0, Interval(0.5, 1.5), p_value, "script")

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
