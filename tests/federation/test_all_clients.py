"""All clients of a federation on their own test sets, and clients that join when the training is over."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from federation_kit import TINY_MLP, Blobs, Recorder, make_trainer, sgd, small_federation

from app.common.errors import UserError
from app.common.seeding import numpy_generator
from app.federation.all_clients import AllClients, Joining, Newcomers
from app.federation.evaluation import Evaluation, score, score_each
from app.federation.local_training import LocalTraining
from app.models import MLP, Factorised

SIZES = (12, 9, 10, 14, 8)
WAFFLE = partial(Factorised, net=partial(MLP, hidden=(6,), bias=False), factors={"layers.hidden1": 5}, speed=200.0)
LOCAL = LocalTraining(batch_size=4, epochs=2, optimizer=sgd(0.2))


class AtTheEnd(Recorder):
    """Looks at everybody when the last round is over, while the executor lives."""

    def __init__(self, look):
        super().__init__()
        self._look = look

    def on_train_epoch_end(self, trainer, pl_module):
        """Keep what is seen."""
        if pl_module.plan.round + 1 == pl_module.rounds:
            self.seen = self._look(pl_module)


def seen(look, net=WAFFLE, data=None, rounds=2, **settings):
    """What `look` finds at the end of a small federation."""
    recorder = AtTheEnd(look)
    federation = small_federation(net, **{"local": LOCAL, "evaluation": Evaluation(clients=False), **settings})
    make_trainer(rounds, callbacks=[recorder]).fit(federation, datamodule=data or Blobs(SIZES, nonmembers=0.4))
    return federation, recorder.seen


def by_hand(federation, client, values=None):
    """Score of the server's model with given private values."""
    vector = federation.space.read(federation.net)
    if values is not None:
        vector[federation.personal.mask] = values
    net = federation.net.scaled(1.0).double()
    federation.space.write(net, vector)
    return score(net, federation.data.store, federation.data.test_indices(client), 128)


def test_right_labels_count():
    """Where those that clients train on were made wrong."""
    data = Blobs(SIZES, nonmembers=0.4)
    data.label_noise = 0.5
    federation, scores = seen(lambda f: AllClients(f, f.plan.round).scores(), net=TINY_MLP, data=data)
    right = data.store.rightly_labelled
    for local in scores:
        assert local.score.correct == score(federation.net, right, data.test_indices(local.client), 128).correct
    wrong = [by_hand(federation, local.client).correct for local in scores]
    assert wrong != [local.score.correct for local in scores]


@pytest.mark.parametrize("executor", ["sequence", "threads", "vectorised"])
def test_every_client_is_scored_with_its_own_private_part(executor):
    """Counts and losses are those of the server's model with the client's values put in by hand."""
    federation, scores = seen(lambda f: AllClients(f, f.plan.round).scores(), executor=executor)
    assert [local.client for local in scores] == list(range(5))
    for local in scores:
        expected = by_hand(federation, local.client, federation.personal.of(local.client))
        assert local.score.correct == expected.correct
        assert local.score.loss == pytest.approx(expected.loss, abs=1e-9)
        assert local.own


def test_other_choices_are_what_they_say():
    """Another's values come from a fixed exchange without fixed points, the mean is the mean, none is the server's."""

    def look(federation):
        all_clients = AllClients(federation, federation.plan.round)
        return {choice: all_clients.scores(choice) for choice in all_clients.choices}

    federation, found = seen(look)
    values = torch.stack([federation.personal.of(client) for client in range(5)])
    for client in range(5):
        own, another, mean, none = (found[choice][client].score for choice in ("own", "another", "mean", "none"))
        assert none.loss == pytest.approx(by_hand(federation, client).loss, abs=1e-9)
        assert mean.loss == pytest.approx(by_hand(federation, client, values.mean(dim=0)).loss, abs=1e-9)
        candidates = [by_hand(federation, client, values[other]).loss for other in range(5) if other != client]
        assert min(abs(another.loss - candidate) for candidate in candidates) < 1e-9
        assert another.loss != own.loss


def test_private_parts_are_exchanged_within_a_group(monkeypatch):
    """Groups differ anyway; only the one holder of a group exchanges with a client of another group."""
    monkeypatch.setattr(Blobs, "groups", ["odd", "odd", "even", "even", "alone"])
    _, partners = seen(lambda f: AllClients(f, f.plan.round)._partners)
    assert {partners[0], partners[1]} == {0, 1}
    assert partners[0] == 1
    assert partners[2] == 3
    assert partners[3] == 2
    assert partners[4] != 4


