"""A server that repeats a model to all clients, and solves the sums for single updates: clients refuse, by default."""

from functools import partial

import numpy as np
import pytest
import torch
from channel_kit import METHODS, MIXED, NET, SIZES, Dying, over
from federation_kit import PICTURES, Blobs, Recorder, make_trainer, run, sgd, small_federation

from app.federation.aggregation import FedAvgM
from app.federation.hooks import FederatedCallback
from app.federation.local_training import LocalTraining
from app.models import CNN
from callbacks.defenses.secure_aggregation import SecureAggregation

CLIENTS = 10
LOCAL = LocalTraining(batch_size=4, optimizer=sgd(0.2))


class Frozen(FederatedCallback):
    """A server that repeats its model, or parts of it, and collects the sums of the changes."""

    kind = "attack"

    def __init__(self, models=1):
        self.models, self.seen, self.sums, self.sets, self.truth = models, [], [], [], {}

    def on_client_update(self, trainer, federation, update):
        """The truth, to compare with."""
        self.truth[update.client] = (update.vector - update.received).numpy()

    def on_server_update(self, trainer, federation, aggregate):
        """Several models in turn: a client that remembers the last one only notices nothing."""
        if aggregate.updates:
            self.sums.append(((aggregate.mean - federation.theta) * aggregate.weight).numpy().copy())
            self.sets.append([int(client) for client in federation.channel._arrived])
        self.seen.append(federation.theta.clone())
        self.move(federation, aggregate)

    def move(self, federation, aggregate):
        """The model of the next round."""
        after = len(self.seen)
        aggregate.mean.copy_(
            self.seen[after % self.models] if after >= self.models else federation.theta + 0.01 * after
        )

    def errors(self):
        """Relative error of every client's update, as least squares gives it from all sums."""
        rows = np.zeros((len(self.sets), CLIENTS))
        for row, clients in zip(rows, self.sets, strict=True):
            row[clients] = 1
        solved = np.linalg.lstsq(rows, np.stack(self.sums), rcond=None)[0]
        return [np.linalg.norm(solved[c] - self.truth[c]) / np.linalg.norm(self.truth[c]) for c in self.truth]


def federation(**settings):
    """Ten equal clients, of which half take part in a round."""
    whole = LocalTraining(batch_size=100, optimizer=sgd(0.2))
    return small_federation(**{"net": NET, "local": whole, "participation": 0.5, **settings})


def attacked(server, defense, rounds=12, **settings):
    """The adversary after a run."""
    server.federation = federation(**settings)
    run(server.federation, Blobs((6,) * CLIENTS), rounds, [defense, server])
    return server


@pytest.mark.filterwarnings("ignore")
def test_sums_over_a_frozen_model_isolate_nobody():
    """Twelve sums of five of ten clients are solved to 1 %, unless every client is in one of them only."""
    solved = attacked(Frozen(), SecureAggregation(refuse_repeated=False))
    assert max(solved.errors()) < 0.01
    defense = SecureAggregation()
    refused = attacked(Frozen(), defense)
    assert max(len([s for s in refused.sets if client in s]) for client in range(CLIENTS)) == 1
    assert min(refused.errors()) > 0.3
    assert defense.measurements()["secagg/refused"] > 0


class Layer(Frozen):
    """Repeats one layer, and changes everything else a little."""

    def move(self, federation, aggregate):
        """The first layer stays."""
        aggregate.mean.copy_(federation.theta + 1e-3)
        aggregate.mean[: 12 * 4] = federation.theta[: 12 * 4]


class Permuted(Frozen):
    """Repeats a model whose hidden channels have changed places: the same function, the same updates elsewhere."""

    def move(self, federation, aggregate):
        """Reverse the first hidden layer: its rows, its biases, and the columns that read them."""
        theta = federation.theta
        rows, biases, columns = theta[:48].view(12, 4), theta[48:60], theta[60:156].view(8, 12)
        reversed_ = [rows.flip(0).flatten(), biases.flip(0), columns.flip(1).flatten(), theta[156:]]
        aggregate.mean.copy_(torch.cat(reversed_))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("server", [Frozen(), Frozen(models=2), Layer(), Permuted()], ids=lambda s: type(s).__name__)
def test_every_exact_repetition_is_refused(server):
    """The same model, two models in turn, one layer, and channels in another order: nobody is heard twice."""
    attacked(server, SecureAggregation(), rounds=4, participation=1.0)
    assert len(server.sets) == server.models


class Nearly(Frozen):
    """Changes every value by less than matters."""

    def move(self, federation, aggregate):
        """By as little as a double holds."""
        aggregate.mean.copy_(federation.theta + 1e-9)


