"""RMIA: the share of the population that a sample dominates, against plain loops and on the toy."""

import math
from dataclasses import replace

import numpy as np
import pytest
from attack_kit import (
    NOBODY,
    area,
    fake_context,
    fake_model,
    found,
    logits_with_probability,
    plain_softmax,
)

from app.attacks.context import AttackContext
from app.attacks.membership.rmia import (
    OFFSETS,
    USUAL_OFFSET,
    RMIAOffline,
    RMIAOnline,
    Signals,
    dominance,
    offline_ratios,
    online_ratios,
    tuned_offset,
    unseen_population,
)
from app.attacks.membership.yeom import Yeom
from app.attacks.model_query import ModelQuery
from app.attacks.shadows.shadow_store import CentralShadows
from app.common.errors import UserError

BOTH = [RMIAOffline, RMIAOnline]


def some_signals(samples=40, models=6, seed=0):
    """Random probabilities; every sample is in half of the models."""
    rng = np.random.default_rng(seed)
    inside = rng.permuted(np.arange(models)[:, None] < np.full((1, samples), models // 2), axis=0)
    return Signals(np.log(rng.random(samples)), np.log(rng.random((models, samples))), inside)


@pytest.mark.parametrize("gamma", [1.0, 1.5, 4.0])
def test_dominance_counts_pairs(gamma):
    """Pair by pair, with ties, which do not count."""
    rng = np.random.default_rng(0)
    ratios, others = np.log(rng.integers(1, 9, 50) / 4), np.log(rng.integers(1, 9, 30) / 4)
    limit = math.log(gamma)
    expected = [sum(ratio - limit > other for other in others) / 30 for ratio in ratios]
    np.testing.assert_array_equal(dominance(ratios, others, gamma), expected)
    assert dominance(ratios, others, 1e9).max() == 0


@pytest.mark.parametrize("gamma", [1.0, 2.0])
def test_a_copy_in_the_population_never_raises_a_score(gamma):
    """A sample does not dominate itself, so its share can only fall."""
    rng = np.random.default_rng(1)
    ratios, others = rng.normal(size=200), rng.normal(size=50)
    before = dominance(ratios, others, gamma)
    for ratio, share in zip(ratios, before, strict=True):
        assert dominance(np.array([ratio]), np.append(others, ratio), gamma)[0] <= share


@pytest.mark.parametrize("a", [0.0, 0.3, 1.0])
def test_offline_ratio_follows_its_definition(a):
    """p / (((1 + a) p_out + 1 - a) / 2) with the models without the sample only."""
    signals = some_signals()
    for row, ratio in enumerate(offline_ratios(signals, a)):
        without = [
            math.exp(p) for p, known in zip(signals.shadows[:, row], signals.inside[:, row], strict=True) if not known
        ]
        expected = ((1 + a) * sum(without) / len(without) + 1 - a) / 2
        assert ratio == pytest.approx(signals.target[row] - math.log(expected), abs=1e-12)


def test_online_ratio_follows_its_definition():
    """p / mean over all models where half of them have the sample; else both halves still weigh the same."""
    signals = some_signals()
    expected = signals.target - np.log(np.exp(signals.shadows).mean(axis=0))
    np.testing.assert_allclose(online_ratios(signals), expected, atol=1e-12)
    odd = Signals(signals.target, signals.shadows[:5], signals.inside[:5])
    for row, ratio in enumerate(online_ratios(odd)):
        known = odd.inside[:, row]
        halves = [np.exp(odd.shadows[side, row]).mean() for side in (known, ~known)]
        assert ratio == pytest.approx(odd.target[row] - math.log(sum(halves) / 2), abs=1e-12)


def test_tiny_probabilities_stay_apart():
    """Probabilities that a float cannot hold are told apart by their logarithms."""
    signals = Signals(np.array([-900.0, -800.0]), np.full((2, 2), -850.0), np.array([[True] * 2, [False] * 2]))
    np.testing.assert_allclose(offline_ratios(signals, 1.0), [-50, 50])
    np.testing.assert_allclose(online_ratios(signals), [-50, 50])
    assert np.isfinite(offline_ratios(signals, 0.5)).all()


def constant_context(classes=3, models=4):
    """All models give every sample the same probability; ids 0 to 19 are audited, 20 to 59 public, the rest known."""
    labels = np.arange(100) % classes
    table = logits_with_probability(np.full(100, 0.7), labels, classes)
    known = {}
    for number in range(models):
        inside = np.append(np.arange(20)[number % 2 :: 2], np.arange(60 + number, 100, 3))
        known[f"shadow-{number}"] = (inside, np.setdiff1d(np.r_[0:20, 60:100], inside))
    tables = dict.fromkeys(["target", *known], table)
    return fake_context(tables, labels, known, classes, population=np.arange(20, 60)), np.arange(20)


@pytest.mark.parametrize("attack", [RMIAOffline(), RMIAOffline(a=0.3), RMIAOffline(a=1.0), RMIAOnline()])
def test_constant_probabilities_are_ties(attack):
    """Nobody dominates anybody: AUC exactly 1/2."""
    context, samples = constant_context()
    scores = attack.scores(fake_model("target"), samples, context)
    assert len(np.unique(scores)) == 1
    assert area(scores, samples < 10) == 0.5


def plain_shares(audit, kind, a=None):
    """Scores from logits, pair by pair."""
    shadows = audit.context().shadows(kind)

    def ratios(ids):
        def chances(model):
            answers = audit.query.responses(model, ids)
            return plain_softmax(answers.logits)[np.arange(len(ids)), answers.labels]

        mine, theirs = chances(audit.target), [chances(shadow.model) for shadow in shadows]
        for row, sample in enumerate(ids):
            usable = [
                p[row] for p, shadow in zip(theirs, shadows, strict=True) if a is None or sample not in shadow.members
            ]
            mean = sum(usable) / len(usable)
            yield mine[row] / (mean if a is None else ((1 + a) * mean + 1 - a) / 2)

    others = np.array(list(ratios(audit.knowledge.population)))
    return np.array([np.mean(ratio > others) for ratio in ratios(audit.samples)])


@pytest.mark.parametrize(("attack", "kind", "a"), [(RMIAOffline(a=0.4), "out", 0.4), (RMIAOnline(), "in-out", None)])
def test_agrees_with_a_plain_computation(attack, kind, a, noisy):
    """Up to one sample of the population for rounding."""
    np.testing.assert_allclose(noisy.scores(attack), plain_shares(noisy, kind, a), atol=1.5 / 1000)


@pytest.mark.parametrize("kind", BOTH)
def test_scores_are_shares(kind, memorised):
    scores = memorised.scores(kind())
    assert 0 <= scores.min() <= scores.max() <= 1


@pytest.mark.parametrize("kind", BOTH)
def test_beats_the_loss(kind, noisy):
    """Where samples differ in how hard they are: a larger area, and several times the members at 1 % false alarms."""
    mine, loss = noisy.scores(kind()), noisy.scores(Yeom())
    assert area(mine, noisy.truth) > area(loss, noisy.truth) + 0.05
    assert found(mine, noisy.truth) > 3 * found(loss, noisy.truth)


@pytest.mark.parametrize("kind", BOTH)
def test_a_shadow_can_play_the_target(kind, memorised):
    """Its members are found by comparison with the others."""
    assert area(*memorised.attacking(kind(), kind.shadows)) >= 0.9


def test_the_missing_model_tells_nothing():
    """Where a shadow plays the target, members have one model with them fewer: equal means must not show it."""
    inside = np.array([[True, False], [False, True], [False, True], [True, False], [False, True]])
    shadows = np.where(inside, math.log(0.9), math.log(0.1))
    ratios = online_ratios(Signals(np.full(2, math.log(0.5)), shadows, inside))
    np.testing.assert_allclose(ratios, 0, atol=1e-12)


def tuning_context(lift):
    """Models without a sample give it p_out, very different from sample to sample; models with it give lift(p_out)."""
    rng = np.random.default_rng(0)
    labels, chances = np.zeros(900, dtype=np.int64), rng.beta(0.6, 0.6, 900) * 0.98 + 0.01
    known, tables = {}, {"target": None}
    for number in range(8):
        inside = np.sort(rng.permutation(400)[:200])
        known[f"shadow-{number}"] = (inside, np.setdiff1d(np.arange(400), inside))
        raised = np.where(np.isin(np.arange(900), inside), lift(chances), chances)
        noisy = 1 / (1 + np.exp(-np.log(raised / (1 - raised)) - rng.normal(size=900)))
        tables[f"shadow-{number}"] = logits_with_probability(noisy, labels, 2)
    return fake_context(tables, labels, known, 2, population=np.arange(400, 900))


def test_offset_follows_what_training_does():
    """Models with a sample that answer 1 want a small a; models that multiply p_out want a large one."""
    sure = tuning_context(lambda p: np.full_like(p, 0.97))
    low = tuned_offset(sure, sure.shadows("out"), sure.knowledge.population, 1.0)
    same = tuning_context(lambda p: np.minimum(1.6 * p, 0.995))
    high = tuned_offset(same, same.shadows("out"), same.knowledge.population, 1.0)
    assert low in OFFSETS
    assert low < high


def test_offset_without_enough_shadows():
    """The usual value, with a remark."""
    context = tuning_context(lambda p: p)
    assert tuned_offset(context, context.shadows("out")[:1], context.knowledge.population, 1.0) == USUAL_OFFSET
    assert any("shadows.count" in note for note in context.notes)


def test_population_is_what_nobody_was_trained_on():
    """Audited samples and those of shadows are left out, and counted; a small rest is noted."""
    context, samples = constant_context()
    context.knowledge.population = np.arange(15, 62)
    left = unseen_population(context, samples, context.shadows("out"))
    np.testing.assert_array_equal(left, np.arange(20, 60))
    assert any("7 of 47" in note for note in context.notes)
    assert any("1/40" in note and "data.holdout.population" in note for note in context.notes)


@pytest.mark.parametrize("kind", BOTH)
def test_audited_samples_in_the_population_change_nothing(kind, toy, memorised):
    """Neither the copy of a sample nor members among the population."""
    knowledge = replace(toy.knowledge, population=np.append(toy.knowledge.population, toy.samples))
    context = AttackContext(knowledge, memorised.query, memorised.source, toy.memorised)
    np.testing.assert_array_equal(kind().scores(toy.memorised, toy.samples, context), memorised.scores(kind()))


@pytest.mark.parametrize("kind", BOTH)
def test_needs_a_population(kind, toy, memorised):
    """The message says how to set one aside."""
    knowledge = replace(toy.knowledge, population=NOBODY)
    context = AttackContext(knowledge, memorised.query, memorised.source, toy.memorised)
    with pytest.raises(UserError, match=r"data\.holdout\.population"):
        kind().scores(toy.memorised, toy.samples, context)
    context.knowledge = replace(knowledge, population=toy.samples)
    with pytest.raises(UserError, match=r"data\.holdout\.population"):
        kind().scores(toy.memorised, toy.samples, context)


def test_refuses_a_lab_without_shadows(toy):
    """No data of its own; no shadow beside the one that plays the target."""
    knowledge = replace(toy.knowledge, auxiliary=NOBODY)
    context = AttackContext(knowledge, ModelQuery(knowledge), CentralShadows(knowledge, toy.audited, 4), toy.memorised)
    with pytest.raises(UserError, match=r"data\.holdout\.shadow"):
        RMIAOffline().scores(toy.memorised, toy.samples, context)
    context, samples = constant_context(models=1)
    for attack in (RMIAOffline(), RMIAOnline()):
        with pytest.raises(UserError, match=r"shadows\.count"):
            attack.scores(fake_model("target"), samples, context.attacking(context.shadows("out")[0]))


def test_refuses_samples_without_models():
    """In every shadow, or online in none."""
    signals = some_signals()
    signals.inside[:, 4] = True
    for ratios in (lambda: offline_ratios(signals, 0.5), lambda: online_ratios(signals)):
        with pytest.raises(UserError, match=r"1 of 40 samples[\s\S]*shadows\.count"):
            ratios()
    signals.inside[:, 4] = False
    assert np.isfinite(offline_ratios(signals, 0.5)).all()
    with pytest.raises(UserError, match=r"shadows\.count"):
        online_ratios(signals)


@pytest.mark.parametrize("options", [{"gamma": 0.5}, {"gamma": math.nan}, {"gamma": math.inf}, {"a": -0.1}, {"a": 1.1}])
def test_refuses_bad_options(options):
    """A gamma below 1 would let a sample dominate its own copies; a outside of 0 to 1 is no share."""
    with pytest.raises(
        UserError,
        match=f"{next(iter(options))} of rmia-offline is .*\n  consequence: it must be float (>= 1|in .0, 1.)",
    ):
        RMIAOffline(**options)
