"""Decisions at a threshold: whose knowledge it comes from decides what the number means."""

import math

import numpy as np
import pytest
from scipy.stats import norm
from score_kit import gaussian, tied
from sklearn.metrics import balanced_accuracy_score

from app.common.errors import UserError
from app.metrics.membership import MembershipScores
from app.metrics.roc import roc_curve
from app.metrics.thresholds import (
    best_threshold,
    decide,
    decide_optimistically,
    decide_with_knowledge,
    mean_threshold,
    overlap,
)


def other(scores, start=10**6):
    """The same scores as other samples."""
    return MembershipScores.of(scores.scores, scores.members, scores.samples + start, scores.clients)


def test_agrees_with_scikit_learn():
    """Balanced accuracy; a score equal to the threshold is called a member."""
    scores = tied(1)
    decision = decide(scores, 3.0)
    expected = balanced_accuracy_score(scores.members, scores.scores >= 3.0)
    assert decision.balanced_accuracy == pytest.approx(expected, abs=1e-15)
    assert decision.advantage == pytest.approx(2 * expected - 1, abs=1e-15)
    assert decision.chosen_on == "elsewhere"
    with pytest.raises(UserError, match="NaN"):
        decide(scores, math.nan)


def test_advantage_of_gaussians():
    """Losses N(0, 1) against N(1, 1): 2 Phi(1/2) - 1 = 0.383 at the threshold 1/2, found on other samples."""
    knowledge, evaluation = gaussian(1.0, 5000, 5000, seed=1), other(gaussian(1.0, 20_000, 20_000, seed=2))
    decision = decide_with_knowledge(evaluation, knowledge)
    assert decision.advantage == pytest.approx(2 * norm.cdf(0.5) - 1, abs=0.02)
    assert decision.threshold == pytest.approx(0.5, abs=0.3)
    assert decision.chosen_on == "knowledge"


def test_threshold_ignores_the_evaluated_samples():
    """Changing the evaluated scores changes the decision, not the threshold."""
    knowledge = gaussian(1.0, 50, 50, seed=1)
    first = decide_with_knowledge(other(gaussian(1.0, 80, 80, seed=2)), knowledge)
    second = decide_with_knowledge(other(gaussian(3.0, 80, 80, seed=3)), knowledge)
    assert first.threshold == second.threshold == best_threshold(roc_curve(knowledge))
    assert first.advantage != second.advantage


def test_chance_stays_chance_with_knowledge_only():
    """The best threshold of the evaluated samples finds an advantage in noise; a known one does not."""
    honest, flattering = [], []
    for seed in range(60):
        evaluation = other(gaussian(0.0, 100, 100, seed=seed))
        honest.append(decide_with_knowledge(evaluation, gaussian(0.0, 30, 30, seed=1000 + seed)).advantage)
        decision = decide_optimistically(evaluation)
        assert decision.chosen_on == "evaluation"
        flattering.append(decision.advantage)
    assert abs(np.mean(honest)) < 3 * math.sqrt(2 * 0.25 / 100 / 60)
    assert np.mean(flattering) > 0.08
    assert min(flattering) >= 0


def test_best_threshold_by_hand():
    """Midway in the gap; of equally good ones the one that calls the fewest; infinite at the ends."""
    curve = roc_curve(MembershipScores.of([5.0, 4.0, 1.0, 0.0], [True, True, False, False]))
    assert best_threshold(curve) == 2.5
    equal = roc_curve(MembershipScores.of([4.0, 3.0, 2.0, 1.0], [True, False, True, False]))
    assert best_threshold(equal) == 3.5
    assert best_threshold(roc_curve(MembershipScores.of([1.0, 1.0], [True, False]))) == math.inf, "nobody"
    inverted = MembershipScores.of([1.0, 2.0], [True, False])
    assert decide(inverted, best_threshold(roc_curve(inverted))).advantage == 0
    neighbours = MembershipScores.of([np.nextafter(1.0, 2.0), 1.0], [True, False])
    assert decide(neighbours, best_threshold(roc_curve(neighbours))).advantage == 1
    huge = MembershipScores.of([1.7e308, -1.7e308, 1.6e308], [True, False, False])
    assert math.isfinite(best_threshold(roc_curve(huge)))


@pytest.mark.parametrize("seed", range(5))
def test_best_threshold_is_best(seed):
    """No threshold does better."""
    scores = tied(seed)
    best = decide_optimistically(scores).advantage
    assert best == max(decide(scores, cut).advantage for cut in [*np.unique(scores.scores), math.inf])


def test_mean_rule_is_strict():
    """A loss equal to the mean of the known members' losses is not below it."""
    knowledge = MembershipScores.of([-1.0, -3.0, -9.0], [True, True, False])
    evaluation = MembershipScores.of([-2.0, -1.9, -2.1, -1.0], [True, True, True, False], samples=[7, 8, 9, 10])
    decision = decide_with_knowledge(evaluation, knowledge, rule="mean")
    assert (decision.true_positives, decision.false_positives) == (1, 1)
    assert mean_threshold(knowledge) > -2


def test_known_samples_are_not_evaluated():
    """Refused, with the count, unless the published protocol is followed knowingly."""
    evaluation = gaussian(1.0, 20, 20)
    knowledge = evaluation.select(np.argsort(~evaluation.members, kind="stable")[[0, 1, 2, -1]])
    assert overlap(evaluation, knowledge) == 4
    with pytest.raises(UserError, match="4 of the 4 known samples are also evaluated"):
        decide_with_knowledge(evaluation, knowledge)
    assert decide_with_knowledge(evaluation, knowledge, allow_overlap=True).members == 20
    elsewhere = MembershipScores.of(knowledge.scores, knowledge.members, knowledge.samples, knowledge.clients + 1)
    assert overlap(evaluation, elsewhere) == 0, "the same sample of another client is another row"
