"""LiRA: closed forms on synthetic Gaussians, a plain computation beside it, and what it refuses."""

import math
from dataclasses import replace

import numpy as np
import pytest
from attack_kit import NOBODY, area, found, looped_area, plain_softmax
from scipy.special import log_ndtr
from scipy.stats import norm

from app.attacks.context import AttackContext
from app.attacks.membership.lira import LiRAOffline, LiRAOnline, offline_scores, online_scores, shadow_values
from app.attacks.membership.yeom import Yeom
from app.attacks.model_query import ModelQuery
from app.attacks.shadows.shadow_store import CentralShadows
from app.common.errors import UserError

BOTH = [LiRAOffline, LiRAOnline]


class MaxConfidence(LiRAOffline):
    """A mistake of published code: the largest probability instead of the true class's."""

    def phi(self, responses):
        """Logit of the largest probability."""
        return replace(responses, labels=responses.logits.argmax(axis=1)).margins


def gaussians(samples, models, delta, spread=1.0, seed=0):
    """phi of a target and of models, half of which have each sample.

    Every sample has its own mean, far from the others'; being trained on adds delta.
    """
    rng = np.random.default_rng(seed)
    means = rng.normal(size=samples) * 10
    truth = rng.permutation(np.arange(samples) < samples // 2)
    inside = rng.permuted(np.arange(models)[:, None] < models // 2 + np.zeros((1, samples)), axis=0)
    target = means + delta * truth + rng.normal(size=samples) * spread
    shadows = means + delta * inside + rng.normal(size=(models, samples)) * spread
    return target, shadows, inside, truth


@pytest.mark.parametrize("variance", ["auto", "global", "sample"])
@pytest.mark.parametrize("compare", [offline_scores, online_scores])
@pytest.mark.parametrize(("delta", "spread"), [(1.0, 1.0), (3.0, 2.0)])
def test_synthetic_gaussians(variance, compare, delta, spread):
    """AUC Phi(delta / (spread sqrt 2)).

    Within 0.02: 3 standard deviations of the area are 0.01, and Gaussians fitted to 64 models cost up to 0.01.
    """
    target, shadows, inside, truth = gaussians(20_000, 128, delta, spread)
    expected = norm.cdf(delta / (spread * math.sqrt(2)))
    assert area(compare(target, shadows, inside, variance), truth) == pytest.approx(expected, abs=0.02)
    assert area(target, truth) < 0.6  # a threshold for all samples is lost between their means


def plain_phi(answers):
    """Logit of the true class's probability, from the probabilities of all classes."""
    values = []
    for chances, label in zip(plain_softmax(answers.logits), answers.labels, strict=True):
        others = sum(p for index, p in enumerate(chances) if index != label)
        values.append(math.log(chances[label]) - math.log(others))
    return values


def plain_gaussians(audit, shadows, heard, side):
    """Mean of every sample over the models with it, or without it, and the spread around all of these means."""
    members = [set(shadow.members.tolist()) for shadow in shadows]
    sets = [
        [row[i] for row, known in zip(heard, members, strict=True) if (sample in known) is side]
        for i, sample in enumerate(audit.samples.tolist())
    ]
    means = [sum(values) / len(values) for values in sets]
    squares = sum((value - mean) ** 2 for values, mean in zip(sets, means, strict=True) for value in values)
    return means, math.sqrt(squares / sum(len(values) - 1 for values in sets))


def plain_scores(audit, kind):
    """Scores of the paper from logits, sample by sample."""
    shadows = audit.context().shadows(kind)
    heard = [plain_phi(audit.query.responses(shadow.model, audit.samples)) for shadow in shadows]
    aimed = plain_phi(audit.query.responses(audit.target, audit.samples))
    means, spread = plain_gaussians(audit, shadows, heard, False)
    if kind == "out":
        return norm.logcdf(aimed, means, spread)
    ins, spread_in = plain_gaussians(audit, shadows, heard, True)
    return norm.logpdf(aimed, ins, spread_in) - norm.logpdf(aimed, means, spread)


def test_offline_agrees_with_a_plain_computation(noisy):
    """log Phi of our z is the paper's score, and ranks alike."""
    expected, ours = plain_scores(noisy, "out"), noisy.scores(LiRAOffline())
    np.testing.assert_allclose(log_ndtr(ours), expected, rtol=1e-6, atol=1e-9)
    assert area(ours, noisy.truth) == pytest.approx(looped_area(expected, noisy.truth), abs=1e-4)


def test_online_agrees_with_a_plain_computation(noisy):
    """Difference of two log-densities."""
    np.testing.assert_allclose(noisy.scores(LiRAOnline()), plain_scores(noisy, "in-out"), rtol=1e-6, atol=1e-6)


def test_order_of_strength(noisy):
    """At 1 % false alarms, knowing the models with the sample beats knowing those without, which beats the loss."""
    yeom, offline, online = (found(noisy.scores(kind()), noisy.truth) for kind in (Yeom, *BOTH))
    assert online >= offline > 3 * yeom
    assert online > 0.2


def test_the_largest_probability_would_be_told_apart(memorised, twins):
    """The mistake looks well on the memorised model, but a wrong label changes nothing: exactly a coin."""
    assert area(memorised.scores(MaxConfidence()), memorised.truth) >= 0.8
    assert area(twins.scores(MaxConfidence()), twins.truth) == 0.5


@pytest.mark.parametrize("kind", BOTH)
def test_a_shadow_can_play_the_target(kind, memorised):
    """Its members are found by comparison with the others."""
    assert area(*memorised.attacking(kind(), kind.shadows)) >= 0.9


@pytest.mark.parametrize("compare", [offline_scores, online_scores])
@pytest.mark.parametrize("variance", ["global", "sample"])
def test_equal_answers_are_ties(compare, variance):
    """Nothing to tell apart, whatever the number of models with a sample: equal and finite scores."""
    inside = np.random.default_rng(0).permuted(np.arange(9)[:, None] < np.full((1, 50), 4), axis=0)
    inside[:2, :25] = [[True], [False]]
    scores = compare(np.full(50, 0.1), np.full((9, 50), 0.1), inside, variance)
    assert np.isfinite(scores).all()
    assert len(np.unique(scores)) == 1


def test_offline_leaves_out_models_with_the_sample():
    """What they answer changes nothing."""
    target, shadows, inside, _ = gaussians(200, 12, 2.0)
    changed = np.where(inside, shadows + 1e3, shadows)
    np.testing.assert_array_equal(offline_scores(target, shadows, inside), offline_scores(target, changed, inside))
    assert np.all(offline_scores(target + 1, shadows, inside) > offline_scores(target, shadows, inside))


def test_surest_members_are_not_tied():
    """log Phi rounds to 0 beyond 38 standard deviations; z does not."""
    shadows = np.random.default_rng(0).normal(size=(8, 3))
    scores = offline_scores(np.array([50.0, 100.0, 200.0]), shadows, np.zeros((8, 3), dtype=bool))
    assert len(set(log_ndtr(scores))) == 1
    assert scores[0] < scores[1] < scores[2]


@pytest.mark.parametrize(("models", "own"), [(62, False), (63, True), (64, True)])
def test_variance_by_number_of_models(models, own):
    """From 32 models per sample each sample has its own, also where one of 64 plays the target."""
    target, shadows, inside, _ = gaussians(400, 64, 1.0)
    target, shadows, inside = target, shadows[:models], inside[:models]
    if models == 62:
        inside = np.arange(62)[:, None] < np.full((1, 400), 31)
    expected = online_scores(target, shadows, inside, "sample" if own else "global")
    np.testing.assert_array_equal(online_scores(target, shadows, inside), expected)
    other = online_scores(target, shadows, inside, "global" if own else "sample")
    assert not np.allclose(expected, other)


def test_refuses_samples_without_models():
    """Too few models with or without a sample: the message asks for more shadows."""
    target, shadows, inside, _ = gaussians(10, 8, 1.0)
    for count, compare in ((1, online_scores), (7, online_scores), (8, offline_scores)):
        poor = inside.copy()
        poor[:, 3] = np.arange(8) < count
        with pytest.raises(UserError, match=r"1 of 10 samples[\s\S]*shadows\.count"):
            compare(target, shadows, poor)
    poor[0, 3] = False
    assert np.isfinite(offline_scores(target, shadows, poor)).all()
    with pytest.raises(UserError, match=r"shadows\.count"):
        offline_scores(target, shadows, poor, "sample")
    with pytest.raises(UserError, match=r"shadows\.count"):
        offline_scores(target, shadows[:1], np.zeros((1, 10), dtype=bool))


def test_refuses_a_lab_without_shadows(toy, memorised):
    """No data of its own, and none left beside the one that plays the target."""
    knowledge = replace(toy.knowledge, auxiliary=NOBODY)
    context = AttackContext(knowledge, ModelQuery(knowledge), CentralShadows(knowledge, toy.audited, 4), toy.memorised)
    with pytest.raises(UserError, match=r"data\.holdout\.shadow"):
        LiRAOffline().scores(toy.memorised, toy.samples, context)
    heard, inside = shadow_values(LiRAOffline().phi, toy.samples, [], memorised.query)
    with pytest.raises(UserError, match=r"shadows\.count"):
        offline_scores(np.zeros(len(toy.samples)), heard, inside)


def test_refuses_an_unknown_variance():
    """Options are checked when the attack is made."""
    with pytest.raises(UserError, match="auto, global, sample"):
        LiRAOnline(variance="fixed")
