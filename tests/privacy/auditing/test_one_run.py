"""Bounds from one run: published numbers, randomised response, Gaussian mechanisms, and scores that mean nothing."""

import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from app.privacy.auditing.one_run import (
    CONFIDENCE,
    Bound,
    Guesses,
    epsilon_bound,
    guesses,
    mu_bound,
    p_value,
    refuted_epsilon,
    refuted_mu,
)

TAIL = 1 - CONFIDENCE
DRAWS = 200


def most_violations(draws=DRAWS):
    """So many draws may exceed the truth by chance, if one in twenty does: 99.9 % of the time."""
    return binom.ppf(0.999, draws, TAIL)


def gaussian_scores(mu, canaries, generator):
    """Scores of the Gaussian mechanism, and the coins."""
    inserted = generator.random(canaries) < 0.5
    return generator.normal(size=canaries) + mu * inserted, inserted


def test_a_thousand_right_guesses():
    """The p-value is the probability of randomised response to the power of the guesses."""
    assert refuted_epsilon(Guesses(1000, 1000, 1000), 0.0, TAIL) == pytest.approx(5.81, abs=0.005)
    accuracy = TAIL ** (1 / 1000)
    by_hand = math.log(accuracy / (1 - accuracy))
    assert refuted_epsilon(Guesses(1000, 1000, 1000), 0.0, TAIL) == pytest.approx(by_hand)


@pytest.mark.parametrize(("epsilon", "mean"), [(0, 0.0), (1, 0.88), (3, 2.78)])
def test_randomised_response(epsilon, mean):
    """Mean bounds as known, above the truth no more often than stated."""
    generator = np.random.default_rng(epsilon)
    right = generator.binomial(1000, 1 / (1 + math.exp(-epsilon)), DRAWS)
    bounds = np.array([refuted_epsilon(Guesses(1000, 1000, int(one)), 0.0, TAIL) for one in right])
    assert bounds.mean() == pytest.approx(mean, abs=0.04)
    assert (bounds > epsilon).sum() <= most_violations()


@pytest.mark.parametrize("delta", [1e-5, 1e-4])
@pytest.mark.parametrize("made", [Guesses(500, 60, 57), Guesses(200, 200, 150), Guesses(50, 20, 1)])
def test_delta_as_in_the_paper(made, delta):
    """The recursion of the paper's appendix, step by step; a bound falls with delta."""

    def published(epsilon):
        accuracy = 1 / (1 + math.exp(-epsilon))
        beta, alpha, total = binom.sf(made.correct - 1, made.made, accuracy), 0.0, 0.0
        for step in range(1, made.correct + 1):
            total += binom.pmf(made.correct - step, made.made, accuracy)
            alpha = max(alpha, total / step)
        return min(1.0, beta + alpha * delta * 2 * made.canaries)

    for epsilon in (0.0, 0.7, 2.0):
        assert p_value(made, epsilon, delta) == pytest.approx(published(epsilon), rel=1e-9)
    assert refuted_epsilon(made, delta, TAIL) <= refuted_epsilon(made, 0.0, TAIL)
    assert refuted_epsilon(made, 1 / (2 * made.canaries), TAIL) == 0.0


def test_scores_that_mean_nothing():
    """The best of several numbers of guesses exceeds 0 no more often than stated; so with all scores equal."""
    generator = np.random.default_rng(3)
    found = np.zeros(2)
    for _ in range(DRAWS):
        scores, inserted = gaussian_scores(0.0, 300, generator)
        found += [epsilon_bound(scores, inserted).value > 0, mu_bound(scores, inserted).value > 0]
    assert (found <= most_violations()).all()
    ties = [epsilon_bound(np.zeros(300), generator.random(300) < 0.5).value > 0 for _ in range(DRAWS)]
    assert sum(ties) <= most_violations()


def test_guesses_are_fixed_in_number():
    """As many as inserted as not, at both ends; coins do not change how many there are."""
    inserted = np.array([True, False, True, True, False, False])
    assert guesses([9, 1, 8, 7, 2, 3], inserted, 1.0) == Guesses(6, 6, 6)
    assert guesses([1, 9, 8, 7, 2, 3], inserted, 0.4) == Guesses(6, 2, 0)
    assert guesses([9, 1, 8, 7, 2, 3], ~inserted, 0.01) == Guesses(6, 2, 0)


@pytest.mark.parametrize("mu", [0.4, 1.0, 3.0])
@pytest.mark.parametrize("canaries", [20, 150])
def test_no_count_of_right_guesses_is_likelier_than_the_bound_allows(mu, canaries):
    """Independent Gaussian mechanisms, every one guessed in the best way: the exact tail refutes no mu below theirs."""
    accuracy = norm.cdf(mu / 2)
    for correct in range(canaries // 2, canaries + 1, 5):
        tail = float(binom.sf(correct - 1, canaries, accuracy))
        assert refuted_mu(Guesses(canaries, canaries, correct), tail) <= mu * (1 + 1e-6)


def test_bound_of_mu():
    """Below the truth, and no worse than a third of it; more right guesses refute more."""
    generator = np.random.default_rng(5)
    found = [mu_bound(*gaussian_scores(1.0, 1000, generator)).value for _ in range(20)]
    assert max(found) <= 1.0
    assert np.mean(found) > 1 / 3
    rising = [refuted_mu(Guesses(200, 100, correct), TAIL) for correct in range(50, 101, 10)]
    assert rising == sorted(rising)
    assert rising[0] == 0.0


def test_the_best_share_is_kept():
    """A bound knows its guesses; a few clear canaries among noise are found by abstaining."""
    generator = np.random.default_rng(8)
    inserted = generator.random(1000) < 0.5
    scores = generator.normal(size=1000) + np.where(np.arange(1000) < 40, 10 * (2 * inserted - 1.0), 0)
    bound = epsilon_bound(scores, inserted)
    assert isinstance(bound, Bound)
    assert bound.guesses.made < 100
    assert bound.value > 2 * refuted_epsilon(guesses(scores, inserted, 1.0), 0.0, TAIL / 4)
