"""Budgets of DP-SGD in a federation: every round counts, nobody exceeds the target, interruptions change nothing."""

import json
import warnings
from collections import Counter

import dp_sgd_script
import pytest
import torch
from federation_kit import TINY_MLP, Blobs, Reports, make_trainer, run, sgd, small_federation
from process_kit import SCRIPTS, on_two_processes

from app.federation.hooks import FederatedCallback
from app.federation.local_training import LocalTraining
from app.privacy.accounting import Steps, epsilon
from callbacks.defenses.dp_sgd import DPSGD

SIZES = (5, 8, 11)
LOCAL = LocalTraining(batch_size=4, epochs=2, optimizer=sgd(0.2))
RATES = (1 / 2, 1 / 2, 1 / 3)
STEPS = (4, 4, 6)


def by_hand(client, rounds, noise, delta=1e-5, accountant="rdp"):
    """Epsilon of a client that took part in so many rounds."""
    return epsilon([Steps(noise, RATES[client], STEPS[client] * rounds)], delta, accountant)


@pytest.mark.parametrize("accountant", ["rdp", "prv"])
def test_rounds_add_up_to_what_the_accountant_says(accountant):
    """Rates are one over the batches of an epoch; the largest client budget is the federation's, not the sum."""
    defense, federation = DPSGD(noise=1.5, accountant=accountant), small_federation(local=LOCAL)
    run(federation, Blobs(SIZES), 2, [defense])
    statement = defense.statement(federation)
    expected = [by_hand(client, 2, 1.5, accountant=accountant) for client in range(3)]
    assert statement.clients == tuple(enumerate(expected))
    assert statement.epsilon == max(expected) == defense.measurements()["privacy/epsilon"]
    assert defense.measurements()["privacy/epsilon_mean"] == pytest.approx(sum(expected) / 3)
    assert (statement.unit, statement.adjacency, statement.noise, statement.clip) == (
        "sample",
        "add or remove one",
        1.5,
        1.0,
    )
    assert statement.sampling == "Poisson, rate 0.333 to 0.5"
    assert statement.accountant.startswith(f"{accountant} (opacus ")
    assert statement.delta == 1e-5
    assert not statement.nominal
    assert any("Mironov 2012" in note for note in statement.notes)


def test_local_steps_replace_epochs():
    """Three steps per round, whatever the client's size; delta as given."""
    defense = DPSGD(noise=1.5, delta=1e-3)
    federation = small_federation(local=LocalTraining(batch_size=4, steps=3, optimizer=sgd(0.2)))
    run(federation, Blobs(SIZES), 2, [defense])
    expected = [epsilon([Steps(1.5, rate, 6)], 1e-3) for rate in RATES]
    assert [value for _, value in defense.statement(federation).clients] == expected
    assert defense.statement(federation).delta == 1e-3


