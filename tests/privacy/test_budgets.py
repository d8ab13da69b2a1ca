"""Budgets of clients: what a round costs, what noise they need together, when they are out."""

import pytest

from app.privacy.accounting import Steps, epsilon
from app.privacy.budgets import Budgets, RoundOfSteps


def planned(target=None, delta=None, accountant="rdp"):
    """Three clients: 40 samples in 4 batches, 40 in 2, 1e6 in 10; two epochs each."""
    budgets = Budgets(accountant, target, delta)
    budgets.plan([RoundOfSteps(40, 4, 8), RoundOfSteps(40, 2, 4), RoundOfSteps(1_000_000, 10, 20)])
    budgets.noise = 1.5
    return budgets


def test_a_round_costs_steps_at_one_over_the_batches():
    """The rate is 1 / batches of an epoch, not batch size over samples."""
    assert planned().steps(0) == Steps(1.5, 0.25, 8)
    assert RoundOfSteps(105, 3, 3).rate == pytest.approx(1 / 3)


def test_delta_is_each_clients_own_unless_it_is_given():
    """A tenth of one over the samples, at most 1e-5."""
    assert [planned().delta(client) for client in range(3)] == [1e-5, 1e-5, pytest.approx(1e-7)]
    assert planned().largest_delta == 1e-5
    assert planned(delta=1e-3).delta(2) == planned(delta=1e-3).largest_delta == 1e-3


def test_common_noise_is_the_largest_that_a_client_needs():
    """Exactly the client with the dearest plan comes near its budget."""
    budgets, rounds = planned(target=4.0), {0: 3, 1: 9, 2: 1}
    budgets.noise = budgets.noise_for(rounds)
    spent = {
        client: epsilon([budgets.of(client).steps(budgets.noise, count)], budgets.delta(client))
        for client, count in rounds.items()
    }
    assert 3.9 < spent[1] <= 4.0
    assert max(spent[0], spent[2]) < 3.9


def test_a_smaller_delta_can_need_more_noise_than_more_steps():
    """Every client is looked at, not only the one with the most steps."""
    budgets = Budgets("rdp", 2.0, None)
    budgets.plan([RoundOfSteps(40, 10, 20), RoundOfSteps(10**9, 10, 19)])
    noise = budgets.noise_for({0: 1, 1: 1})
    assert epsilon([Steps(noise, 0.1, 19)], budgets.delta(1)) <= 2.0
    assert noise > 1.05 * budgets.noise_for({0: 1})


def test_noise_does_not_depend_on_the_order_of_clients():
    """Nor on clients that do the same."""
    first, second = planned(target=4.0), planned(target=4.0)
    assert first.noise_for({0: 3, 1: 2, 2: 1}) == second.noise_for({2: 1, 1: 2, 0: 3})


def test_clients_are_out_one_by_one():
    """As soon as one more round would exceed the target; never without a target."""
    budgets = planned(target=epsilon([Steps(1.5, 0.25, 24)], 1e-5))
    for round_ in range(3):
        assert not budgets.is_out(0)
        budgets.ledger.enter(round_, "", {0: budgets.steps(0)})
    assert budgets.is_out(0)
    assert budgets.out == 1
    assert not budgets.everybody_is_out
    assert budgets.spent() == ((0, epsilon([Steps(1.5, 0.25, 24)], 1e-5)),)
    unlimited = planned()
    unlimited.ledger.enter(0, "", {0: Steps(0.01, 1.0, 10_000)})
    assert unlimited.out == 0
