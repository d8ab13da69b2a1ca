"""The ledger: clients apart, attempts apart, repeated rounds once, through checkpoints of this and earlier versions."""

import io

import torch

from app.privacy import accounting
from app.privacy.accounting import Steps, epsilon
from app.privacy.ledger import Ledger, Spend

DELTA = 1e-5
TEN = Steps(1.0, 0.1, 10)


def spent(ledger, client=0, **settings):
    """Epsilon of a client."""
    return ledger.epsilon(client, DELTA, **settings)


def test_clients_pay_for_their_own_steps():
    """Looking ahead spends nothing."""
    ledger = Ledger()
    ledger.enter(0, "", {3: TEN, 1: TEN})
    ledger.enter(1, "", {3: Steps(1.0, 0.2, 5)})
    assert spent(ledger, 1) == epsilon([TEN], DELTA)
    assert spent(ledger, 3) == epsilon([TEN, Steps(1.0, 0.2, 5)], DELTA)
    assert spent(ledger, 7) == 0
    assert spent(ledger, 1, more=[TEN, TEN]) == epsilon([TEN] * 3, DELTA)
    assert spent(ledger, 1) == epsilon([TEN], DELTA)
    assert ledger.clients() == [1, 3]


def test_a_later_entry_of_an_attempt_replaces_the_one_before():
    """A client that refused to train is taken back."""
    ledger = Ledger()
    ledger.enter(0, "", {0: TEN, 1: TEN})
    ledger.enter(0, "", {1: TEN})
    assert (spent(ledger, 0), spent(ledger, 1)) == (0, epsilon([TEN], DELTA))
    assert ledger.clients() == [1]


def test_secret_attempts_add_up_and_repeated_rounds_do_not():
    """Four different uploads cost four, four equal ones cost one."""
    secret, keyed = Ledger(), Ledger()
    for attempt in "abcd":
        secret.enter(1, attempt, {0: TEN})
        keyed.enter(1, "", {0: TEN})
    assert spent(secret) == epsilon([TEN] * 4, DELTA)
    assert spent(keyed) == epsilon([TEN], DELTA)


def test_rounds_that_are_to_be_repeated_wait():
    """Until then decisions are those of the uninterrupted run; a statement counts them all the same."""
    ledger = Ledger()
    for round_ in range(3):
        ledger.enter(round_, "", {0: TEN})
    ledger.enter(1, "secret", {0: TEN})
    ledger.rewind(1)
    assert spent(ledger, everything=False) == epsilon([TEN] * 2, DELTA), "round 0 and the secret attempt"
    assert spent(ledger) == epsilon([TEN] * 4, DELTA)
    assert ledger.ahead(2) == {0: TEN}
    ledger.enter(1, "", {0: TEN})
    assert spent(ledger, everything=False) == epsilon([TEN] * 3, DELTA)
    assert spent(ledger) == epsilon([TEN] * 4, DELTA)
    assert not ledger.ahead(1)


def test_the_latest_noise_is_that_of_the_latest_round():
    """Whatever the order of entries; rounds without anybody do not count."""
    ledger = Ledger()
    assert ledger.latest_noise is None
    ledger.enter(4, "", {0: Steps(2.0, 1.0, 1)})
    ledger.enter(1, "", {0: Steps(3.0, 1.0, 1)})
    ledger.enter(5, "", {})
    assert ledger.latest_noise == 2.0
    ledger.rewind(2)
    assert ledger.latest_noise == 2.0


def test_it_survives_a_checkpoint():
    """Through a file that is loaded without code, with rounds that wait."""
    ledger, file = Ledger("prv"), io.BytesIO()
    ledger.enter(0, "", {0: Steps(1.25, 1 / 3, 7)})
    ledger.enter(1, "", {0: Steps(1.25, 1 / 3, 7), 12: TEN})
    ledger.enter(1, "secret", {0: TEN})
    ledger.rewind(1)
    torch.save(ledger.state_dict(), file)
    file.seek(0)
    loaded = Ledger("prv")
    loaded.load_state_dict(torch.load(file, weights_only=True))
    assert {client: spent(loaded, client) for client in (0, 12)} == {
        client: spent(ledger, client) for client in (0, 12)
    }
    assert loaded.entered(1, "") == {0: Steps(1.25, 1 / 3, 7), 12: TEN}


def test_a_checkpoint_of_an_earlier_version_counts():
    """It told no rounds; rounds to come add to it."""
    ledger = Ledger()
    ledger.load_state_dict({"3": [[1.0, 0.1, 20], [1.0, 0.2, 5], [1.0, 0.1, 10]]})
    ledger.rewind(4)
    ledger.enter(4, "", {3: TEN})
    assert spent(ledger, 3, everything=False) == epsilon([Steps(1.0, 0.1, 40), Steps(1.0, 0.2, 5)], DELTA)


def test_a_spend_survives_its_record():
    """As it is written to the run's folder."""
    spend = Spend("DPSGD", 4, "abc", {0: TEN, 7: Steps(1 / 3, 1.0, 1)})
    assert Spend.restored(spend.record()) == spend
    assert spend.record()["round"] == 5


def test_equal_histories_are_computed_once(monkeypatch):
    """PRV is slow: unchanged histories and clients that did the same share the result."""
    calls = []
    original = accounting._prv_epsilon
    monkeypatch.setattr(accounting, "_prv_epsilon", lambda *given: calls.append(given) or original(*given))
    ledger = Ledger("prv")
    ledger.enter(0, "", {client: Steps(1.37, 0.1, 10) for client in range(5)})
    ledger.enter(1, "", {client: Steps(1.37, 0.2, 10 + client % 2) for client in range(5)})
    found = [spent(ledger, client) for client in range(5) for _ in range(3)]
    assert len(calls) == 2
    assert len(set(found)) == 2
