"""Epsilon of a history: published values, closed forms, and the noise that a budget needs."""

import itertools
import math
import warnings

import pytest
from opacus.accountants import PRVAccountant
from opacus.accountants.analysis.prv import PoissonSubsampledGaussianPRV
from scipy.stats import norm

from app.common.errors import UserError
from app.privacy.accounting import (
    Steps,
    _PRVAccountant,
    analytic_epsilon,
    composed_epsilon,
    composed_noise_for,
    epsilon,
    noise_for,
    version,
)

DELTA = 1e-5

ORACLES = [
    # history, delta, rdp, prv
    ([Steps(1.0, 1.0, 1)], DELTA, 4.729, 4.387),
    ([Steps(1.0, 0.01, 1000)], DELTA, 2.101, 1.838),
    ([Steps(1.1, 256 / 60000, 14063)], DELTA, 2.597, 2.392),
    ([Steps(1.0, 0.1, 100)], 1e-3, 5.641, 4.795),
]


@pytest.mark.parametrize(("history", "delta", "rdp", "prv"), ORACLES)
def test_known_budgets(history, delta, rdp, prv):
    """Both accountants give the values that other implementations give."""
    assert epsilon(history, delta) == pytest.approx(rdp, abs=6e-4)
    assert epsilon(history, delta, "prv") == pytest.approx(prv, abs=6e-4)


def test_rounds_are_composed_and_not_started_anew():
    """A hundred rounds of one epoch (500 samples in batches of 50) cost 27.2, not the 3.44 of the last one."""
    one_round = Steps(1.0, 0.1, 10)
    assert epsilon([one_round], DELTA) == pytest.approx(3.441, abs=1e-3)
    assert epsilon([one_round] * 100, DELTA) == pytest.approx(27.16, abs=0.01)
    assert epsilon([one_round] * 100, DELTA, "prv") == pytest.approx(25.2, abs=0.1)


def test_composition_without_sampling_is_one_mechanism_with_less_noise():
    """Four releases with noise 2 are one with noise 1, for every accountant."""
    for accountant in ("rdp", "prv"):
        four, one = (epsilon([Steps(z, 1.0, count)], DELTA, accountant) for z, count in ((2.0, 4), (1.0, 1)))
        assert four == pytest.approx(one, rel=1e-3)


@pytest.mark.parametrize("accountant", ["rdp", "prv"])
def test_order_does_not_matter(accountant):
    """Any order, merged or not, gives the same bits."""
    steps = [Steps(1.0, 0.1, 20), Steps(2.0, 0.05, 30), Steps(1.0, 0.1, 5)]
    found = {epsilon(order, DELTA, accountant) for order in itertools.permutations(steps)}
    assert found == {epsilon([Steps(2.0, 0.05, 30), Steps(1.0, 0.1, 25)], DELTA, accountant)}


