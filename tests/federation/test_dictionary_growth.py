"""A dictionary of weight factors that grows when newcomers join (WAFFLe, section 2.2)."""

from functools import partial

import numpy as np
import pytest
import torch
from federation_kit import TINY_MLP, Blobs, Recorder, Shares, make_trainer, run, sgd, small_federation
from lightning.pytorch.callbacks import ModelCheckpoint

from app.common.errors import UserError
from app.federation.all_clients import AllClients, Newcomers
from app.federation.evaluation import Evaluation
from app.federation.local_training import LocalTraining
from app.federation.submodels import FedRolex
from app.models import MLP, DataShape, Factorised
from datamodules import RawData

SIZES = (12, 9, 10, 14, 8)
FACTORS, FIRST = 8, 4
WAFFLE = partial(
    Factorised, net=partial(MLP, hidden=(6,), bias=False), factors={"layers.hidden1": FACTORS}, speed=200.0
)
LOCAL = LocalTraining(batch_size=4, epochs=2, optimizer=sgd(0.2))
GROWING = Newcomers(2, round=3, dictionary=FIRST / FACTORS)


def federation_of(newcomers=GROWING, net=WAFFLE, **settings):
    """Five small clients, two of which may be newcomers."""
    return small_federation(
        net, **{"local": LOCAL, "evaluation": Evaluation(clients=False), "newcomers": newcomers, **settings}
    )


def trained(rounds, newcomers=GROWING, callbacks=(), **settings):
    """A federation after some rounds, and its final vector."""
    federation = federation_of(newcomers, **settings)
    return federation, run(federation, Blobs(SIZES, nonmembers=0.4), rounds, list(callbacks))


class Rounds(Recorder):
    """What every round starts with, and all clients before it is trained."""

    def __init__(self):
        super().__init__()
        self.scores, self.starts, self.sizes = {}, {}, {}

    def on_round_start(self, trainer, federation, plan):
        """Every client with the plan of the round, none of which is trained yet."""
        self.scores[plan.round] = AllClients(federation, plan.round).scores()
        self.starts[plan.round] = federation.theta.clone()
        self.sizes[plan.round] = federation.personal.shared(plan.index(plan.participants[0])).sum().item()


def test_growth_by_nothing_is_no_growth():
    """A dictionary that is whole from the start, and newcomers that are none: bit for bit the plain federation."""
    _, plain = trained(4, Newcomers())
    _, grown = trained(4, Newcomers(0, round=3, dictionary=1.0))
    assert torch.equal(plain, grown)


def test_added_factors_do_not_change_what_clients_have():
    """Clients that have trained have the same losses before and after the growth, and use none of the new factors."""
    recorder = Rounds()
    federation, _ = trained(3, callbacks=[recorder])
    old = {
        local.client: local.score for local in recorder.scores[2] if local.client not in federation.client_pool.absent
    }
    after_round_two = AfterRound(1)
    trained(3, callbacks=[after_round_two])
    assert len(old) == 3
    for local in after_round_two.scores:
        assert old[local.client].correct == local.score.correct
        assert old[local.client].loss == pytest.approx(local.score.loss, abs=1e-12)


class AfterRound(Recorder):
    """All clients at the end of one round (0-based), with the model and the dictionary of that round."""

    def __init__(self, number):
        super().__init__()
        self._number = number

    def on_train_epoch_end(self, trainer, pl_module):
        """While the executor lives."""
        if pl_module.plan.round == self._number:
            self.scores = AllClients(pl_module, self._number).scores()


def test_private_choices_of_old_and_new_clients():
    """Old clients switch new factors off with certainty; newcomers start from the prior over all of them."""

    class Starts(Recorder):
        def on_broadcast(self, trainer, federation, client, vector):
            """Private values are in place."""
            if federation.plan.round == 2:
                net = federation.net.scaled(federation.plan.rate(client)).double()
                federation.space.write(net, vector)
                (layer,) = net.eval().factor_layers().values()
                self.chosen[client] = layer.gates().tolist()

    recorder = Starts()
    recorder.chosen = {}
    federation, _ = trained(3, callbacks=[recorder])
    assert len(recorder.chosen) == 5
    (server,) = federation.net.eval().factor_layers().values()
    assert server.gates().tolist() == [1.0] * FACTORS
    prior = [(FACTORS / (FACTORS + 1)) ** k for k in range(1, FACTORS + 1)]
    for client, gates in recorder.chosen.items():
        if client in federation.client_pool.absent:
            assert gates == pytest.approx(prior, abs=1e-6)
        else:
            assert gates[FIRST:] == [0.0] * (FACTORS - FIRST)
            assert all(gate > 0 for gate in gates[:FIRST])


def test_factors_are_neither_sent_nor_trained_before_they_are_added():
    """Uploads hold the first factors only; the others keep their initial values, and move once they are added."""
    recorder = Rounds()
    federation, end = trained(4, callbacks=[recorder])
    inputs, hidden, classes = 4, 6, 3
    assert recorder.sizes == {
        round_: factors * (inputs + hidden + 1) + hidden * classes
        for round_, factors in ((0, FIRST), (1, FIRST), (2, FACTORS), (3, FACTORS))
    }
    added = federation.space.matching(["*.right"])
    added[federation.space.matching(["*.right"]).nonzero().flatten()[: FIRST * inputs]] = False
    assert torch.equal(recorder.starts[0][added], recorder.starts[2][added])
    assert not torch.equal(recorder.starts[2][added], recorder.starts[3][added])
    assert not torch.equal(recorder.starts[3][added], end[added])


