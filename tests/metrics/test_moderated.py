"""Moderated paired effects: exact where nothing can be borrowed, at their level, and strong where seeds are few."""

import math

import numpy as np
import pytest
from scipy import special, stats

from app.metrics.moderated import Spread, _inverse_trigamma, _prior, moderated_effects
from app.metrics.paired_tests import compare_over_seeds

DRAWS = 400


def by_seed(values):
    return {str(row): dict(enumerate(results)) for row, results in enumerate(values)}


def test_two_rows_are_the_paired_t_test():
    rows = by_seed([[0.5, 0.7, 0.4, 0.9], [0.3, 0.6, 0.1, 0.5]])
    effect = moderated_effects(rows, {"0": "1"})["0"]
    expected = stats.ttest_rel(*(list(row.values()) for row in rows.values()))
    assert effect.p_value == pytest.approx(expected.pvalue)
    assert effect.mean == pytest.approx(0.25)
    assert effect.interval.low == pytest.approx(expected.confidence_interval().low)
    assert effect.higher
    assert not effect.lower


def test_seeds_that_only_one_row_has_are_left_out_of_the_mean():
    rows = {"a": {0: 1.0, 1: 2.0, 2: 4.0}, "b": {1: 1.0, 2: 2.0, 3: 9.0}, "c": {0: 0.5, 1: 0.4, 2: 0.7, 3: 0.6}}
    effect = moderated_effects(rows, {"a": "b"})["a"]
    assert (effect.mean, effect.seeds) == (pytest.approx(1.5), 2)


@pytest.mark.parametrize("rows", [by_seed([[0.5], [0.4]]), by_seed([[0.5, 0.5], [0.4, 0.4]])], ids=["one", "constant"])
def test_without_a_variance_there_is_no_interval(rows):
    effect = moderated_effects(rows, {"0": "1"})["0"]
    assert effect.mean == pytest.approx(0.1)
    assert math.isnan(effect.p_value)
    assert not effect.higher


def test_intervals_are_cut():
    effect = moderated_effects(by_seed([[0.9, 0.1], [0.1, 0.5], [0.3, 0.9]]), {"0": "1"}, -1.0, 1.0)["0"]
    assert (effect.interval.low, effect.interval.high) == (-1.0, 1.0)


@pytest.mark.parametrize("x", [0.01, 0.5, 3.0, 200.0])
def test_the_trigamma_function_is_inverted(x):
    assert _inverse_trigamma(float(special.polygamma(1, x))) == pytest.approx(x, rel=1e-6)


def test_the_prior_is_found():
    """Variances of many rows, drawn around a common one with 4 degrees of freedom (the model of the paper)."""
    generator = np.random.default_rng(0)
    true = 4 * 0.5 / generator.chisquare(4, 20_000)
    drawn = true * generator.chisquare(2, true.size) / 2
    prior = _prior([Spread(variance, 2.0) for variance in drawn.tolist()])
    assert prior.freedom == pytest.approx(4, rel=0.1)
    assert prior.variance == pytest.approx(0.5, rel=0.05)


def p_values(effect, rows=10, seeds=3):
    """P-values (draws, two) of the first row against the last: moderated, and paired over seeds.

    Seeds move all rows alike; the effect is in standard deviations of a difference.
    """
    generator, found = np.random.default_rng(1), []
    for _ in range(DRAWS):
        values = generator.standard_normal((rows + 1, seeds)) + generator.standard_normal(seeds)
        values[0] += effect * math.sqrt(2)
        data, last = by_seed(values), str(rows)
        paired = compare_over_seeds(data["0"], data[last])
        found.append((moderated_effects(data, {"0": last})["0"].p_value, paired.p_value))
    return np.array(found)


def test_level_and_power_with_three_seeds():
    """Equal rows differ in at most 4 % of 400 draws at 2 %; effects of two deviations are found thrice as often."""
    false = (p_values(0.0) < 0.02).mean(axis=0)
    power = (p_values(2.0) < 0.02).mean(axis=0)
    print(f"at 2 %, moderated and paired: false alarms {false}, power {power}")
    assert false[0] <= 0.04
    assert power[0] >= 0.75
    assert power[0] >= 2.5 * power[1]
