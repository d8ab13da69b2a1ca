"""Intervals against scipy, published values, DeLong's formula, and how often they cover the truth."""

import math

import numpy as np
import pytest
from scipy.special import expit, logit
from scipy.stats import binomtest, norm
from score_kit import clustered, delong_variance, gaussian, gaussian_auc, tied

from app.common.errors import UserError
from app.metrics.bootstrap import Bootstrap
from app.metrics.intervals import (
    Interval,
    advantage_interval,
    auc_estimate,
    clopper_pearson,
    tpr_interval_at_target,
    wilson,
)
from app.metrics.membership import MembershipScores, NotAvailable
from app.metrics.roc import Decision, roc_curve

FAST = Bootstrap(resamples=200)


def share(intervals, truth):
    """How often the truth is inside."""
    return np.mean([interval.contains(truth) for interval in intervals])


@pytest.mark.parametrize(("successes", "trials"), [(0, 10), (1, 10), (5, 10), (10, 10), (3, 1000), (999, 1000)])
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
def test_shares_agree_with_scipy(successes, trials, confidence):
    """Both methods, also at the ends."""
    for ours, method in ((clopper_pearson, "exact"), (wilson, "wilson")):
        expected = binomtest(successes, trials).proportion_ci(confidence, method)
        found = ours(successes, trials, confidence)
        assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-9)
        assert found.confidence == confidence


@pytest.mark.parametrize("truth", [0.01, 0.2, 0.5])
def test_exact_interval_covers_whatever_the_share(truth):
    """At least as often as it says, by summing the binomial distribution over all outcomes."""
    trials = 40
    counts = np.arange(trials + 1)
    weight = np.array([math.comb(trials, k) * truth**k * (1 - truth) ** (trials - k) for k in counts])
    inside = np.array([clopper_pearson(int(k), trials).contains(truth) for k in counts])
    assert weight @ inside >= 0.95
    assert weight @ np.array([clopper_pearson(int(k), trials, 0.5).contains(truth) for k in counts]) < 1


@pytest.mark.parametrize(("successes", "trials", "confidence"), [(1, 0, 0.95), (-1, 5, 0.95), (6, 5, 0.95), (1, 5, 95)])
def test_impossible_counts(successes, trials, confidence):
    """A percentage is not a confidence, and nobody succeeds more often than tried."""
    for method in (clopper_pearson, wilson):
        with pytest.raises(UserError):
            method(successes, trials, confidence)


def test_advantage_of_newcombe():
    """56 of 70 against 48 of 80: 0.0524 to 0.3339 (Newcombe 1998, table II, method 10)."""
    interval = advantage_interval(Decision(0.0, 56, 70, 48, 80, "knowledge"))
    assert (interval.low, interval.high) == pytest.approx((0.0524, 0.3339), abs=5e-5)
    none = advantage_interval(Decision(0.0, 0, 10, 0, 20, "knowledge"))
    assert (none.low, none.high) == pytest.approx((-0.1611, 0.2775), abs=5e-5), "same table, 0 of 10 against 0 of 20"


@pytest.mark.parametrize("scores", [gaussian(1.0, 300, 400, 2), gaussian(0.0, 500, 200, 1), tied(4, 200, 300)])
def test_bootstrap_agrees_with_delong(scores):
    """The analytic standard error, on the log-odds of the area."""
    estimate = auc_estimate(scores, Bootstrap(resamples=4000))
    slope = estimate.value * (1 - estimate.value)
    reach = norm.ppf(0.975) * math.sqrt(delong_variance(scores)) / slope
    expected = expit(logit(estimate.value) + np.array([-reach, reach]))
    width = expected[1] - expected[0]
    assert (estimate.interval.low, estimate.interval.high) == pytest.approx(tuple(expected), abs=0.05 * width)


@pytest.mark.parametrize(("distance", "members", "nonmembers"), [(0.0, 40, 60), (1.5, 60, 60), (2.5, 25, 200)])
def test_area_is_covered(distance, members, nonmembers):
    """About as often as it says, also for areas near 1 and few members."""
    runs = [gaussian(distance, members, nonmembers, seed) for seed in range(200)]
    for confidence, least, most in ((0.95, 0.91, 0.99), (0.5, 0.40, 0.62)):
        bootstrap = Bootstrap(confidence=confidence, resamples=200)
        covered = share([auc_estimate(run, bootstrap).interval for run in runs], gaussian_auc(distance))
        assert least <= covered <= most


