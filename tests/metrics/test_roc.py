"""ROC curve, area and TPR at a low FPR, against closed forms, definitions and two libraries."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from score_kit import gaussian, gaussian_auc, pair_wins, tied
from sklearn.metrics import roc_auc_score
from sklearn.metrics import roc_curve as sklearn_roc
from torchmetrics.functional.classification import binary_auroc

from app.common.errors import UserError
from app.metrics.membership import MembershipScores, NotAvailable
from app.metrics.roc import Decision, log_log_roc, roc_curve, tpr_at_fpr


def constant(members=3, nonmembers=1000):
    """Scores that say nothing."""
    return MembershipScores.of(np.full(members + nonmembers, 2.5), np.arange(members + nonmembers) < members)


@pytest.mark.parametrize("distance", [0.0, 0.5, 1.0, 2.0])
def test_area_of_gaussians(distance):
    """Phi(d / sqrt 2); for d = 1, the loss attack on N(0, 1) against N(1, 1), 0.760."""
    scores = gaussian(distance, 20_000, 20_000)
    assert roc_curve(scores).auc == pytest.approx(gaussian_auc(distance), abs=0.008)
    if distance == 1:
        assert gaussian_auc(1) == pytest.approx(0.760, abs=5e-4)


def test_tpr_of_gaussians():
    """The TPR at FPR f is Phi(d - z), z the quantile of 1 - f."""
    curve = roc_curve(gaussian(1.5, 40_000, 40_000))
    for target in (0.01, 0.1):
        assert tpr_at_fpr(curve, target).tpr == pytest.approx(norm.sf(norm.isf(target) - 1.5), abs=0.025)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=30))
def test_area_is_the_mann_whitney_statistic(rows):
    """Exactly, ties counting one half, whatever the order of the rows."""
    values, truth = np.array([float(v) for v, _ in rows]), np.array([m for _, m in rows])
    if truth.all() or not truth.any():
        return
    scores = MembershipScores.of(values, truth)
    curve = roc_curve(scores)
    assert curve.auc == pytest.approx(pair_wins(scores).mean(), abs=1e-15)
    again = scores.select(np.arange(values.size)[::-1])
    assert roc_curve(again).false_positives.tolist() == curve.false_positives.tolist()
    assert curve.thresholds[1:].tolist() == sorted(set(values.tolist()), reverse=True)


@pytest.mark.parametrize("scores", [gaussian(0.7, 300, 500), tied()], ids=["distinct", "ties"])
def test_libraries_agree(scores):
    """The same curve as scikit-learn, the same area as torchmetrics."""
    curve = roc_curve(scores)
    fpr, tpr, thresholds = sklearn_roc(scores.members, scores.scores, drop_intermediate=False)
    np.testing.assert_allclose(curve.fpr, fpr, atol=1e-15)
    np.testing.assert_allclose(curve.tpr, tpr, atol=1e-15)
    np.testing.assert_array_equal(curve.thresholds, thresholds)
    assert curve.auc == pytest.approx(roc_auc_score(scores.members, scores.scores), abs=1e-12)
    ranks = torch.tensor(np.argsort(np.argsort(scores.scores))) if scores.scores[0] % 1 else torch.tensor(scores.scores)
    area = binary_auroc(ranks.double() / 1000, torch.tensor(scores.members).long())
    assert curve.auc == pytest.approx(area.item(), abs=1e-6)


@pytest.mark.parametrize("scale", [1e-300, 1.0, 1e300])
@pytest.mark.parametrize("shift", [0.0, 40.0])
def test_only_the_order_of_the_scores_matters(scale, shift):
    """Whatever the scale and the origin."""
    scores = gaussian(1.0, 300, 300)
    moved = MembershipScores.of((scores.scores + shift) * scale, scores.members)
    assert roc_curve(moved).auc == roc_curve(scores).auc


def test_flips():
    """Negated scores or swapped labels give one minus the area; both together give it back."""
    scores = tied(3)
    area = roc_curve(scores).auc
    assert area != 0.5
    assert roc_curve(MembershipScores.of(-scores.scores, scores.members)).auc == pytest.approx(1 - area, abs=1e-15)
    assert roc_curve(MembershipScores.of(scores.scores, ~scores.members)).auc == pytest.approx(1 - area, abs=1e-15)
    assert roc_curve(MembershipScores.of(-scores.scores, ~scores.members)).auc == pytest.approx(area, abs=1e-15)


def test_constant_scores_find_nobody():
    """Area exactly one half; no point but (0, 0) keeps the FPR below a target."""
    curve = roc_curve(constant())
    assert curve.auc == 0.5
    assert curve.true_positives.tolist() == [0, 3]
    for target in (0.001, 0.01, 0.1):
        decision = tpr_at_fpr(curve, target)
        assert (decision.tpr, decision.fpr, decision.threshold) == (0.0, 0.0, math.inf)


def test_perfect_binary_score():
    """A block of ties enters whole: everybody is found without a false alarm."""
    truth = np.arange(1500) < 500
    curve = roc_curve(MembershipScores.of(truth.astype(float), truth))
    assert curve.auc == 1
    assert tpr_at_fpr(curve, 0.0).tpr == 1
    assert tpr_at_fpr(curve, 0.001) == Decision(1.0, 500, 500, 0, 1000, "evaluation")


def test_permuted_membership_is_chance():
    """50 areas spread about 1/2 as theory says: variance (n1 + n0 + 1) / (12 n1 n0)."""
    scores = gaussian(2.0, 200, 200)
    rng = np.random.default_rng(5)
    areas = [roc_curve(MembershipScores.of(scores.scores, rng.permutation(scores.members))).auc for _ in range(50)]
    deviation = math.sqrt(401 / (12 * 200 * 200))
    assert np.max(np.abs(np.array(areas) - 0.5)) <= 3.5 * deviation
    assert np.std(areas) == pytest.approx(deviation, rel=0.3)


def test_last_point_not_above_the_target():
    """Never the nearest point: it may lie above. Counts are compared, not rounded fractions."""
    outside = np.arange(100, 0, -1) * 10.0
    inside = np.array([1005.0, 985.0, 975.0, 700.5])
    curve = roc_curve(MembershipScores.of(np.append(inside, outside), np.arange(104) < 4))
    for allowed, found in ((1, 1), (2, 2), (3, 3), (29, 3), (30, 4), (31, 4)):
        decision = tpr_at_fpr(curve, allowed / 100)
        assert (decision.true_positives, decision.false_positives) == (found, allowed)
    assert 0.29 * 100 < 29, "the reason for the slack"
    assert tpr_at_fpr(curve, 0.0299).false_positives == 2
    assert tpr_at_fpr(curve, 1.0).tpr == 1


def test_point_before_a_block_of_ties():
    """A tie that would overshoot the target is left out whole."""
    scores = np.array([9.0, 8.0, 8.0, 8.0, 8.0, *range(-8, 0)])
    truth = np.array([True, True, True, *[False] * 10])
    decision = tpr_at_fpr(roc_curve(MembershipScores.of(scores, truth)), 0.1)
    assert (decision.true_positives, decision.false_positives, decision.threshold) == (1, 0, 9.0)


@pytest.mark.parametrize(("target", "needed"), [(0.001, 1000), (0.01, 100), (0.1, 10), (0.3, 4)])
def test_too_few_nonmembers(target, needed):
    """One false alarm must be allowed, or the rate cannot be told from 0."""
    enough = tpr_at_fpr(roc_curve(constant(5, needed)), target)
    assert isinstance(enough, Decision)
    refused = tpr_at_fpr(roc_curve(constant(5, needed - 1)), target)
    assert isinstance(refused, NotAvailable)
    assert f"at least {needed} non-members, there are {needed - 1}" in refused.reason


@pytest.mark.parametrize("target", [-0.1, 1.1, math.nan])
def test_impossible_target(target):
    """A percentage is not a fraction."""
    with pytest.raises(UserError, match="target FPR"):
        tpr_at_fpr(roc_curve(tied()), target)


def test_rates_of_a_decision():
    """Balanced accuracy and advantage do not depend on how many of each there are."""
    decision = Decision(0.0, 30, 40, 100, 400, "elsewhere")
    assert (decision.tpr, decision.fpr) == (0.75, 0.25)
    assert decision.advantage == 0.5
    assert decision.balanced_accuracy == 0.75


def test_logarithmic_axes():
    """From the smallest FPR that can be told from 0; the same rule as for a single target; no TPR of 0."""
    curve = roc_curve(gaussian(0.2, 50, 2000))
    fpr, tpr = log_log_roc(curve, 100)
    assert fpr[0] == pytest.approx(1 / 2000)
    assert fpr[-1] == tpr[-1] == 1
    assert np.ptp(np.diff(np.log(fpr))) < 1e-9
    for rate, share in zip(fpr, tpr, strict=True):
        expected = tpr_at_fpr(curve, min(1.0, float(rate))).tpr
        assert share == expected or (math.isnan(share) and expected == 0)
    assert np.isnan(log_log_roc(roc_curve(constant()))[1][0])
