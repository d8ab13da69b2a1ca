"""Shokri's attack models, on made-up responses and on the toy."""

from dataclasses import replace

import numpy as np
import pytest
from attack_kit import NOBODY, area, counted, fake_context, fake_model, logits_with_probability

from app.attacks.context import AttackContext
from app.attacks.membership import shokri
from app.attacks.membership.shokri import Shokri, attack_features
from app.attacks.membership.song_mittal import shadow_responses
from app.attacks.model_query import ModelQuery
from app.attacks.models import Responses
from app.attacks.shadows.shadow_store import CentralShadows
from app.common.errors import UserError

AUDITED, KNOWN = 100, 200
IDS = np.arange(AUDITED)


def sure_context(seed=0, labels=None, reverse=False, shadows=2):
    """Two classes where members have p = 1 to the last digits and others about 0.6; optionally reversed in class 1.

    Ids below 100 are audited, every second one a member; shadows know ids from 100 on, in the same way.
    """
    rng = np.random.default_rng(seed)
    count = AUDITED + shadows * KNOWN
    labels = rng.integers(0, 2, count) if labels is None else labels(count)
    truth = np.arange(count) % 2 == 0
    sure = truth ^ (labels == 1) if reverse else truth
    chances = np.where(sure, 1 - 1e-9, np.clip(rng.normal(0.6, 0.03, count), 0.5, 0.7))
    table = logits_with_probability(chances, labels, 2)
    ids = np.arange(count)
    known = {}
    for number in range(shadows):
        own = ids[AUDITED + number * KNOWN : AUDITED + (number + 1) * KNOWN]
        known[f"shadow-{number}"] = (own[truth[own]], own[~truth[own]])
    return fake_context(dict.fromkeys(["target", *known], table), labels, known, 2), truth[:AUDITED]


@pytest.mark.parametrize("sort", [False, True])
def test_sure_answers_are_members(sort):
    """Members with p = 1 against 0.6: AUC above 0.95."""
    context, truth = sure_context()
    scores = Shokri(sort=sort).scores(fake_model("target"), IDS, context)
    assert area(scores, truth) > 0.95
    np.testing.assert_array_equal(scores > 0, truth)
    assert context.notes == []


def test_each_class_has_its_own_model():
    """Where members of the second class are the unsure ones, one rule for both classes would fail."""
    context, truth = sure_context(reverse=True)
    assert area(Shokri().scores(fake_model("target"), IDS, context), truth) > 0.95
    by_confidence = context.query.responses(fake_model("target"), IDS).true_log_probabilities
    assert area(by_confidence, truth) < 0.7


def test_poor_classes_share_a_model():
    """Class 1 has 8 known samples: it takes the model of all classes, which is noted and told the label."""
    context, truth = sure_context(labels=lambda count: (np.arange(count) % 50 < 2).astype(np.int64))
    scores = Shokri().scores(fake_model("target"), IDS, context)
    assert area(scores, truth) > 0.95
    assert any("1 of 2 classes share one attack model" in note for note in context.notes)
    context, truth = sure_context(reverse=True)
    assert area(Shokri(fewest=10_000).scores(fake_model("target"), IDS, context), truth) > 0.95


def test_common_model_takes_a_part_of_many_rows(monkeypatch):
    """Rows beyond the limit are left out at random, not by their order."""
    monkeypatch.setattr(shokri, "MOST_ROWS", 150)
    context, truth = sure_context()
    given = counted(monkeypatch, shokri, "_train")
    assert area(Shokri(fewest=10_000).scores(fake_model("target"), IDS, context), truth) > 0.95
    known, inside = shadow_responses(context, context.shadows("out"))
    taken, members, _ = given[-1]
    assert len(taken) == 150 < len(inside)
    place = {tuple(row): number for number, row in enumerate(attack_features(known)) if not inside[number]}
    drawn = [place[tuple(row[:2])] for row in taken[~members]]  # responses to non-members are all different
    assert len(set(drawn)) == len(drawn)
    assert max(drawn) > 300


def test_number_of_shadows():
    """One shadow suffices here; more than there are is noted."""
    context, truth = sure_context()
    assert area(Shokri(shadows_used=1).scores(fake_model("target"), IDS, context), truth) > 0.95
    assert context.notes == []
    Shokri(shadows_used=5).scores(fake_model("target"), IDS, context)
    assert any("from 2 shadows" in note for note in context.notes)


def test_models_are_trained_once_per_shadows(monkeypatch):
    """Another target with the same shadows costs no training; other shadows do."""
    calls = []
    train = shokri._train
    monkeypatch.setattr(shokri, "_train", lambda *given: calls.append(1) or train(*given))
    context, _ = sure_context()
    attack = Shokri()
    for _ in range(3):
        attack.scores(fake_model("target"), IDS, context)
    assert len(calls) == 2
    attack.scores(fake_model("target"), IDS, context.attacking(context.shadows("out")[0]))
    assert len(calls) == 4


def test_features():
    """Logarithms of probabilities, cut at -30; sorted ones do not depend on which class has which."""
    answers = Responses(np.array([[0.0, 100.0, 1.0], [1.0, 0.0, 100.0]]), np.array([0, 1]))
    assert attack_features(answers).min() == -30
    assert attack_features(answers).max() <= 0
    np.testing.assert_allclose(attack_features(answers)[0, 1], 0, atol=1e-12)
    first, second = attack_features(answers, sort=True)
    np.testing.assert_array_equal(first, second)
    assert np.all(np.diff(first) <= 0)


def test_scores_are_log_odds():
    """The same order and size as the probabilities of scikit-learn, but finite and untied at the ends."""
    rng = np.random.default_rng(0)
    truth = np.arange(300) % 2 == 0
    features = rng.normal(size=(300, 4)) + truth[:, None]
    model = shokri._train(features, truth, 7)
    chances = model.net.predict_proba(model.scale.transform(features))[:, 1]
    np.testing.assert_allclose(1 / (1 + np.exp(-model.log_odds(features))), chances, atol=1e-9)
    extreme = model.log_odds(np.array([[1e3] * 4, [2e3] * 4]))
    assert np.isfinite(extreme).all()
    assert extreme[0] != extreme[1]


def test_bad_input(toy):
    """No data, no shadow, and options that mean nothing."""
    knowledge = replace(toy.knowledge, auxiliary=NOBODY)
    context = AttackContext(knowledge, ModelQuery(knowledge), CentralShadows(knowledge, toy.audited, 4), toy.memorised)
    with pytest.raises(UserError, match=r"data\.holdout\.shadow"):
        Shokri().scores(toy.memorised, toy.samples, context)
    context, _ = sure_context(shadows=1)
    with pytest.raises(UserError, match=r"shadows\.count"):
        Shokri().scores(fake_model("target"), IDS, context.attacking(context.shadows("out")[0]))
    with pytest.raises(UserError, match=r"shadows_used of shokri is 0\n.*int >= 1"):
        Shokri(shadows_used=0)
    with pytest.raises(UserError, match=r"fewest of shokri is 1\n.*int >= 2"):
        Shokri(fewest=1)
