"""Quantities that attacks read from logits, against their definitions."""

import math

import numpy as np
import pytest
from attack_kit import plain_softmax

from app.attacks.models import Activations, Responses


def some(seed=0, rows=20, classes=5, scale=3.0):
    """Random logits and labels."""
    rng = np.random.default_rng(seed)
    return Responses(rng.normal(size=(rows, classes)) * scale, rng.integers(0, classes, rows))


def test_probabilities_and_losses():
    """Softmax, its logarithm, and the cross-entropy of the true class."""
    answers = some()
    expected = plain_softmax(answers.logits)
    own = [expected[row, label] for row, label in enumerate(answers.labels)]
    np.testing.assert_allclose(answers.probabilities, expected, rtol=1e-12)
    np.testing.assert_allclose(answers.probabilities.sum(axis=1), 1, rtol=1e-12)
    np.testing.assert_allclose(answers.true_log_probabilities, np.log(own), rtol=1e-10)
    np.testing.assert_allclose(answers.losses, [-math.log(p) for p in own], rtol=1e-10)
    assert np.all(answers.losses >= 0)


def test_margin_is_the_logit_of_the_true_probability():
    """log(p / (1 - p)) of the true class, not of the most probable one."""
    answers = some(1)
    own = plain_softmax(answers.logits)[np.arange(20), answers.labels]
    np.testing.assert_allclose(answers.margins, np.log(own / (1 - own)), rtol=1e-9)
    assert answers.margins.min() < 0 < answers.margins.max()


def test_margin_keeps_what_probabilities_lose():
    """Between logits of 1000 and 1001 the probability is 1 to the last digit; the margin still differs by 1."""
    answers = Responses(np.array([[1000.0, 0.0, 0.0], [1001.0, 0.0, 0.0], [0.0, 1000.0, 0.0]]), np.array([0, 0, 0]))
    assert answers.probabilities[0, 0] == answers.probabilities[1, 0] == 1
    assert answers.margins[1] - answers.margins[0] == pytest.approx(1, abs=1e-9)
    assert answers.margins[2] == pytest.approx(-1000, abs=1e-9)
    assert np.isfinite(answers.losses).all()


def test_bias_gradient_is_probability_less_label():
    """Against central differences of the loss by every logit."""
    answers, step = some(3), 1e-5
    gradients = Activations(answers, np.zeros((20, 1))).bias_gradients
    for label in range(5):
        shift = np.zeros(5)
        shift[label] = step
        up, down = (Responses(answers.logits + sign * shift, answers.labels).losses for sign in (1, -1))
        np.testing.assert_allclose(gradients[:, label], (up - down) / (2 * step), atol=1e-9)


def test_answers_follow_the_order_of_the_samples(memorised):
    """Asked in another order, the same samples get the same answers and labels."""
    order = np.random.default_rng(0).permutation(memorised.samples)
    straight = memorised.query.responses(memorised.target, memorised.samples)
    mixed = memorised.query.responses(memorised.target, order)
    np.testing.assert_array_equal(mixed.labels, memorised.knowledge.store.labels.numpy()[order])
    np.testing.assert_allclose(mixed.logits, straight.logits[order], atol=1e-4)
