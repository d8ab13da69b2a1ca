"""Early stopping of clients that train alone: when each stops, and that its model stays as it was."""

import pytest
import torch
from federation_kit import LINEAR, Blobs, Reports, make_trainer, run, sgd, small_federation
from regulariser_kit import with_reference
from torch.nn.functional import cross_entropy, linear

from app.common.errors import UserError
from app.federation.evaluation import Evaluation, Score
from app.federation.local_training import LocalTraining
from callbacks.defenses.client_early_stopping import ClientEarlyStopping
from callbacks.defenses.dp_sgd import DPSGD
from callbacks.defenses.dropout import Dropout

LOCAL = LocalTraining(batch_size=4, optimizer=sgd(0.2))
ROUNDS = 8
SCRIPT = {0: [5, 4, 3, 2, 1, 0.5, 0.4, 0.3], 1: [1, 2, 2, 2, 2, 2, 2, 2], 2: [3, 4, 2, 4, 4, 1, 1, 1]}
"""Validation losses of three clients, which stop never, after round 3 and after round 5 with a patience of 2."""


class Models(Reports):
    """Keeps every client's own model after every round, too."""

    def __init__(self):
        super().__init__()
        self.after = []

    def on_train_epoch_end(self, trainer, pl_module):
        """What clients keep to themselves."""
        super().on_train_epoch_end(trainer, pl_module)
        everything = torch.arange(pl_module.space.size)
        vectors = [torch.zeros(pl_module.space.size, dtype=torch.float64) for _ in range(pl_module.data.clients)]
        for client, vector in enumerate(vectors):
            pl_module.personal.restore(client, everything, vector)
        self.after.append(vectors)


def alone(**settings):
    """Clients that share nothing."""
    return small_federation(**{"local": LOCAL, "personal": ["*"], **settings})


@pytest.fixture
def scripted(monkeypatch):
    """A defense whose validation losses are those of the script."""
    rounds = {client: iter(losses) for client, losses in SCRIPT.items()}
    current = []

    class Scripted(ClientEarlyStopping):
        def on_client_end(self, trainer, federation, client):
            """Remember whose loss is asked for."""
            current[:] = [client.client]
            super().on_client_end(trainer, federation, client)

    def fake(net, store, ids, batch_size):
        return Score(0, next(rounds[current[0]]), 1)

    monkeypatch.setattr("callbacks.defenses.client_early_stopping.score", fake)
    return Scripted


def test_every_client_stops_at_its_own_known_epoch(scripted):
    """Models change up to the stopping epoch and not by a bit after it; untouched clients train as without it."""
    models, free = Models(), Models()
    defense = scripted(patience=2)
    run(alone(), with_reference(), ROUNDS, [defense, models])
    run(alone(), with_reference(), ROUNDS, [free])
    for client, epochs in {0: ROUNDS, 1: 3, 2: 5}.items():
        for round_ in range(ROUNDS):
            expected = free.after[min(round_ + 1, epochs) - 1][client]
            assert torch.equal(models.after[round_][client], expected), (client, round_)
    assert defense.measurements() == {"defense/clients_stopped": 2.0}
    losses = [report.clients[1].loss for report in models.rounds]
    assert losses[3:] == [pytest.approx(losses[2])] * 5, "the training loss of a stopped client stays"
    assert not any(report.dropped for one in models.rounds for report in one.clients)


def test_stopped_clients_are_still_evaluated(scripted):
    """The accuracy of the last round is that of the kept model."""
    models = Models()
    federation = alone(evaluation=Evaluation(every=ROUNDS))
    run(federation, with_reference(), ROUNDS, [scripted(patience=2), models])
    report = models.rounds[-1].clients[1]
    assert 0 < report.received_common == report.trained_common <= 1


@pytest.mark.parametrize("validation", ["reference", "test"])
def test_validation_loss_against_torch(validation):
    """Of the trained model on the client's own reference set, or on the common test set."""
    defense, models = ClientEarlyStopping(validation=validation), Models()
    data = with_reference()
    run(alone(), data, 1, [defense, models])
    for client in range(3):
        ids = data.common_test if validation == "test" else data.reference_indices(client)
        images, labels = data.store.batch(ids, torch.float64)
        vector = models.after[0][client]
        logits = linear(images.flatten(1), vector[:12].view(3, 4), vector[12:])
        assert defense._lowest[client] == pytest.approx(float(cross_entropy(logits, labels)), abs=1e-12)


def test_resuming_is_not_interrupting(tmp_path):
    """Stopped clients stay stopped."""
    settings = {"patience": 1, "min_gain": 0.05}
    whole, part = ClientEarlyStopping(**settings), ClientEarlyStopping(**settings)
    expected = Models()
    run(alone(), with_reference(), 6, [whole, expected])
    trainer = make_trainer(3, callbacks=[part])
    trainer.fit(alone(), datamodule=with_reference())
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    resumed, models = ClientEarlyStopping(**settings), Models()
    trainer = make_trainer(6, callbacks=[resumed, models])
    trainer.fit(alone(), datamodule=with_reference(), ckpt_path=tmp_path / "half.ckpt", weights_only=True)
    assert sum(map(whole.stopped, range(3))) > 0
    assert resumed.state_dict() == whole.state_dict()
    assert all(torch.equal(one, two) for one, two in zip(models.after[-1], expected.after[-1], strict=True))


def test_what_cannot_be_combined_is_refused_at_once():
    """Settings that mean nothing; then a federation, other callbacks that take the steps, no reference sets."""
    conflicts = ("in a federation", "ClientEarlyStopping with", "no client has a reference")
    for stopping, words in (((0, -1.0), ("patience", "min_gain")), ((), conflicts)):
        with pytest.raises(UserError) as error:
            run(
                alone(personal=None, net=LINEAR),
                Blobs(),
                1,
                [ClientEarlyStopping(*stopping), Dropout(), DPSGD(noise=1.0)],
            )
        assert all(word in str(error.value) for word in words)


def test_the_test_set_as_validation_set_is_named():
    """Nobody takes the accuracies for those of an unseen set."""
    with pytest.warns(UserWarning, match="accuracies on that set are optimistic"):
        run(alone(), Blobs(), 1, [ClientEarlyStopping(validation="test")])