def test_area_of_new_clients_is_covered():
    """Drawing clients covers the area of the population of clients; drawing rows would not."""
    rng = np.random.default_rng(7)
    truth = float(norm.cdf(rng.normal(1.0, 0.5, 200_000) / math.sqrt(2)).mean())
    runs = [clustered(6, 60, 0.5, rng) for _ in range(150)]
    assert 0.90 <= share([auc_estimate(run, FAST).interval for run in runs], truth) <= 0.99
    assert share([auc_estimate(run, Bootstrap("row", resamples=200)).interval for run in runs], truth) < 0.85


def test_permuted_membership_contains_chance():
    """And the true one does not."""
    scores = gaussian(1.0, 200, 200)
    assert not auc_estimate(scores, FAST).interval.contains(0.5)
    rng = np.random.default_rng(0)
    permuted = [MembershipScores.of(scores.scores, rng.permutation(scores.members)) for _ in range(60)]
    assert share([auc_estimate(run, FAST).interval for run in permuted], 0.5) >= 0.88


def test_perfect_and_constant_scores_have_a_width():
    """Resamples do not vary: n of n independent pairs agree, which bounds the share of others at 1 - 0.025^(1/n)."""
    truth = np.arange(50) < 20
    perfect = auc_estimate(MembershipScores.of(truth.astype(float), truth))
    assert perfect.value == perfect.interval.high == 1
    assert perfect.interval.low == pytest.approx(clopper_pearson(20, 20).low)
    inverted = auc_estimate(MembershipScores.of(-truth.astype(float), truth))
    assert (inverted.interval.low, inverted.interval.high) == pytest.approx((0, 1 - perfect.interval.low))
    constant = auc_estimate(MembershipScores.of(np.zeros(50), truth))
    assert constant.value == 0.5
    reach = (1 - perfect.interval.low) / 2
    assert (constant.interval.low, constant.interval.high) == pytest.approx((0.5 - reach, 0.5 + reach))


def test_flipped_labels_mirror_the_interval():
    """One minus the ends, in reverse, up to the noise of the draws."""
    scores = gaussian(1.0, 80, 80, 3)
    straight = auc_estimate(scores, Bootstrap(resamples=4000))
    flipped = auc_estimate(MembershipScores.of(scores.scores, ~scores.members), Bootstrap(resamples=4000))
    assert flipped.value == pytest.approx(1 - straight.value, abs=1e-15)
    assert flipped.interval.low == pytest.approx(1 - straight.interval.high, abs=0.01)


def test_one_member_has_no_interval():
    """The value stays; the reason takes the place of the interval."""
    estimate = auc_estimate(MembershipScores.of([1.0, 0.0, 0.5], [True, False, False]))
    assert estimate.value == 1
    assert isinstance(estimate.interval, NotAvailable)


@pytest.mark.parametrize(("target", "nonmembers"), [(0.1, 200), (0.01, 500), (0.01, 100)])
def test_tpr_at_the_true_rate_is_covered(target, nonmembers):
    """At least as often as it says; the binomial interval at the observed threshold is not made for that."""
    truth = float(norm.sf(norm.isf(target) - 1.5))
    curves = [roc_curve(gaussian(1.5, 200, nonmembers, seed)) for seed in range(150)]
    assert share([tpr_interval_at_target(curve, target) for curve in curves], truth) >= 0.95
    ends = np.array([[one.low, one.high] for one in (tpr_interval_at_target(curve, target) for curve in curves)])
    assert ends[:, 1].mean() < 1
    if target * nonmembers >= 5:
        assert ends[:, 0].mean() > 0, "it says something"


def test_tpr_at_the_true_rate_by_hand():
    """1000 non-members at 0.1 %: the threshold may lie above all of them, or below the 5 highest."""
    outside, inside = np.arange(1000, 0, -1.0), np.full(10, 997.5)
    curve = roc_curve(MembershipScores.of(np.append(inside, outside), np.arange(1010) < 10))
    interval = tpr_interval_at_target(curve, 0.001)
    assert (interval.low, interval.high) == (0.0, 1.0)
    low = roc_curve(MembershipScores.of(np.append(np.full(10, 0.5), outside), np.arange(1010) < 10))
    assert tpr_interval_at_target(low, 0.001).high == pytest.approx(clopper_pearson(0, 10, 0.975).high)
    for target in (0.0, 1.0):
        with pytest.raises(UserError, match="target FPR"):
            tpr_interval_at_target(curve, target)


def test_constant_scores_cover_a_tpr_of_zero():
    """Ties are never split: no threshold keeps the rate below the target."""
    curve = roc_curve(MembershipScores.of(np.zeros(300), np.arange(300) < 100))
    assert tpr_interval_at_target(curve, 0.1).contains(0.0)


def test_interval():
    """Both ends belong to it."""
    interval = Interval(0.2, 0.6)
    assert interval.contains(0.2)
    assert interval.contains(0.6)
    assert not interval.contains(0.61)
    assert interval.half_width == pytest.approx(0.2)
