"""Our accountants against dp-accounting, an independent implementation, on histories such as runs have."""

import pytest
from accounting_oracle import fixed_size_oracle, pld_oracle, rdp_oracle

from app.privacy.accounting import Steps, composed_epsilon, epsilon, noise_for
from app.privacy.ledger import Ledger

DELTA = 1e-5

HISTORIES = {
    "one release": [Steps(1.0, 1.0, 1)],
    "all clients, twelve rounds": [Steps(2.2093902822337297, 1.0, 12)],
    "two rounds, then ten more with other noise": [
        Steps(0.9019676766708038, 1.0, 2),
        Steps(2.2093902822337297, 1.0, 10),
    ],
    "Poisson over clients": [Steps(1.0, 0.1, 100)],
    "Poisson, then more rounds with more noise": [Steps(1.0, 0.1, 50), Steps(1.7, 0.1, 150)],
    "another rate after newcomers": [Steps(1.2, 0.2, 30), Steps(1.2, 0.05, 60)],
    "DP-SGD, five steps in each of two rounds": [Steps(1.0, 0.2, 10)],
    "the second round four times, killed in three": [Steps(1.0, 0.2, 5), Steps(1.0, 0.2, 5 * 4)],
    "many small steps": [Steps(1.1, 256 / 60000, 14063)],
    "hardly any noise": [Steps(0.5, 0.02, 200), Steps(0.6, 1.0, 1)],
}


@pytest.mark.parametrize("name", HISTORIES)
def test_histories_cost_what_dp_accounting_says(name):
    """RDP to a hundredth of theirs and never below the truth; PRV to two hundredths of their PLD."""
    history = HISTORIES[name]
    own, tight = epsilon(history, DELTA), epsilon(history, DELTA, "prv")
    truth = pld_oracle(history, DELTA)
    assert own == pytest.approx(rdp_oracle(history, DELTA), rel=0.01)
    assert own > 0.995 * truth
    assert tight == pytest.approx(truth, rel=0.02)


@pytest.mark.parametrize("name", [name for name in HISTORIES if all(steps.rate == 1 for steps in HISTORIES[name])])
def test_releases_without_sampling_are_composed_exactly(name):
    """NbAFL's uploads: the closed form is what PLD finds numerically."""
    assert composed_epsilon(HISTORIES[name], DELTA) == pytest.approx(pld_oracle(HISTORIES[name], DELTA), rel=2e-3)


def test_more_rounds_at_the_new_noise_alone_would_understate():
    """What DP-FedAvg once claimed (8) for a run of two rounds that got ten more, and what it had really spent."""
    claimed, history = [Steps(2.2093902822337297, 1.0, 12)], HISTORIES["two rounds, then ten more with other noise"]
    assert rdp_oracle(claimed, DELTA) == pytest.approx(8.0, abs=0.05)
    assert pld_oracle(history, DELTA) == pytest.approx(11.0, abs=0.5)
    assert epsilon(history, DELTA) > 11


def test_noise_for_more_rounds_keeps_the_whole_history_within_the_target():
    """The oracle composes past and future."""
    past = [Steps(1.5, 0.3, 20)]
    more = noise_for(8.0, DELTA, [Steps(1.0, 0.3, 20)], past=past)
    assert rdp_oracle([*past, Steps(more, 0.3, 20)], DELTA) == pytest.approx(8.0, rel=0.01)


def test_restarts_of_a_ledger():
    """Under secret noise every attempt counts, under repeatable noise each round once."""
    secret, keyed = Ledger(), Ledger()
    for round_, attempt in ((0, "a"), (1, "a"), (1, "b"), (1, "c"), (1, "d")):
        secret.enter(round_, attempt, {0: Steps(1.0, 0.2, 5)})
        keyed.enter(round_, "", {0: Steps(1.0, 0.2, 5)})
    assert secret.epsilon(0, DELTA) == pytest.approx(rdp_oracle([Steps(1.0, 0.2, 25)], DELTA), rel=0.01)
    assert keyed.epsilon(0, DELTA) == pytest.approx(rdp_oracle([Steps(1.0, 0.2, 10)], DELTA), rel=0.01)


def test_the_poisson_number_does_not_bound_a_fixed_number_of_clients():
    """Ten of a hundred clients in every round: why DP-FedAvg calls its epsilon nominal there."""
    poisson, fixed = epsilon([Steps(2.0, 0.1, 100)], DELTA), fixed_size_oracle(2.0, 10, 100, 100, DELTA)
    assert fixed > 1.5 * poisson
