"""Measured epsilon: the Gaussian mechanism on one coordinate, exact rates, and verdicts on claims."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

from app.metrics.intervals import clopper_pearson
from app.metrics.membership import MembershipScores
from app.privacy.accounting import analytic_epsilon
from app.privacy.auditing.empirical import (
    MeasuredEpsilon,
    attack_epsilon,
    gaussian_epsilon,
    gaussian_fit,
    measured_epsilon,
    rates_epsilon,
    verdict_on,
)
from app.privacy.statements import PrivacyStatement

DELTA = 1e-5
MEASURED = MeasuredEpsilon(DELTA, 1.0, 2.0, 5.0, 4.0, 3.0, 1.0, 100, 50, 30, 29)


def gaussian_mechanism(noise, trials, generator):
    """One coordinate, 1 for members and 0 for others, with noise of that standard deviation."""
    members = np.arange(trials) % 2 == 0
    return MembershipScores.of(members + noise * generator.normal(size=trials), members)


@pytest.mark.parametrize("noise", [0.7, 1.5])
def test_the_gaussian_mechanism_on_one_coordinate(noise):
    """Below the exact epsilon in all but one in twenty draws, and above half of it."""
    generator, truth = np.random.default_rng(1), analytic_epsilon(noise, DELTA)
    found = np.array(
        [attack_epsilon(gaussian_mechanism(noise, 400_000, generator), DELTA, generator) for _ in range(8)]
    )
    fits = [gaussian_fit((one := gaussian_mechanism(noise, 2000, generator)).scores, one.members) for _ in range(100)]
    limits = np.array([gaussian_epsilon(fit.low, DELTA) for fit in fits])
    for bounds in (found, limits):
        assert (bounds > truth).sum() <= binom.ppf(0.999, len(bounds), 0.05)
    assert found.mean() > truth / 2
    assert limits.mean() > 0.8 * truth
    assert np.mean([fit.mu for fit in fits]) == pytest.approx(1 / noise, rel=0.02)


def test_one_run_on_gaussian_mechanisms():
    """All bounds of one run lie below the exact epsilon, the one without assumptions lowest."""
    generator, truth = np.random.default_rng(2), analytic_epsilon(1.0, DELTA)
    for _ in range(5):
        inserted = generator.random(1000) < 0.5
        measured = measured_epsilon(generator.normal(size=1000) + inserted, inserted, DELTA)
        assert 0 < measured.bound < measured.most < truth
        assert measured.most > truth / 3
        assert (measured.canaries, measured.inserted) == (1000, int(inserted.sum()))


def test_rates_by_hand():
    """The larger of the two ratios, with limits that hold together; nothing from no difference."""
    tpr, fpr = clopper_pearson(90, 100).low, clopper_pearson(5, 100).high
    by_hand = max(math.log((tpr - DELTA) / fpr), math.log((1 - fpr - DELTA) / (1 - tpr)))
    assert rates_epsilon(90, 100, 5, 100, DELTA) == pytest.approx(by_hand)
    assert rates_epsilon(95, 100, 10, 100) == pytest.approx(rates_epsilon(90, 100, 5, 100))
    assert rates_epsilon(50, 100, 50, 100) == 0.0
    assert rates_epsilon(100, 100, 0, 100, 0.99) == 0.0


def test_an_attack_without_success():
    """Scores that mean nothing give a bound above 0 in no more than one of twenty draws: the threshold is not judged
    by what it was chosen on."""
    generator = np.random.default_rng(4)
    members = np.arange(200) % 2 == 0
    drawn = [MembershipScores.of(generator.normal(size=200), members) for _ in range(50)]
    assert sum(attack_epsilon(one, 0.0, generator) > 0 for one in drawn) <= binom.ppf(0.999, 50, 0.05)
    assert attack_epsilon(MembershipScores.of([1.0, 0.0], [True, False]), 0.0, generator) == 0.0


def test_fit_needs_spread():
    """Without two canaries of a kind, or any difference between scores, there is none."""
    assert gaussian_fit([1, 2, 3], [True, False, False]) is None
    assert gaussian_fit([1, 1, 1, 1], [True, True, False, False]) is None
    upside_down = gaussian_fit([0, 0.1, 5, 5.1], [True, True, False, False])
    assert (upside_down.mu, upside_down.low) == (0.0, 0.0)
    assert gaussian_epsilon(0.0, DELTA) == 0.0
    assert gaussian_epsilon(1001.0, DELTA) == pytest.approx(
        gaussian_epsilon(999.0, DELTA) * (1001 / 999) ** 2, rel=1e-4
    )
    assert gaussian_epsilon(1e12, DELTA) == pytest.approx(5e23)


def test_verdicts():
    """A claim is refuted by what is above it, with the assumption that this takes, and by nothing else."""
    claim = PrivacyStatement("M", "sample", "all", 0.5, DELTA, "add or remove one", "", "", 1.0, 1.0)
    expected = {
        0.5: "refuted",
        1.5: "refuted as a Gaussian mechanism",
        2.5: "refuted if scores are normal",
        3.0: "consistent",
        math.inf: "consistent",
    }
    assert {one: verdict_on(replace(claim, epsilon=one), MEASURED) for one in expected} == expected
    without = replace(MEASURED, fitted=math.nan, fitted_low=math.nan, fitted_least=math.nan)
    assert verdict_on(replace(claim, epsilon=2.5), without) == "consistent"