@pytest.mark.parametrize("noise", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("rate", [0.01, 0.5, 0.9, 1.0])
def test_prv_never_exceeds_rdp_and_both_exceed_the_truth(noise, rate):
    """Without sampling the truth is known in closed form; with it, the budget cannot be larger than without."""
    for count in (1, 30):
        history = [Steps(noise, rate, count)]
        prv, rdp = epsilon(history, DELTA, "prv"), epsilon(history, DELTA)
        assert 0 < prv <= rdp <= epsilon([Steps(noise, 1.0, count)], DELTA) + 1e-9
        if rate == 1:
            assert analytic_epsilon(noise, DELTA, count) <= prv


@pytest.mark.parametrize("history", [[(1.0, 0.01, 1000)], [(0.3, 1.0, 1), (2.0, 0.003, 7)], [(40.0, 0.02, 3)]])
def test_the_grid_of_prv_is_as_wide_as_opacus_makes_it(history):
    """To the last bit, although fewer orders are looked at."""
    own, theirs = _PRVAccountant(), PRVAccountant()
    own.history = theirs.history = history
    prvs = [PoissonSubsampledGaussianPRV(rate, noise) for noise, rate, _ in history]
    settings = {"prvs": prvs, "num_self_compositions": [count for *_, count in history]}
    precision = {"eps_error": 0.01, "delta_error": DELTA / 1000}
    assert own._get_domain(**settings, **precision) == theirs._get_domain(**settings, **precision)


def test_more_steps_more_data_and_less_noise_cost_more():
    """Epsilon grows with the number of steps and the rate, and falls with the noise."""
    base = epsilon([Steps(1.0, 0.1, 50)], DELTA)
    dearer = [Steps(1.0, 0.1, 51), Steps(1.0, 0.11, 50), Steps(0.9, 0.1, 50)]
    assert all(epsilon([steps], DELTA) > base for steps in dearer)
    assert epsilon([Steps(1.0, 0.1, 50)], DELTA / 10) > base


def test_nothing_costs_nothing_and_no_noise_costs_everything():
    """Steps that were not taken do not count, not even without noise."""
    assert epsilon([], DELTA) == 0
    assert epsilon([Steps(0.0, 0.1, 0)], DELTA) == 0
    assert epsilon([Steps(1.0, 0.1, 10), Steps(0.0, 0.1, 1)], DELTA) == math.inf


@pytest.mark.parametrize(("noise", "rate", "count"), [(50.0, 0.01, 1), (0.05, 0.5, 5000), (1.0, 0.5, 10)])
def test_extreme_budgets_come_without_advice(noise, rate, count):
    """Tiny and huge budgets are finite, and Opacus does not ask for other orders."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for accountant in ("rdp", "prv"):
            assert math.isfinite(epsilon([Steps(noise, rate, count)], DELTA, accountant))


def test_impossible_steps_are_refused():
    """Negative noise, a rate of 0 or above 1, a negative count."""
    for wrong in ((-1.0, 0.1, 1), (1.0, 0.0, 1), (1.0, 1.1, 1), (1.0, 0.1, -1)):
        with pytest.raises(ValueError, match="impossible steps"):
            Steps(*wrong)


@pytest.mark.parametrize(("noise", "releases"), [(0.2, 1), (1.0, 1), (1.0, 7), (30.0, 1)])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-12])
def test_analytic_epsilon_solves_the_definition(noise, releases, delta):
    """Put back into the formula of the Gaussian mechanism's delta, it gives delta."""
    found, mu = analytic_epsilon(noise, delta, releases), math.sqrt(releases) / noise
    reached = norm.cdf(mu / 2 - found / mu) - math.exp(found) * norm.cdf(-mu / 2 - found / mu)
    assert reached == pytest.approx(delta, rel=1e-4)


def test_analytic_epsilon_at_its_ends():
    """The known value; nothing released; no noise; so much noise that delta alone covers it."""
    assert analytic_epsilon(1.0, DELTA) == pytest.approx(4.377, abs=1e-3)
    assert analytic_epsilon(1.0, DELTA, releases=0) == 0
    assert analytic_epsilon(0.0, DELTA) == math.inf
    assert analytic_epsilon(1e6, DELTA) == 0
    assert math.isfinite(analytic_epsilon(0.01, DELTA))


@pytest.mark.parametrize("accountant", ["rdp", "prv"])
@pytest.mark.parametrize("target", [0.5, 8.0])
def test_noise_for_a_budget_is_enough_and_hardly_more(accountant, target):
    """With it the plan stays within the budget, with a thousandth less it does not."""
    plan = [Steps(0.0, 0.1, 40), Steps(0.0, 1.0, 2)]
    found = noise_for(target, DELTA, plan, accountant)
    spent, too_much = (
        epsilon([Steps(noise, steps.rate, steps.count) for steps in plan], DELTA, accountant)
        for noise in (found, found * 0.998)
    )
    assert spent <= target < too_much


def test_noise_of_plans_without_steps_and_of_impossible_budgets():
    """Nothing planned needs no noise; a budget that no noise can keep to is refused with a remedy."""
    assert noise_for(1.0, DELTA, [Steps(1.0, 0.1, 0)], "rdp") == 0
    assert noise_for(1.0, DELTA, [], "rdp") == 0
    assert noise_for(math.inf, DELTA, [Steps(1.0, 0.1, 5)], "rdp") == 0
    for target in (1e-9, 0.0, -1.0):
        with pytest.raises(UserError, match=rf"no noise keeps epsilon within {target:g} (?s:.*)max_epochs"):
            noise_for(target, DELTA, [Steps(1.0, 0.1, 5)], "rdp")


def test_noise_for_more_rounds_counts_those_before():
    """Two rounds were planned to spend 8; ten more within 8 need far more noise, and ten within 6 are impossible."""
    past = [Steps(noise_for(8.0, DELTA, [Steps(1.0, 1.0, 2)]), 1.0, 2)]
    found = noise_for(8.0, DELTA, [Steps(1.0, 1.0, 10)], past=past)
    assert epsilon([*past, Steps(found, 1.0, 10)], DELTA) <= 8.0 < epsilon([*past, Steps(found / 1.01, 1.0, 10)], DELTA)
    assert found > 10 * past[0].noise
    with pytest.raises(UserError, match=r"within 6 at delta 1e-05 \(rdp accountant\), and 7.998 is spent"):
        noise_for(6.0, DELTA, [Steps(1.0, 1.0, 10)], past=past)


def test_gaussian_mechanisms_of_different_noise_compose():
    """Squared distances add up: noise 1 once and noise 2 three times is noise sqrt(4/7) once."""
    history = [Steps(1.0, 1.0, 1), Steps(2.0, 1.0, 3)]
    assert composed_epsilon(history, DELTA) == pytest.approx(analytic_epsilon(math.sqrt(4 / 7), DELTA), rel=1e-12)
    assert composed_epsilon([], DELTA) == 0
    assert composed_epsilon([*history, Steps(0.0, 1.0, 1)], DELTA) == math.inf
    with pytest.raises(ValueError, match="closed form"):
        composed_epsilon([Steps(1.0, 0.5, 1)], DELTA)


@pytest.mark.parametrize("target", [0.1, 8.0, 300.0])
def test_noise_of_further_gaussian_mechanisms(target):
    """Enough and hardly more, with and without a past; infinite where the past has spent all."""
    for past in ([], [Steps(2 * composed_noise_for(target, DELTA, 1), 1.0, 2)]):
        found = composed_noise_for(target, DELTA, 5, past)
        spent, too_much = (composed_epsilon([*past, Steps(z, 1.0, 5)], DELTA) for z in (found, found * 0.999))
        assert spent <= target < too_much
    assert composed_noise_for(target, DELTA, 1, [Steps(composed_noise_for(target, DELTA, 1), 1.0, 2)]) == math.inf
    assert composed_noise_for(1e12, DELTA, 5) == 0


def test_version_names_the_library():
    """For the record of a run."""
    assert version().split()[0] == "opacus"
    assert version().split()[1][0].isdigit()
