"""Epsilon of a history: published values, closed forms, and the noise that a budget needs."""

import io
import itertools
import math
import warnings

import pytest
import torch
from scipy.stats import norm

from app.errors import UserError
from app.privacy import accounting
from app.privacy.accounting import Ledger, Steps, analytic_epsilon, epsilon, noise_for, version

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


def test_ledger_keeps_clients_apart():
    """Each client pays for its own steps; equal steps in a row are one entry."""
    ledger = Ledger()
    for steps in (Steps(1.0, 0.1, 10), Steps(1.0, 0.1, 10), Steps(1.0, 0.2, 5), Steps(1.0, 0.1, 10)):
        ledger.spend(3, steps)
    ledger.spend(1, Steps(1.0, 0.1, 10))
    assert ledger.histories == {
        3: [Steps(1.0, 0.1, 20), Steps(1.0, 0.2, 5), Steps(1.0, 0.1, 10)],
        1: [Steps(1.0, 0.1, 10)],
    }
    assert ledger.epsilon(1, DELTA) == epsilon([Steps(1.0, 0.1, 10)], DELTA)
    assert ledger.epsilon(3, DELTA) == epsilon([Steps(1.0, 0.1, 30), Steps(1.0, 0.2, 5)], DELTA)
    assert ledger.epsilon(7, DELTA) == 0
    assert ledger.epsilon(1, DELTA, [Steps(1.0, 0.1, 20)]) == epsilon([Steps(1.0, 0.1, 30)], DELTA)
    assert ledger.epsilon(1, DELTA) == epsilon([Steps(1.0, 0.1, 10)], DELTA), "looking ahead spends nothing"


def test_ledger_survives_a_checkpoint():
    """Through a file that is loaded without code."""
    ledger, file = Ledger("prv"), io.BytesIO()
    ledger.spend(0, Steps(1.25, 1 / 3, 7))
    ledger.spend(12, Steps(1.0, 0.1, 2))
    torch.save(ledger.state_dict(), file)
    file.seek(0)
    loaded = Ledger("prv")
    loaded.load_state_dict(torch.load(file, weights_only=True))
    assert loaded.histories == ledger.histories
    assert isinstance(loaded.histories[0][0].count, int)


def test_equal_histories_are_computed_once(monkeypatch):
    """PRV is slow: unchanged histories and clients that did the same share the result."""
    calls = []
    original = accounting._prv_epsilon
    monkeypatch.setattr(accounting, "_prv_epsilon", lambda *given: calls.append(given) or original(*given))
    ledger = Ledger("prv")
    for client in range(5):
        ledger.spend(client, Steps(1.37, 0.1, 10))
        ledger.spend(client, Steps(1.37, 0.2, 10 + client % 2))
    found = [ledger.epsilon(client, DELTA) for client in range(5) for _ in range(3)]
    assert len(calls) == 2
    assert len(set(found)) == 2


def test_version_names_the_library():
    """For the record of a run."""
    assert version().split()[0] == "opacus"
    assert version().split()[1][0].isdigit()