@pytest.mark.parametrize("clients", [1, 2, 60])
def test_the_partner_is_the_next_client_of_the_group(clients):
    """In the order of the exchange, from the last on to the first; the next of all for the only one of a group."""
    groups = ["a", "b", "b", "only", *"abc" * 20][:clients]
    data, own = SimpleNamespace(groups=groups), SimpleNamespace(clients=tuple(range(clients)))
    all_clients = object.__new__(AllClients)
    all_clients._federation = SimpleNamespace(data=data, seed=3)
    all_clients._own = own
    order = numpy_generator(3, "exchange").permutation(clients).tolist()
    for place, client in enumerate(order):
        others = [*order[place + 1 :], *order[:place]]
        same = [other for other in others if groups[other] == groups[client]]
        assert all_clients._partners[client] == [*same, *others, client][0]


def test_clients_never_queried_use_the_server_as_it_is():
    """One of five clients takes part; the others have nothing of their own."""
    federation, scores = seen(lambda f: AllClients(f, f.plan.round).scores(), rounds=1, participation=0.2)
    (holder,) = federation.personal.clients
    for local in scores:
        assert local.own == (local.client == holder)
        if not local.own:
            assert local.score.loss == pytest.approx(by_hand(federation, local.client).loss, abs=1e-9)


def test_networks_without_a_private_part_offer_one_choice():
    """And all clients are scored with the server's model."""
    federation, (choices, scores) = seen(
        lambda f: (AllClients(f, f.plan.round).choices, AllClients(f, f.plan.round).scores()), net=TINY_MLP
    )
    assert choices == ("own",)
    for local in scores:
        assert local.score.loss == pytest.approx(by_hand(federation, local.client).loss, abs=1e-9)
        assert not local.own


def test_narrow_clients_are_scored_with_their_submodels():
    """A narrow client cannot run the server's whole model."""
    whole = seen(lambda f: AllClients(f, f.plan.round).scores(), net=TINY_MLP)[1]
    narrow = seen(lambda f: AllClients(f, f.plan.round).scores(), net=TINY_MLP, capacities=[1.0, 0.5, 0.5, 0.5, 0.5])[1]
    assert [local.client for local in narrow] == [local.client for local in whole]
    assert narrow[1].score.loss != whole[1].score.loss


@pytest.mark.parametrize(("large", "calls"), [(1024, 2), (6, 4)])
def test_clients_with_one_model_are_scored_together(large, calls, monkeypatch):
    """One call per width, or a few where the samples are many; what each client gets is what it gets alone."""
    asked = []

    def counting(net, store, parts, batch_size):
        asked.append(parts)
        return score_each(net, store, parts, batch_size)

    def look(federation):
        together = AllClients(federation, federation.plan.round).scores()
        monkeypatch.setattr(AllClients, "_samples_are_independent", False)
        return together, AllClients(federation, federation.plan.round).scores()

    monkeypatch.setattr("app.federation.all_clients.LARGE_BATCH", large)
    monkeypatch.setattr("app.federation.all_clients.score_each", counting)
    monkeypatch.setattr(
        "app.federation.all_clients.score", lambda net, store, own, size: counting(net, store, [own], size)[0]
    )
    together, alone = seen(look, net=TINY_MLP, executor="sequence", capacities=[1.0, 0.5, 0.5, 1.0, 0.5])[1]
    assert len(asked) == calls + 5
    assert [local.client for local in together] == [local.client for local in alone] == list(range(5))
    for one, other in zip(together, alone, strict=True):
        assert (one.score.correct, one.score.total) == (other.score.correct, other.score.total)
        assert one.score.loss == pytest.approx(other.score.loss, abs=1e-12)


