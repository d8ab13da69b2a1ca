"""Song and Mittal's four numbers, and their thresholds by class."""

import math
from dataclasses import replace

import numpy as np
import pytest
from attack_kit import NOBODY, area, fake_context, fake_model, logits_with_probability, plain_softmax

from app.attacks.context import AttackContext
from app.attacks.membership.song_mittal import Confidence, Correctness, Entropy, ModifiedEntropy, class_thresholds
from app.attacks.model_query import ModelQuery
from app.attacks.models import Responses
from app.attacks.shadows.shadow_store import CentralShadows
from app.common.errors import UserError

ALL = [Correctness, Confidence, Entropy, ModifiedEntropy]
TUNED = [Confidence, Entropy, ModifiedEntropy]


@pytest.mark.parametrize(("label", "expected"), [(0, 0.02107), (1, 4.1447)])
def test_modified_entropy_of_nine_tenths(label, expected):
    """p = (0.9, 0.1): 0.02107 if the first class is true, 4.1447 if the second."""
    answers = Responses(np.log([[0.9, 0.1]]), np.array([label]))
    assert -ModifiedEntropy().values(answers)[0] == pytest.approx(expected, rel=2e-4)


def test_numbers_follow_their_definitions():
    """All four, class by class in loops."""
    rng = np.random.default_rng(0)
    answers = Responses(rng.normal(size=(30, 4)) * 2, rng.integers(0, 4, 30))
    for row, (chances, label) in enumerate(zip(plain_softmax(answers.logits), answers.labels, strict=True)):
        doubt = sum(-p * math.log(1 - p) for index, p in enumerate(chances) if index != label)
        doubt -= (1 - chances[label]) * math.log(chances[label])
        assert ModifiedEntropy().values(answers)[row] == pytest.approx(-doubt, rel=1e-10)
        assert Entropy().values(answers)[row] == pytest.approx(sum(p * math.log(p) for p in chances), rel=1e-10)
        assert Confidence().values(answers)[row] == pytest.approx(math.log(chances[label]), rel=1e-10)
        assert Correctness().values(answers)[row] == (max(chances) == chances[label])


def test_modified_entropy_at_the_ends():
    """0 for certainty, finite for certainty in the wrong class, and in order where probabilities round to 1."""
    logits = np.array([[1e4, 0, 0], [50.0, 0, 0], [40.0, 0, 0], [0, 40.0, 0], [0, 1e4, 0]])
    doubts = -ModifiedEntropy().values(Responses(logits, np.zeros(5, dtype=np.int64)))
    assert doubts[0] == 0
    assert np.all(np.diff(doubts) > 0)
    assert np.isfinite(doubts).all()
    rest = 2 * math.exp(-50)
    assert doubts[1] == pytest.approx(rest**2 + 2 * math.exp(-50) ** 2, rel=1e-6, abs=0)


def test_classes_have_their_own_thresholds():
    """Members of one class look like non-members of the other: one threshold for both would fail."""
    values = np.array([1.0, 2.0, 3.0, 4.0, 11.0, 12.0, 13.0, 14.0])
    truth, labels = np.array([0, 0, 1, 1] * 2, dtype=bool), np.repeat([0, 1], 4)
    thresholds, sharing = class_thresholds(values, truth, labels, 2, 2)
    assert thresholds.tolist() == [2.5, 12.5]
    assert sharing == []


def test_poor_classes_share_a_threshold():
    """A class with too few samples, one without any, and one where no threshold is better than a coin."""
    values = np.array([1.0, 2.0, 3.0, 4.0, 1.0, 4.0, 9.0, 0.0])
    truth, labels = np.array([0, 0, 1, 1, 0, 1, 0, 1], dtype=bool), np.array([0, 0, 0, 0, 1, 1, 3, 3])
    thresholds, sharing = class_thresholds(values, truth, labels, 4, 2)
    assert sharing == [1, 2, 3]
    assert thresholds[0] == thresholds[1] == thresholds[2] == 2.5
    assert class_thresholds(values, truth, labels, 4, 1)[1] == [2, 3]
    assert class_thresholds(np.zeros(8), truth, labels, 4, 1)[0].tolist() == [0, 0, 0, 0]


def two_class_context(rows=40):
    """Members of class 0 have p = 0.9 and others 0.8; members of class 1 have 0.6 and others 0.5."""
    labels = np.tile([0, 1], rows)
    truth = np.repeat([True, False], rows)
    chances = np.where(labels == 0, 0.8, 0.5) + 0.1 * truth
    table = logits_with_probability(chances, labels, 2)
    ids = np.arange(2 * rows)
    context = fake_context({"target": table, "shadow": table}, labels, {"shadow": (ids[truth], ids[~truth])}, 2)
    return context, ids, truth


def test_zero_is_the_decision():
    """A score of 0 or more means a member, in every class."""
    context, ids, truth = two_class_context()
    scores = Confidence().scores(fake_model("target"), ids, context)
    np.testing.assert_array_equal(scores >= 0, truth)
    assert area(scores, truth) > area(context.query.responses(fake_model("target"), ids).true_log_probabilities, truth)
    assert context.notes == []


def test_sharing_is_noted():
    """A reader learns which thresholds are not a class's own."""
    context, ids, _ = two_class_context()
    assert np.isfinite(Confidence(fewest=100).scores(fake_model("target"), ids, context)).all()
    assert any("2 of 2 classes share one threshold" in note for note in context.notes)


def test_a_shadow_can_play_the_target(memorised):
    """Its members are found with the thresholds of the others."""
    for kind in TUNED:
        assert area(*memorised.attacking(kind(), "out")) >= 0.9


@pytest.mark.parametrize("kind", TUNED)
def test_needs_data_of_its_own(kind, toy):
    """Without them there are no shadows, and the message says what to set."""
    knowledge = replace(toy.knowledge, auxiliary=NOBODY)
    context = AttackContext(knowledge, ModelQuery(knowledge), CentralShadows(knowledge, toy.audited, 4), toy.memorised)
    with pytest.raises(UserError, match=r"data\.holdout\.shadow"):
        kind().scores(toy.memorised, toy.samples, context)
    assert Correctness().scores(toy.memorised, toy.samples, context).max() == 1


def test_bad_input():
    """No shadow left, and a minimum that means nothing."""
    context, ids, _ = two_class_context()
    with pytest.raises(UserError, match=r"shadows\.count"):
        Confidence().scores(fake_model("target"), ids, context.attacking(context.shadows("out")[0]))
    with pytest.raises(UserError, match=r"fewest of .* is 0\n.*int >= 1"):
        Entropy(fewest=0)