@pytest.mark.filterwarnings("ignore")
def test_a_model_that_is_nearly_repeated_isolates_clients_as_stated():
    """The limit that the statement names, with the clients and the round from which on."""
    defense = SecureAggregation()
    server = attacked(Nearly(), defense)
    assert max(server.errors()) < 0.01
    notes = " ".join(defense.channel_statement(server.federation).notes)
    assert "nearly repeats a model, sums of different clients can be solved for single updates" in notes
    found = "combinations of sums isolate single clients on 191 of 191 weights: clients 0, 1, 2, 3, 4, 5, 6, 7, 8, 9"
    assert f"(so far): from round 10 on, {found}" in notes


def test_refusals_are_named():
    """In a warning, and in the round's numbers."""
    with pytest.warns(
        UserWarning, match=r"round 2: clients 0, 1, .* refused to send an update: the model, or a tensor"
    ):
        attacked(Frozen(), SecureAggregation(), rounds=2, participation=1.0)


HONEST = {
    **{name: {"method": METHODS[name], "capacities": MIXED[:6]} for name in ("Prefix", "FedRolex", "UFR", "GSR")},
    "momentum": {"server": FedAvgM, "capacities": MIXED[:6]},
    "some": {"participation": 0.5},
    "labels": {"local": LocalTraining(batch_size=4, optimizer=sgd(0.2), mask_labels=True)},
    "head": {"personal": ["*classifier*"]},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", HONEST)
def test_honest_rounds_are_not_refused(name):
    """Submodels that stay and move, server momentum, personal layers: bit for bit as without refusals."""

    def end(**settings):
        defense, recorder = SecureAggregation(allow_singletons=True, range=64.0, bits=32, **settings), Recorder()
        model = small_federation(**{"net": NET, "local": LOCAL, **HONEST[name]})
        return run(model, Blobs(SIZES[:6]), 3, [defense, recorder]), defense, recorder

    vector, defense, recorder = end()
    assert defense.measurements()["secagg/refused"] == 0
    assert len(recorder.messages) == 3 * (3 if name == "some" else 6)
    assert torch.equal(vector, end(refuse_repeated=False)[0])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("precision", ["32-true", "bf16-true"])
def test_rounding_is_no_repetition(precision):
    """The ones of a normalisation stay as they are in half precision: too few distinct values to tell anything."""
    defense, model = SecureAggregation(range=16.0), small_federation(net=partial(CNN, u=16, norm="group"), local=LOCAL)
    run(model, Blobs(SIZES[:4], PICTURES), 3, [defense], precision=precision)
    assert defense.measurements()["secagg/refused"] == 0


class Deaf(FederatedCallback):
    """Clients whose updates leave the first layer as it is, as if no gradient reached it."""

    def on_client_update(self, trainer, federation, update):
        """What was received."""
        update.vector[: 12 * 4] = update.received[: 12 * 4]


@pytest.mark.filterwarnings("ignore")
def test_a_layer_that_no_update_moves_is_no_repetition():
    """The server has nothing to learn from it: a layer of zero updates may stay as it is."""
    defense = SecureAggregation()
    run(federation(participation=1.0), Blobs(SIZES[:4]), 3, [Deaf(), defense])
    assert defense.measurements()["secagg/refused"] == 0


@pytest.mark.filterwarnings("ignore")
def test_memory_survives_a_resume(tmp_path):
    """A server that repeats its model after a restart is recognised, and the sums before it are not forgotten."""
    for rounds, checkpoint in ((1, None), (2, tmp_path / "one.ckpt")):
        defense = SecureAggregation()
        trainer = make_trainer(rounds, callbacks=[defense, Frozen()])
        model, data = federation(participation=1.0), Blobs((6,) * CLIENTS)
        trainer.fit(model, datamodule=data, ckpt_path=checkpoint, weights_only=True)
        trainer.save_checkpoint(tmp_path / "one.ckpt")
    assert defense.measurements()["secagg/refused"] == CLIENTS
    assert defense.state_dict()["releases"] == [[0, list(range(CLIENTS))]]


LATE = tuple(range(6))


@pytest.mark.filterwarnings("ignore")
def test_a_round_that_fails_late_may_be_repeated_by_the_same_clients_only():
    """Shares were revealed, so the server may know the sum: the same clients train again, others make it give up."""
    same, fewer = Recorder(), Recorder()
    run(federation(participation=1.0), Blobs((6,) * CLIENTS), 2, [over(Dying(LATE, "reveal"), SecureAggregation), same])
    assert [updates for _, _, updates in same.aggregates] == [0, CLIENTS]

    class DyingTwice(Dying):
        """One more client is lost in the second round."""

        def carry(self, message):
            """Its masked update does not arrive."""
            return None if (message.sender, message.round, message.step) == (9, 2, "masked") else super().carry(message)

    run(
        federation(participation=1.0),
        Blobs((6,) * CLIENTS),
        3,
        [over(DyingTwice(LATE, "reveal"), SecureAggregation), fewer],
    )
    assert [updates for _, _, updates in fewer.aggregates] == [0, 0, CLIENTS]