def test_fine_tuning_is_one_more_round_of_which_nothing_is_sent():
    """What a client has after fine-tuning is what it would have trained in the next round, alone."""
    alone, scores = seen(
        lambda f: AllClients(f, f.plan.round).fine_tuned(),
        net=TINY_MLP,
        local=LocalTraining(batch_size=100, epochs=3, shuffle=False, optimizer=sgd(0.2)),
    )
    before = alone.space.read(alone.net)
    longer, expected = seen(
        lambda f: [client.trained_own for client in f.report.clients],
        net=TINY_MLP,
        rounds=3,
        local=LocalTraining(batch_size=100, epochs=3, shuffle=False, optimizer=sgd(0.2)),
        evaluation=Evaluation(),
    )
    assert [local.score.accuracy for local in scores] == expected
    assert not torch.equal(before, longer.space.read(longer.net))


def test_clients_without_a_test_set_are_left_out():
    """Nothing to measure, nobody to report."""
    _, scores = seen(lambda f: AllClients(f, f.plan.round).scores(), data=Blobs(SIZES))
    assert scores == ()


# ---- newcomers -----------------------------------------------------------------------------------------------------


def joined(net=WAFFLE, clients=2, visits=3, **settings):
    """Newcomers' scores as they come, with the mean choice, fitted, and fine-tuned."""

    def look(federation):
        joining = Joining(federation, federation.plan.round)
        return joining.scores(), joining.scores("mean"), joining.fitted(), joining.fine_tuned()

    return seen(look, net=net, newcomers=Newcomers(clients, visits), **settings)


@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
def test_newcomers_take_part_in_no_round(sampling):
    """They are drawn by the seed; the others take part as before; the means over everyone leave them out."""
    federation, all_clients = seen(
        lambda f: AllClients(f, f.plan.round).scores(),
        newcomers=Newcomers(2),
        rounds=4,
        participation=0.7,
        sampling=sampling,
    )
    absent = federation.client_pool.absent
    assert len(absent) == 2
    for round_ in range(4):
        assert absent.isdisjoint(federation.plan_of(round_).participants)
    assert absent.isdisjoint(federation.personal.clients)
    assert {local.client for local in all_clients} == set(range(5)) - absent
    assert federation.client_pool.most == (3 if sampling == "poisson" else 2)


def test_newcomers_fit_only_what_is_theirs():
    """Fitting lowers the loss on their own data and leaves the federation as it is."""
    federation, (before, mean, fitted, tuned) = joined(rounds=3, data=Blobs((30, 25, 30, 20, 25), nonmembers=0.4))
    assert {local.client for local in before} == federation.client_pool.absent
    for scores in (mean, fitted, tuned):
        assert [local.client for local in scores] == [local.client for local in before]
    for local in before:
        assert local.score.loss == pytest.approx(by_hand(federation, local.client).loss, abs=1e-9)
    assert sum(local.score.loss for local in fitted) < sum(local.score.loss for local in before)
    assert federation.client_pool.absent.isdisjoint(federation.personal.clients)


@pytest.mark.parametrize("executor", ["sequence", "vectorised"])
def test_shared_parameters_are_frozen(executor):
    """With the private part held at its start by a speed of almost nothing, fitting changes nothing at all."""
    still = partial(WAFFLE, speed=1e-12)
    federation, (_, _, fitted, tuned) = joined(net=still, executor=executor)
    for local, changed in zip(fitted, tuned, strict=True):
        expected = by_hand(federation, local.client, federation.personal.initial)
        assert local.score.loss == pytest.approx(expected.loss, abs=1e-6)
        assert changed.score.loss != pytest.approx(expected.loss, abs=1e-3)


def test_executors_agree_on_newcomers():
    """Frozen parameters are frozen however clients are trained."""
    results = [joined(executor=executor)[1][2] for executor in ("sequence", "threads", "vectorised")]
    for other in results[1:]:
        for mine, theirs in zip(results[0], other, strict=True):
            assert mine.score.loss == pytest.approx(theirs.score.loss, rel=1e-7)


def test_a_local_head_can_be_fitted_too():
    """Any private part will do."""
    _, (before, _, fitted, _) = joined(net=TINY_MLP, personal=["*classifier*"], rounds=3)
    assert sum(local.score.loss for local in fitted) < sum(local.score.loss for local in before)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Newcomers(5), "5 of 5 clients are newcomers"),
        (Newcomers(-1), "clients is -1"),
        (Newcomers(1, 0), "visits is 0"),
    ],
)
def test_impossible_newcomers_are_refused(settings, message):
    """Somebody must be left to train."""
    with pytest.raises(UserError, match=message):
        seen(lambda f: None, newcomers=settings)