@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
def test_clients_pay_for_the_rounds_they_take_part_in(sampling):
    """No more and no less; a client that never took part has spent nothing."""
    defense = DPSGD(noise=1.5)
    federation = small_federation(local=LOCAL, participation=0.4, sampling=sampling, seed=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run(federation, Blobs(SIZES), 4, [defense])
    rounds = Counter(client for round_ in range(4) for client in federation.client_pool.participants(round_))
    assert len(set(rounds.values())) > 1, "what the test assumes"
    expected = tuple((client, by_hand(client, rounds[client], 1.5)) for client in sorted(rounds))
    assert defense.statement(federation).clients == expected


def test_a_dropped_update_is_paid_for():
    """The samples were used, whatever became of the update."""

    class Overflow(FederatedCallback):
        """One client's model ends with an infinite weight."""

        def on_client_end(self, trainer, federation, client):
            """After the last step."""
            if client.client == 1:
                next(client.net.parameters()).data.view(-1)[0] = float("inf")

    defense, federation = DPSGD(noise=1.5), small_federation(local=LOCAL)
    with pytest.warns(UserWarning, match="client 1 diverged"):
        run(federation, Blobs(SIZES), 1, [defense, Overflow()])
    assert dict(defense.statement(federation).clients)[1] == by_hand(1, 1, 1.5)


class Refusing(FederatedCallback):
    """One client refuses the first round."""

    def on_client_start(self, trainer, federation, client):
        """Before or after the defense has taken the network over."""
        if client.client == 1 and client.round == 0:
            client.refusal = "it does not like the model"


@pytest.mark.filterwarnings("ignore:round 1")
def test_a_round_that_a_client_refuses_costs_it_nothing():
    """It has taken no step on its data."""
    for order in ([DPSGD(noise=1.5), Refusing()], [Refusing(), DPSGD(noise=1.5)]):
        federation = small_federation(local=LOCAL)
        run(federation, Blobs(SIZES), 2, order)
        statement = next(one for one in order if isinstance(one, DPSGD)).statement(federation)
        assert statement.clients == tuple(
            (client, by_hand(client, 1 if client == 1 else 2, 1.5)) for client in range(3)
        )


@pytest.mark.parametrize("capacities", [None, [1.0, 0.5, 0.5]])
def test_noise_is_calibrated_to_the_plan(capacities):
    """At the end of the planned rounds the dearest client has nearly spent its budget, and nobody stayed out."""
    defense = DPSGD(target_epsilon=3.0)
    federation = small_federation(TINY_MLP, local=LOCAL, capacities=capacities)
    reports = Reports()
    run(federation, Blobs(SIZES), 3, [defense, reports])
    spent = dict(defense.statement(federation).clients)
    assert 2.98 < max(spent.values()) <= 3.0
    assert all(len(report.clients) == 3 for report in reports.rounds)
    assert defense.statement(federation).epsilon == max(spent.values())


def test_calibration_counts_only_rounds_of_the_plan():
    """With half the clients per round, less noise is needed for the same budget."""
    noises = []
    for participation in (1.0, 0.34):
        defense = DPSGD(target_epsilon=3.0)
        run(small_federation(local=LOCAL, participation=participation), Blobs(SIZES), 4, [defense])
        noises.append(defense.budgets.noise)
    assert noises[1] < 0.8 * noises[0]


def test_clients_withdraw_before_they_exceed_the_target():
    """With noise given, clients of high rates are out first; epsilon never exceeds the target, not even by a hair."""
    defense, reports = DPSGD(noise=2.0, target_epsilon=by_hand(0, 3, 2.0)), Reports()
    federation = small_federation(local=LOCAL)
    seen = []

    class Watch(FederatedCallback):
        """Notes the measurements of every round."""

        def on_train_epoch_end(self, trainer, pl_module):
            """After the round."""
            seen.append(defense.measurements())

    with pytest.warns(UserWarning, match="all clients have spent their budget after 4 rounds"):
        run(federation, Blobs(SIZES), 20, [defense, reports, Watch()])
    assert [sorted(client.client for client in report.clients) for report in reports.rounds] == [
        [0, 1, 2],
        [0, 1, 2],
        [0, 1, 2],
        [2],
    ]
    assert by_hand(2, 4, 2.0) <= by_hand(0, 3, 2.0) < by_hand(2, 5, 2.0), "what the test assumes"
    assert [numbers["privacy/withdrawn"] for numbers in seen] == [0, 0, 2, 3]
    assert all(numbers["privacy/epsilon"] <= defense.target_epsilon for numbers in seen)
    assert defense.statement(federation).epsilon == defense.target_epsilon


def fitted(rounds, checkpoint=None, **settings):
    """A trainer that has fitted a private federation, with both."""
    defense, federation = DPSGD(**settings), small_federation(TINY_MLP, local=LOCAL, participation=0.7)
    trainer = make_trainer(rounds, "32-true", [defense])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(federation, datamodule=Blobs(SIZES), ckpt_path=checkpoint, weights_only=True)
    return trainer, federation, defense


@pytest.mark.parametrize(
    "settings", [{"noise": 1.5}, {"noise": 2.0, "target_epsilon": 3.5}], ids=["noise", "noise and budget"]
)
def test_a_resumed_run_ends_on_the_same_bits_and_budgets(settings, tmp_path):
    """Histories travel with the checkpoint: no client starts anew."""
    whole, half = fitted(4, **settings), fitted(2, **settings)
    half[0].save_checkpoint(tmp_path / "half.ckpt")
    resumed = fitted(4, tmp_path / "half.ckpt", **settings)
    statements = [defense.statement(federation) for _, federation, defense in (whole, resumed)]
    assert statements[0] == statements[1]
    assert statements[0].epsilon > half[2].statement(half[1]).epsilon > 0
    assert whole[0].current_epoch == resumed[0].current_epoch
    assert whole[2].measurements() == resumed[2].measurements()
    assert torch.equal(*(federation.space.read(federation.net) for _, federation, _ in (whole, resumed)))


def test_a_longer_run_keeps_the_noise_it_had(tmp_path):
    """Noise that was calibrated for fewer rounds stays, and clients withdraw instead of exceeding the target."""
    planned = fitted(2, target_epsilon=3.0)
    planned[0].save_checkpoint(tmp_path / "planned.ckpt")
    longer = fitted(12, tmp_path / "planned.ckpt", target_epsilon=3.0)
    assert longer[2].budgets.noise == planned[2].budgets.noise
    assert planned[2].statement(planned[1]).epsilon <= longer[2].statement(longer[1]).epsilon <= 3.0
    assert longer[0].current_epoch < 12


def test_a_run_whose_budget_was_spent_stays_ended(tmp_path):
    """Started again, it does not run empty rounds."""
    settings = {"noise": 2.0, "target_epsilon": 3.0}
    done = fitted(20, **settings)
    assert done[0].current_epoch < 20
    done[0].save_checkpoint(tmp_path / "done.ckpt")
    again = fitted(20, tmp_path / "done.ckpt", **settings)
    assert again[0].current_epoch == done[0].current_epoch
    assert torch.equal(*(federation.space.read(federation.net) for _, federation, _ in (done, again)))


@pytest.mark.slow
def test_two_processes_spend_what_one_does(tmp_path):
    """Same budgets, same rounds, same model; no upload of either process leaves before the ledger has it."""
    on_two_processes(SCRIPTS / "dp_sgd_script.py", tmp_path)
    together = json.loads((tmp_path / "outcome.json").read_text())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        alone = dp_sgd_script.outcome(1, tmp_path / "alone")
    assert (alone.pop("world"), together.pop("world")) == (1, 2)
    assert together.pop("vector") == pytest.approx(alone.pop("vector"), abs=1e-11)
    assert together == alone
