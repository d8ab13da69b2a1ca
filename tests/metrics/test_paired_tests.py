"""Paired tests: over samples against DeLong, over seeds against scipy, block design and Holm by the textbook."""

import math

import numpy as np
import pytest
from scipy import stats
from scipy.stats import norm
from score_kit import clustered, delong_variance, gaussian, gaussian_auc, twins

from app.common.errors import UserError
from app.metrics.bootstrap import Bootstrap
from app.metrics.intervals import Interval
from app.metrics.membership import MembershipScores, NotAvailable
from app.metrics.paired_tests import (
    PairedDifference,
    aligned,
    block_design_p_values,
    compare_auc,
    compare_over_seeds,
    holm,
)
from app.metrics.roc import roc_curve

FAST = Bootstrap(resamples=200)


def different(comparisons):
    """Share of the comparisons that found a difference."""
    return np.mean([comparison.verdict != "indistinguishable" for comparison in comparisons])


@pytest.mark.parametrize("gain", [0.0, 0.3])
def test_area_agrees_with_delong(gain):
    """The analytic standard error of the paired difference, and the p-value from it."""
    first, second = twins(1.0, 300, 400, gain=gain)
    comparison = compare_auc(first, second, Bootstrap(resamples=4000))
    error = math.sqrt(delong_variance(first, second))
    assert comparison.difference == pytest.approx(roc_curve(first).auc - roc_curve(second).auc)
    assert comparison.interval.half_width == pytest.approx(norm.ppf(0.975) * error, rel=0.05)
    assert comparison.p_value == pytest.approx(2 * norm.sf(abs(comparison.difference) / error), abs=0.03)


def test_pairing_narrows_the_interval():
    """Runs that share most of their scores differ by less than independent ones would."""
    tight, loose = (compare_auc(*twins(1.0, 200, 200, shared=shared), FAST) for shared in (0.9, 0.0))
    assert tight.interval.half_width < 0.6 * loose.interval.half_width


def test_equal_runs_are_told_apart_no_more_often_than_allowed():
    """In 5 % of the comparisons."""
    pairs = [twins(1.0, 200, 200, seed) for seed in range(120)]
    assert different([compare_auc(*pair, FAST) for pair in pairs]) <= 0.09


def test_differences_are_found_and_covered():
    """A better attack on the first run makes it worse, and the other way round."""
    pairs = [twins(0.5, 200, 200, seed, gain=0.7) for seed in range(60)]
    areas = [compare_auc(*pair, FAST) for pair in pairs]
    assert np.mean([one.verdict == "worse" for one in areas]) > 0.9
    truth = gaussian_auc(1.2) - gaussian_auc(0.5)
    assert np.mean([one.interval.contains(truth) for one in areas]) >= 0.88
    swapped = compare_auc(pairs[0][1], pairs[0][0], FAST)
    assert swapped.verdict == "better"
    assert swapped.difference == -areas[0].difference


def test_equal_clients_differ_by_chance():
    """Clients are drawn where there are several: own client effects in each run are not a difference."""
    rng = np.random.default_rng(2)
    pairs = [(clustered(6, 40, 0.6, rng), clustered(6, 40, 0.6, rng)) for _ in range(100)]
    assert different([compare_auc(*pair, FAST) for pair in pairs]) <= 0.1
    assert different([compare_auc(*pair, Bootstrap("row", resamples=200)) for pair in pairs]) > 0.15


def test_identical_runs():
    """Exactly 0, p = 1, and an interval that is not a point."""
    run = gaussian(1.0, 40, 40)
    comparison = compare_auc(run, run, FAST)
    assert (comparison.difference, comparison.p_value, comparison.verdict) == (0, 1, "indistinguishable")
    assert comparison.interval.low < 0 < comparison.interval.high


def test_perfect_against_constant():
    """No resample varies; a sign test over as many pairs as there are members."""
    truth = np.arange(24) < 12
    perfect, constant = MembershipScores.of(truth.astype(float), truth), MembershipScores.of(np.zeros(24), truth)
    comparison = compare_auc(perfect, constant, FAST)
    assert (comparison.difference, comparison.p_value) == (0.5, 2 * 0.5**12)
    assert comparison.verdict == "worse"
    assert comparison.interval.low < 0.5 < comparison.interval.high < 1
    few = np.array([0, 1, 12, 13])
    assert compare_auc(perfect.select(few), constant.select(few), FAST).verdict == "indistinguishable"


