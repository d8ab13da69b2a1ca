"""Ditto: every client's own model beside the federation's, pulled towards the one that it receives."""

import pytest
import torch
from federation_kit import TINY_MLP, Blobs, Recorder, initial, make_trainer, run, sgd, small_federation, whole_batch
from quadratic_kit import Levels, Slope, square_losses

from app.common.errors import UserError
from app.federation.all_clients import AllClients
from app.federation.evaluation import Evaluation, score
from app.federation.local_training import LocalTraining
from app.federation.promises import statements
from app.federation.transcript_recorder import TranscriptRecorder
from callbacks import DPSGD

SIZES = (5, 8, 11)
LEVELS = (0.5, 1.0, -0.8)
BATCHES = LocalTraining(batch_size=4, epochs=2, optimizer=sgd(0.3))


def models(federation):
    """Every client's own model."""
    return {client: federation.own_models.values.of(client) for client in federation.own_models.values.clients}


def test_quadratic_by_hand(monkeypatch):
    """K steps on h/2 |v - o|^2 + lambda/2 |v - w|^2: v* + (1 - lr (h + lambda))^K (v - v*) in every round."""
    square_losses(monkeypatch)
    pull, lr, steps, recorder = 0.7, 0.3, 3, Recorder()
    federation = small_federation(Slope, ditto=pull, local=whole_batch(lr, steps))
    data = Levels(LEVELS)
    run(federation, data, 4, [recorder])
    for client, level in enumerate(LEVELS):
        own, curvature, optimum = recorder.started[0], level**2, data.optimum(client)
        for received in recorder.started:
            fixed = (curvature * optimum + pull * received) / (curvature + pull)
            own = fixed + (1 - lr * (curvature + pull)) ** steps * (own - fixed)
        torch.testing.assert_close(models(federation)[client], own, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("executor", ["sequence", "threads", "vectorised"])
def test_without_a_pull_it_is_local_training(executor):
    """lambda = 0: the own models are those of clients that train alone, bit for bit, and the server's is FedAvg's."""
    federation = small_federation(TINY_MLP, ditto=0.0, local=BATCHES, executor=executor)
    end = run(federation, Blobs(SIZES), 3)
    alone = small_federation(TINY_MLP, personal=["*"], local=BATCHES, executor=executor)
    run(alone, Blobs(SIZES), 3)
    assert all(torch.equal(model, alone.personal.of(client)) for client, model in models(federation).items())
    assert torch.equal(end, run(small_federation(TINY_MLP, local=BATCHES, executor=executor), Blobs(SIZES), 3))


@pytest.mark.parametrize("executor", ["threads", "vectorised"])
def test_executors_agree(executor):
    """Also with widths, and with a pull towards another model than the one that training starts from."""
    settings = {"ditto": 0.5, "local": BATCHES, "capacities": [1.0, 0.5, 0.5]}
    one, other = (small_federation(TINY_MLP, executor=kind, **settings) for kind in ("sequence", executor))
    run(one, Blobs(SIZES), 3)
    run(other, Blobs(SIZES), 3)
    for client, model in models(one).items():
        torch.testing.assert_close(models(other)[client], model, rtol=0, atol=1e-12)


class FarAway(Recorder):
    """The clients' own models start far from the server's."""

    def on_train_epoch_start(self, trainer, pl_module):
        """Before the round."""
        values = pl_module.own_models.values
        values.load_state_dict({str(client): torch.full_like(values.initial, 5.0) for client in range(3)})


def test_a_large_pull_gives_the_received_model():
    """At learning rate 1 / lambda one step leads to w - grad F(v) / lambda, however far v was: to w as lambda grows."""
    distances = []
    for pull in (1e2, 1e4, 1e6):
        recorder = FarAway()
        federation = small_federation(TINY_MLP, ditto=pull, local=whole_batch(1 / pull))
        run(federation, Blobs(SIZES), 1, [recorder])
        distances.append(max(float((model - recorder.started[0]).norm()) for model in models(federation).values()))
    assert distances[2] < 1e-3
    assert distances[1] == pytest.approx(distances[0] / 1e2, rel=1e-3)
    assert distances[2] == pytest.approx(distances[0] / 1e4, rel=1e-3)


def test_narrow_clients_move_only_their_part():
    """Outside a client's submodel its own model stays the initial one."""
    federation = small_federation(TINY_MLP, ditto=0.1, capacities=[1.0, 0.5, 0.25])
    start = initial(small_federation(TINY_MLP), Blobs(SIZES))
    run(federation, Blobs(SIZES), 2)
    for client, model in models(federation).items():
        index = federation.plan.index(client)
        moved = (model != start).nonzero().flatten()
        assert len(moved)
        assert set(moved.tolist()) <= set(index.tolist())


def test_own_models_survive_a_checkpoint(tmp_path):
    """Two rounds, saved, loaded and continued, end where four rounds in one go do; the file alone gives them, too."""
    settings = {"ditto": 0.3, "local": BATCHES, "participation": 0.67}
    whole, first, second = (small_federation(TINY_MLP, **settings) for _ in range(3))
    run(whole, Blobs(SIZES), 4)
    trainer = make_trainer(2)
    trainer.fit(first, datamodule=Blobs(SIZES))
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    make_trainer(4).fit(second, datamodule=Blobs(SIZES), ckpt_path=tmp_path / "half.ckpt")
    assert all(torch.equal(models(second)[client], model) for client, model in models(whole).items())
    loaded = type(first).load_from_checkpoint(tmp_path / "half.ckpt", net=TINY_MLP, local=BATCHES)
    assert models(loaded).keys() == models(first).keys()
    assert all(torch.equal(model, models(first)[client]) for client, model in models(loaded).items())


class Look(Recorder):
    """Scores of all clients when the last round is over."""

    def on_train_epoch_end(self, trainer, pl_module):
        """While the executor lives."""
        everybody = AllClients(pl_module, pl_module.plan.round)
        self.scores, self.tuned = everybody.scores(), everybody.fine_tuned()
        self.statements = statements(pl_module)


def test_clients_are_evaluated_with_their_own_models():
    """Those that have never taken part, with the server's; one more local training starts from there."""
    look = Look()
    federation = small_federation(TINY_MLP, ditto=0.1, participation=0.67, local=BATCHES)
    end = run(federation, Blobs(SIZES, nonmembers=0.4), 1, [look])
    net = federation.net.scaled(1.0).double()
    assert sum(local.own for local in look.scores) == 2
    for local in look.scores:
        federation.space.write(net, models(federation).get(local.client, end))
        expected = score(net, federation.data.store, federation.data.test_indices(local.client), 128)
        assert local.score.loss == pytest.approx(expected.loss, abs=1e-9)
    assert all(tuned.score.loss != local.score.loss for tuned, local in zip(look.tuned, look.scores, strict=True))


def test_nothing_of_the_own_models_is_sent_or_defended(tmp_path):
    """Uploads are those of a run without Ditto, also under DP-SGD, whose clipping and noise leave own models alone."""
    uploads, own = {}, {}
    for name, ditto, defenses in (("plain", None, []), ("ditto", 0.2, []), ("private", 0.2, [DPSGD(noise=1.0)])):
        recorder, look = Recorder(), Look()
        federation = small_federation(TINY_MLP, ditto=ditto, evaluation=Evaluation(clients=False))
        run(federation, Blobs(SIZES), 1, [*defenses, TranscriptRecorder(tmp_path / name), recorder, look])
        uploads[name], own[name] = recorder.messages, {} if ditto is None else models(federation)
    plain, ditto = uploads["plain"], uploads["ditto"]
    assert all(torch.equal(one.payload, other.payload) for one, other in zip(plain, ditto, strict=True))
    sizes = [sum(file.stat().st_size for file in (tmp_path / name).rglob("*.npz")) for name in ("plain", "ditto")]
    assert sizes[0] == sizes[1]
    assert all(torch.equal(model, own["private"][client]) for client, model in own["ditto"].items())
    (statement,) = look.statements
    assert any("Ditto" in one for one in statement.beside)


def test_settings_that_cannot_work_are_refused():
    """Steps that overshoot, and a pull towards a model that never moves."""
    with pytest.raises(UserError, match=r"set --model.ditto below 4"):
        run(small_federation(ditto=4.5, local=whole_batch(0.5)), rounds=1)
    with pytest.raises(UserError, match=r"model.ditto where every weight stays"):
        run(small_federation(ditto=0.1, personal=["*"]), rounds=1)
