"""Yeom's loss threshold: closed forms, known leakage, no leakage."""

import math

import numpy as np
import pytest
from attack_kit import (
    area,
    fake_context,
    fake_model,
    logits_with_probability,
    looped_area,
    plain_softmax,
)
from scipy.stats import norm

from app.attacks.membership.yeom import Yeom
from app.metrics.membership import MembershipScores
from app.metrics.thresholds import decide_optimistically


def test_gaussian_losses():
    """Losses N(0, 1) of members against N(1, 1): AUC Phi(1 / sqrt 2) = 0.760, best advantage 2 Phi(1/2) - 1 = 0.383."""
    rng, side = np.random.default_rng(0), 20_000
    truth = rng.permutation(np.arange(2 * side) < side)
    losses = rng.normal(size=2 * side) + ~truth + 8.0  # a cross-entropy is positive; a shift changes no order
    labels = rng.integers(0, 3, 2 * side)
    context = fake_context({"target": logits_with_probability(np.exp(-losses), labels, 3)}, labels, {}, 3)
    scores = Yeom().scores(fake_model("target"), np.arange(2 * side), context)
    np.testing.assert_allclose(scores, -losses, rtol=1e-9)
    assert area(scores, truth) == pytest.approx(norm.cdf(1 / math.sqrt(2)), abs=0.01)
    assert decide_optimistically(MembershipScores.of(scores, truth)).advantage == pytest.approx(0.383, abs=0.015)


def test_agrees_with_a_plain_computation(noisy):
    """The area from saved logits, by loops over the definitions."""
    answers = noisy.query.responses(noisy.target, noisy.samples)
    chances = plain_softmax(answers.logits)
    losses = np.array([-math.log(chances[row, label]) for row, label in enumerate(answers.labels)])
    ours = area(noisy.scores(Yeom()), noisy.truth)
    assert ours == pytest.approx(looped_area(-losses, noisy.truth), abs=1e-4)
    assert 0.6 < ours < 0.9