def test_rows_are_paired_by_client_and_sample():
    """Whatever their order in the files."""
    first, second = twins(1.0, 50, 60)
    shuffled = second.select(np.random.default_rng(0).permutation(110))
    assert compare_auc(first, shuffled, FAST) == compare_auc(first, second, FAST)
    one, two = aligned(first, shuffled)
    assert one.samples.tolist() == two.samples.tolist()


def test_runs_that_cannot_be_paired():
    """Other samples, or other members: refused, with the way out."""
    first, second = twins(1.0, 50, 60)
    with pytest.raises(UserError, match="different samples or clients"):
        compare_auc(first, second.select(np.arange(109)), FAST)
    moved = MembershipScores.of(second.scores, second.members, second.samples, second.clients + 1)
    with pytest.raises(UserError, match="different samples or clients"):
        compare_auc(first, moved, FAST)
    flipped = MembershipScores.of(second.scores, np.roll(second.members, 1))
    with pytest.raises(UserError, match="members in one run only: 2 samples"):
        compare_auc(first, flipped, FAST)


def test_what_cannot_be_compared():
    """A single member."""
    assert isinstance(compare_auc(*twins(1.0, 1, 60), FAST), NotAvailable)


@pytest.mark.parametrize(
    ("difference", "p_value", "lower", "verdict"),
    [
        (-0.1, 0.01, True, "better"),
        (0.1, 0.01, True, "worse"),
        (0.1, 0.01, False, "better"),
        (-0.1, 0.01, False, "worse"),
        (-0.1, 0.2, True, "indistinguishable"),
        (0.0, 0.01, True, "indistinguishable"),
    ],
)
def test_verdict(difference, p_value, lower, verdict):
    """Significant, in the direction that counts as better."""
    assert PairedDifference(difference, Interval(-1, 1), p_value, "test", lower).verdict == verdict


def runs(seeds, gain=0.0, seed=0, noise=0.02):
    """Results of two runs by seed, the first larger by a gain; seeds have a common part."""
    rng = np.random.default_rng(seed)
    common, own = rng.normal(0.6, 0.1, seeds), rng.normal(0, noise, (2, seeds))
    return [dict(enumerate((common + own[k] + gain * (k == 0)).tolist())) for k in (0, 1)]


@pytest.mark.parametrize("seeds", [3, 5, 12])
def test_paired_t_agrees_with_scipy(seeds):
    """Difference, interval and p-value."""
    first, second = runs(seeds, 0.02)
    ours = compare_over_seeds(first, second)
    theirs = stats.ttest_rel(list(first.values()), list(second.values()))
    assert ours.p_value == pytest.approx(theirs.pvalue, rel=1e-6)
    assert ours.difference == pytest.approx(np.mean(list(first.values())) - np.mean(list(second.values())))
    interval = theirs.confidence_interval(0.95)
    assert (ours.interval.low, ours.interval.high) == pytest.approx((interval.low, interval.high))


def test_chance_and_difference_over_seeds():
    """Equal runs differ in 5 % of the cases, unequal ones are found, and the interval covers."""
    equal = [compare_over_seeds(*runs(8, 0.0, seed)) for seed in range(200)]
    assert np.mean([one.verdict != "indistinguishable" for one in equal]) <= 0.09
    assert np.mean([one.interval.contains(0) for one in equal]) >= 0.91
    unequal = [compare_over_seeds(*runs(8, 0.06, seed)) for seed in range(50)]
    assert np.mean([one.verdict == "worse" for one in unequal]) > 0.9
    assert compare_over_seeds(*runs(8, 0.06), lower_is_better=False).verdict == "better"


def test_pairing_by_seed_matters():
    """What all runs of a seed share does not blur the difference; the order of the seeds does not matter."""
    first, second = runs(6, 0.03, noise=0.005)
    assert compare_over_seeds(first, second).verdict == "worse"
    assert stats.ttest_ind(list(first.values()), list(second.values())).pvalue > 0.05
    backwards = dict(reversed(second.items()))
    assert compare_over_seeds(first, backwards) == compare_over_seeds(first, second)


def test_too_few_seeds():
    """The spread of 2 differences says too little."""
    assert "at least 3 seeds, there are 2" in compare_over_seeds(*runs(2)).reason