def test_newcomers_take_part_from_their_round_on():
    """Not before; and the server's own model uses the added factors only once they are there."""
    federation, _ = trained(4)
    absent, pool = federation.client_pool.absent, federation.client_pool
    assert len(absent) == 2
    for round_ in range(4):
        assert (absent <= set(pool.participants(round_))) == (round_ >= 2)
        assert absent.isdisjoint(pool.participants(round_)) == (round_ < 2)
    assert pool.most == 5
    before, _ = trained(2)
    (layer,) = before.net.eval().factor_layers().values()
    assert layer.gates().tolist() == [1.0] * FIRST + [0.0] * (FACTORS - FIRST)


@pytest.mark.parametrize("executor", ["sequence", "threads", "vectorised"])
def test_an_interrupted_run_ends_like_a_whole_one(tmp_path, executor):
    """Saved before the growth, after it, or in the round before: bit for bit the same vector and private values."""
    kept = ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1)
    whole = federation_of(executor=executor)
    expected = run(whole, Blobs(SIZES, nonmembers=0.4), 4, [kept], enable_checkpointing=True)
    for rounds in (1, 2, 3):
        rest = federation_of(executor=executor)
        part = tmp_path / f"epoch={rounds - 1}.ckpt"
        make_trainer(4).fit(rest, datamodule=Blobs(SIZES, nonmembers=0.4), ckpt_path=part)
        assert torch.equal(rest.space.read(rest.net), expected)
        for client in range(5):
            assert torch.equal(rest.personal.of(client), whole.personal.of(client))


def test_executors_agree_on_growth():
    """However clients are trained."""
    reference, *others = (trained(4, executor=executor)[1] for executor in ("sequence", "threads", "vectorised"))
    for other in others:
        torch.testing.assert_close(other, reference, rtol=0, atol=1e-11)


class TwoTasks(Blobs):
    """Four clients tell class 0 from 1 by the first pixel; two newcomers tell 2 from 3 by the second."""

    def __init__(self):
        sizes = (40,) * 6
        super().__init__(sizes, DataShape(1, 1, 2, 4), nonmembers=0.5)
        self.partition = Modes(sizes)

    def load(self):
        """Independent pixels of 0.25 or 0.75; the common test set is the pool again."""
        generator = np.random.default_rng(3)
        signs = generator.choice([-1.0, 1.0], (self.pool, 2))
        new = np.arange(self.pool) >= 4 * 40
        labels = torch.from_numpy(np.where(new, 2 + (signs[:, 1] > 0), signs[:, 0] > 0).astype(np.int64))
        pixels = torch.from_numpy(0.5 + 0.25 * signs).float().reshape(self.pool, 1, 2, 1)
        return RawData(pixels, labels, pixels, labels, ("a", "b", "c", "d"), (0.5,), (0.25,))


class Modes(Shares):
    """The last two clients are the minority."""

    def groups(self, clients):
        """Four and two."""
        return ["majority"] * (clients - 2) + ["minority"] * 2


def accuracies(factors, dictionary):
    """Mean accuracy of old clients and of newcomers, who join in round 4 of 8, on their own test sets."""
    net = partial(
        Factorised,
        net=partial(MLP, hidden=(8,), bias=False),
        factors={"layers.hidden1": factors},
        alpha=4.0,
        speed=100.0,
    )
    last = AfterRound(7)
    newcomers = Newcomers(2, round=4, group="minority", dictionary=dictionary)
    local = LocalTraining(batch_size=20, epochs=10, optimizer=sgd(0.5))
    federation = federation_of(newcomers, net, local=local, executor="vectorised")
    run(federation, TwoTasks(), 8, [last])
    assert federation.client_pool.absent == {4, 5}
    scores = [local.score.accuracy for local in last.scores]
    return np.mean(scores[:4]), np.mean(scores[4:])


def test_newcomers_with_other_data_profit_from_growth():
    """One factor is one direction: it cannot serve both tasks, four can, three of which are added for the newcomers."""
    kept_old, kept_new = accuracies(1, 1.0)
    grown_old, grown_new = accuracies(4, 0.25)
    assert (kept_old, grown_old) == (1.0, 1.0)
    assert kept_new <= 0.5
    assert grown_new == 1.0


@pytest.mark.parametrize(
    ("newcomers", "settings", "message"),
    [
        (Newcomers(1, round=1), {}, "newcomers.round is 1"),
        (Newcomers(1, round=3, dictionary=0.0), {}, "newcomers.dictionary is 0.0"),
        (Newcomers(1, dictionary=0.5), {}, "newcomers.round is not set"),
        (Newcomers(1, group="minority"), {}, "from group 'minority' with 0 clients"),
        (GROWING, {"net": TINY_MLP}, "MLP has no weight factors"),
        (GROWING, {"method": FedRolex()}, "under FedRolex"),
        (GROWING, {"uncovered_cells": "zero"}, "become zero"),
    ],
)
def test_impossible_growth_is_refused(newcomers, settings, message):
    """With cause and remedy, before anything is trained."""
    with pytest.raises(UserError, match=message):
        trained(2, newcomers, **settings)
