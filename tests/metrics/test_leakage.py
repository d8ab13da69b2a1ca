"""Everything an attack is reported with, in one call."""

import numpy as np
import pytest
from score_kit import gaussian

from app.common.errors import UserError
from app.metrics.bootstrap import Bootstrap
from app.metrics.intervals import auc_estimate, clopper_pearson
from app.metrics.leakage import TprAtFpr, known_threshold, measure_leakage
from app.metrics.membership import MembershipScores, NotAvailable
from app.metrics.roc import Decision, roc_curve, tpr_at_fpr
from app.metrics.thresholds import decide_with_knowledge

FAST = Bootstrap(resamples=100)


def knowledge():
    """Samples the attacker knows, none of them evaluated."""
    known = gaussian(1.0, 40, 40, 9)
    return MembershipScores.of(known.scores, known.members, known.samples + 10**6)


def test_parts_come_from_their_functions():
    """Nothing is computed twice in two ways."""
    scores = gaussian(1.0, 300, 1000)
    leakage = measure_leakage(scores, knowledge(), bootstrap=FAST)
    assert (leakage.members, leakage.nonmembers) == (300, 1000)
    assert leakage.auc == auc_estimate(scores, FAST)
    assert leakage.known == known_threshold(decide_with_knowledge(scores, knowledge()))
    assert leakage.known.decision.chosen_on == "knowledge"
    assert leakage.optimistic.chosen_on == "evaluation"
    assert leakage.optimistic.advantage >= leakage.known.decision.advantage
    assert [one.target for one in leakage.tpr] == [0.001, 0.01, 0.1]
    for one in leakage.tpr:
        decision = tpr_at_fpr(roc_curve(scores), one.target)
        assert one.decision == decision
        assert one.tpr == clopper_pearson(decision.true_positives, 300)
        assert one.fpr == clopper_pearson(decision.false_positives, 1000)
        assert one.tpr_at_target.low <= one.tpr.low <= one.tpr.high <= one.tpr_at_target.high


def test_confidence_reaches_every_interval():
    """One setting."""
    leakage = measure_leakage(gaussian(1.0, 50, 100), knowledge(), bootstrap=Bootstrap(confidence=0.8, resamples=100))
    found = [leakage.auc.interval, leakage.known.advantage, leakage.known.balanced_accuracy]
    found += [interval for one in leakage.tpr[1:] for interval in (one.tpr, one.fpr, one.tpr_at_target)]
    assert {interval.confidence for interval in found} == {0.8}


def test_what_cannot_be_said_is_said_so():
    """Too few non-members for the smallest rate, and no knowledge for a threshold."""
    leakage = measure_leakage(gaussian(1.0, 50, 100), bootstrap=FAST)
    assert "needs at least 1000 non-members, there are 100" in leakage.tpr[0].reason
    assert all(isinstance(one, TprAtFpr) for one in leakage.tpr[1:])
    assert isinstance(leakage.known, NotAvailable)


def test_balanced_accuracy_follows_the_advantage():
    """(1 + advantage) / 2, interval included."""
    known = known_threshold(Decision(0.0, 56, 70, 48, 80, "knowledge"))
    assert known.balanced_accuracy.low == pytest.approx((1 + 0.0524) / 2, abs=5e-5)
    assert known.balanced_accuracy.high == pytest.approx((1 + 0.3339) / 2, abs=5e-5)


def test_inverted_scores_are_noticed():
    """Below chance beyond the interval; chance itself is not inverted."""
    scores = gaussian(1.0, 100, 100)
    assert measure_leakage(MembershipScores.of(scores.scores, ~scores.members), bootstrap=FAST).inverted
    assert not measure_leakage(scores, bootstrap=FAST).inverted
    chance = MembershipScores.of(scores.scores, np.random.default_rng(0).permutation(scores.members))
    mirrored = MembershipScores.of(scores.scores, ~chance.members)
    both = [measure_leakage(run, bootstrap=FAST) for run in (chance, mirrored)]
    assert min(one.auc.value for one in both) < 0.5
    assert not any(one.inverted for one in both)


def test_known_samples_are_refused_among_the_evaluated():
    """Unless published code is followed."""
    scores = gaussian(1.0, 50, 100)
    with pytest.raises(UserError, match="150 of the 150 known samples"):
        measure_leakage(scores, scores, bootstrap=FAST)
    assert decide_with_knowledge(scores, scores, rule="mean", allow_overlap=True).members == 50