def test_equal_differences():
    """Equal runs are indistinguishable; the same difference every time is a sign that the seed did nothing."""
    first, _ = runs(4)
    same = compare_over_seeds(first, first)
    assert (same.difference, same.p_value, same.verdict) == (0, 1, "indistinguishable")
    lifted = compare_over_seeds({seed: value + 0.1 for seed, value in first.items()}, first)
    assert isinstance(lifted, NotAvailable)
    assert "same for every seed" in lifted.reason


def test_results_that_cannot_be_paired_by_seed():
    """Missing seeds, missing values and a percentage, all at once."""
    with pytest.raises(UserError) as error:
        compare_over_seeds({1: 0.5, 2: float("nan"), 3: 0.1}, {2: 0.3, 3: 0.1, 4: 0.2}, confidence=95)
    assert len(error.value.problems) == 3
    assert "seeds 1, 4 exist for one run only" in str(error.value)


def table(values):
    """Rows by name from an array (rows, seeds); nan for a seed that a row lacks."""
    return {
        f"row {at}": {seed: float(value) for seed, value in enumerate(row) if np.isfinite(value)}
        for at, row in enumerate(values)
    }


def test_two_rows_are_a_paired_t_test():
    """The pooled test has nothing else to go by."""
    rows = table(np.random.default_rng(0).normal(size=(2, 6)))
    found = block_design_p_values(rows)
    assert found == {("row 0", "row 1"): pytest.approx(compare_over_seeds(*rows.values()).p_value)}


def test_closed_form_of_full_blocks():
    """The textbook's formula: residuals of row and seed means, (rows - 1)(seeds - 1) degrees of freedom."""
    values = np.random.default_rng(1).normal(size=(5, 4)) + 10 * np.arange(4)
    residuals = values - values.mean(1, keepdims=True) - values.mean(0) + values.mean()
    error = np.sqrt(2 / 4 * (residuals**2).sum() / 12)
    found = block_design_p_values(table(values))
    expected = 2 * stats.t.sf(abs(values[1].mean() - values[3].mean()) / error, 12)
    assert found["row 1", "row 3"] == pytest.approx(expected)
    assert len(found) == 10


def test_a_seed_that_shifts_all_rows_does_not_matter():
    """Also where rows lack seeds, and their means are of different ones."""
    values = np.random.default_rng(2).normal(size=(4, 5))
    values[0, 0] = values[2, 3] = np.nan
    shifted = values + np.array([0.0, 100.0, -50.0, 7.0, 3.0])
    plain = block_design_p_values(table(values))
    assert block_design_p_values(table(shifted)) == {pair: pytest.approx(value) for pair, value in plain.items()}


def test_rows_without_a_common_seed():
    """They are compared through a third row that shares seeds with both, and not at all without one."""
    values = np.random.default_rng(3).normal(size=(3, 6))
    values[0, 3:] = values[1, :3] = np.nan
    assert ("row 0", "row 1") in block_design_p_values(table(values))
    assert block_design_p_values(table(values[:2])) == {}


def test_nothing_left_to_chance():
    """Results that no seed changes, a single row, and none."""
    assert block_design_p_values(table(np.array([[0.1] * 3, [0.7] * 3]))) == {}
    assert block_design_p_values(table(np.ones((1, 3)))) == {}
    assert block_design_p_values({}) == {}


def test_equal_rows_differ_by_chance_only():
    """Any pair of four equal rows has a p-value below 5 % in 5 % of the draws."""
    rng = np.random.default_rng(4)
    found = [block_design_p_values(table(rng.normal(size=(4, 3))))["row 0", "row 2"] for _ in range(1500)]
    assert np.mean(np.array(found) < 0.05) == pytest.approx(0.05, abs=0.017)


def test_holm_by_hand():
    """Smallest times n, next times n - 1, never falling, at most 1, in the given order."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx((0.03, 0.06, 0.06, 0.02))
    assert holm([0.5, 0.9]) == (1.0, 1.0)
    assert holm([0.2]) == (0.2,)
    assert holm([]) == ()


def test_holm_keeps_the_family_honest():
    """Among ten true null hypotheses, any is rejected in about 5 % of the families; without correction in 40 %."""
    families = np.random.default_rng(0).random((2000, 10))
    assert np.mean([min(holm(family)) < 0.05 for family in families.tolist()]) == pytest.approx(0.05, abs=0.015)
    assert np.mean(families.min(axis=1) < 0.05) > 0.35
