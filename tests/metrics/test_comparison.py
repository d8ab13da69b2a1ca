"""Two runs on the same samples: true differences are found, chance is not."""

import math

import numpy as np
import pytest
from scipy.stats import binom, norm
from score_kit import clustered, delong_variance, gaussian, gaussian_auc, twins

from app.errors import UserError
from app.metrics.comparison import PairedDifference, aligned, compare_auc, compare_decisions, compare_tpr
from app.metrics.intervals import Interval
from app.metrics.membership import MembershipScores, NotAvailable
from app.metrics.resampling import Bootstrap
from app.metrics.roc import roc_curve, tpr_at_fpr

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
    """5 %, by area and by TPR; McNemar at the observed thresholds errs several times as often."""
    pairs = [twins(1.0, 200, 200, seed) for seed in range(120)]
    assert different([compare_auc(*pair, FAST) for pair in pairs]) <= 0.09
    assert different([compare_tpr(*pair, 0.1, FAST) for pair in pairs]) <= 0.09
    cuts = [tuple(tpr_at_fpr(roc_curve(run), 0.1).threshold for run in pair) for pair in pairs]
    naive = [compare_decisions(*pair, cut, "members") for pair, cut in zip(pairs, cuts, strict=True)]
    assert different(naive) > 0.12, "the reason why compare_tpr draws its thresholds anew"
    fixed = [compare_decisions(*pair, (1.3, 1.3), "members") for pair in pairs]
    assert different(fixed) <= 0.09


def test_differences_are_found_and_covered():
    """A better attack on the first run makes it worse, and the other way round."""
    pairs = [twins(0.5, 200, 200, seed, gain=0.7) for seed in range(60)]
    areas, rates = [compare_auc(*pair, FAST) for pair in pairs], [compare_tpr(*pair, 0.1, FAST) for pair in pairs]
    assert np.mean([one.verdict == "worse" for one in areas]) > 0.9
    assert np.mean([one.verdict == "worse" for one in rates]) > 0.6
    truth = gaussian_auc(1.2) - gaussian_auc(0.5)
    assert np.mean([one.interval.contains(truth) for one in areas]) >= 0.88
    gap = norm.sf(norm.isf(0.1) - 1.2) - norm.sf(norm.isf(0.1) - 0.5)
    assert np.mean([one.interval.contains(gap) for one in rates]) >= 0.88
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
    for comparison in (compare_auc(run, run, FAST), compare_tpr(run, run, 0.1, FAST)):
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


def test_mcnemar_by_hand():
    """12 members found by the first run only, 3 by the second only: twice the binomial tail."""
    first = MembershipScores.of([1.0] * 12 + [0.0] * 3 + [1.0] * 35 + [0.0, 1.0] * 5, np.arange(60) < 50)
    second = MembershipScores.of([0.0] * 12 + [1.0] * 3 + [1.0] * 35 + [0.0, 1.0] * 5, np.arange(60) < 50)
    members = compare_decisions(first, second, (0.5, 0.5), "members")
    assert members.difference == pytest.approx(9 / 50)
    assert members.p_value == pytest.approx(2 * binom.cdf(3, 15, 0.5))
    assert members.p_value == pytest.approx(0.0352, abs=5e-5)
    assert members.verdict == "worse"
    centre, spread = 9 / 52, math.sqrt((17 / 52 - (9 / 52) ** 2) / 52)
    assert members.interval.low == pytest.approx(centre - norm.ppf(0.975) * spread)
    assert members.interval.high == pytest.approx(centre + norm.ppf(0.975) * spread)
    assert compare_decisions(first, second, (0.5, 0.5)).difference == pytest.approx(9 / 60), "accuracy over all rows"
    same = compare_decisions(first, first, (0.5, 0.5))
    assert (same.difference, same.p_value) == (0, 1)
    assert same.interval.low < 0 < same.interval.high
    with pytest.raises(UserError, match="NaN"):
        compare_decisions(first, second, (0.5, math.nan))
    with pytest.raises(UserError, match="confidence"):
        compare_decisions(first, second, (0.5, 0.5), confidence=1.0)


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
        compare_tpr(first, moved, 0.1, FAST)
    flipped = MembershipScores.of(second.scores, np.roll(second.members, 1))
    with pytest.raises(UserError, match="2 samples are members in one run only"):
        compare_decisions(first, flipped, (0.0, 0.0))


def test_what_cannot_be_compared():
    """Too few non-members, or a single one of a kind."""
    assert "needs at least 1000" in compare_tpr(*twins(1.0, 50, 60), 0.001, FAST).reason
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
