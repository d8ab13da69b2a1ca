"""A client that diverges is left out of the round, and nobody else notices."""

from functools import partial

import pytest
import torch
from federation_kit import TINY_MLP, Blobs, Recorder, Reports, initial, run, sgd, small_federation, whole_batch

from app.federation.aggregation import QFFL, FedAdam, FedAvg, FedAvgM
from app.federation.hooks import FederatedCallback
from app.federation.local_training import LocalTraining
from datamodules import RawData

SIZES = (5, 8, 11)
STARVED = 1


class BrokenPixels(Blobs):
    """One client's first picture holds a NaN."""

    def load(self) -> RawData:
        """The usual pictures, one of them broken."""
        raw = super().load()
        raw.images[SIZES[0], 0, 0, 0] = float("nan")
        return raw


class Poison(FederatedCallback):
    """Some clients' loss is NaN in some rounds."""

    def __init__(self, clients: tuple[int, ...], rounds: tuple[int, ...] = (0,)) -> None:
        self.clients, self.rounds = clients, rounds

    def client_loss(self, federation, client, batch, logits, loss):
        """NaN for the chosen ones."""
        chosen = client.client in self.clients and client.round in self.rounds
        return loss * float("nan") if chosen else loss


class Overflow(FederatedCallback):
    """One client's model ends with an infinite weight, although its losses were finite."""

    def on_client_end(self, trainer, federation, client):
        """After the last step."""
        if client.client == STARVED:
            next(client.net.parameters()).data.view(-1)[3] = float("inf")


def assert_left_out(end: torch.Tensor, recorder: Recorder, reports: Reports) -> None:
    """The mean is over the two others, and the report says who was dropped."""
    assert sorted(client for client, _, _ in recorder.updates) == [0, 2]
    assert sorted(message.client for message in recorder.messages) == [0, 2]
    assert recorder.aggregates[0][2] == 2
    torch.testing.assert_close(end, sum(vector for _, vector, _ in recorder.updates) / 2, rtol=0, atol=1e-15)
    (report,) = reports.rounds
    assert [client.dropped for client in report.clients] == [False, True, False]
    assert report.clients[STARVED].bytes_up == 0
    assert report.clients[STARVED].bytes_down == len(end) * 8


@pytest.mark.parametrize("culprit", [Poison((STARVED,)), Overflow()])
@pytest.mark.parametrize("executor", ["sequence", "threads"])
def test_a_diverged_client_is_never_averaged_in(culprit, executor):
    """NaN loss or infinite weight: dropped with a warning that names client, round and remedy."""
    recorder, reports = Recorder(), Reports()
    with pytest.warns(UserWarning, match=r"round 1: client 1 diverged.*optimizer\.lr"):
        end = run(small_federation(executor=executor, workers=2), Blobs(SIZES), 1, [culprit, recorder, reports])
    assert bool(end.isfinite().all())
    assert_left_out(end, recorder, reports)


@pytest.mark.parametrize("executor", ["sequence", "threads", "vectorised"])
def test_broken_data_harm_only_their_owner(executor):
    """One NaN pixel drops its owner; clients trained in the same call get what they get alone."""
    recorder, reports, healthy = Recorder(), Reports(), Recorder()
    local = LocalTraining(batch_size=4, optimizer=sgd(0.2, momentum=0.9), clip_norm=1.0, proximal=0.1)
    settings = {"executor": executor, "local": local, "workers": 2}
    with pytest.warns(UserWarning, match="client 1 diverged"):
        end = run(small_federation(TINY_MLP, **settings), BrokenPixels(SIZES), 1, [recorder, reports])
    assert_left_out(end, recorder, reports)
    run(small_federation(TINY_MLP, **settings), Blobs(SIZES), 1, [healthy])
    sound = {client: vector for client, vector, _ in healthy.updates}
    for client, vector, _ in recorder.updates:
        torch.testing.assert_close(vector, sound[client], rtol=0, atol=1e-13)


def test_a_huge_learning_rate_drops_everybody():
    """Real divergence: products of weights overflow single precision, the server stays where it was."""
    local = LocalTraining(batch_size=2, epochs=3, optimizer=sgd(1e38))
    start = initial(small_federation(TINY_MLP), precision="32-true")
    with pytest.warns(UserWarning, match="no client sent a usable update"):
        end = run(small_federation(TINY_MLP, local=local), precision="32-true")
    assert torch.equal(end, start)


SERVERS = {
    "fedavg": FedAvg,
    "half a step": partial(FedAvg, lr=0.5),
    "fedavgm": partial(FedAvgM, lr=1.0, momentum=0.9),
    "fedadam": partial(FedAdam, lr=0.1),
    "q-ffl": partial(QFFL, q=1.0),
}


@pytest.mark.parametrize("uncovered", ["keep", "zero"])
@pytest.mark.parametrize("server", SERVERS)
def test_without_any_update_the_server_stays(server, uncovered):
    """Bit for bit, as the warning says, although earlier rounds left momentum behind; the next round goes on."""
    recorder = Recorder()
    federation = small_federation(server=SERVERS[server], uncovered_cells=uncovered, capacities=[1.0])
    with pytest.warns(UserWarning, match="round 2: no client sent a usable update"):
        end = run(federation, Blobs(SIZES), 3, [Poison((0, 1, 2), rounds=(1,)), recorder])
    first, before, after = recorder.started
    assert not torch.equal(before, first)
    assert torch.equal(after, before)
    assert bool(end.isfinite().all())
    assert not torch.equal(end, after)


def test_a_dropped_client_comes_back():
    """Dropping is for one round only."""
    reports = Reports()
    with pytest.warns(UserWarning, match="client 1 diverged"):
        run(small_federation(), Blobs(SIZES), 2, [Poison((STARVED,)), reports])
    assert [report.clients[STARVED].dropped for report in reports.rounds] == [True, False]


def test_a_dropped_client_keeps_what_it_had():
    """Personal coordinates of a diverged round are thrown away with it."""
    federation = small_federation(personal=["*"], local=whole_batch())
    with pytest.warns(UserWarning, match="client 1 diverged"):
        run(federation, Blobs(SIZES), 1, [Poison((STARVED,))])
    assert set(federation.personal.state_dict()) == {"0", "2"}


class BadDefense(FederatedCallback):
    """A defense that divides by zero on one client's update."""

    def on_client_update(self, trainer, federation, update):
        """NaN for the chosen one."""
        if update.client == STARVED:
            update.vector.mul_(float("nan"))


def test_an_update_that_a_defense_ruined_is_left_out():
    """What is not finite after the defenses never reaches the mean, and the report says so."""
    recorder, reports = Recorder(), Reports()
    with pytest.warns(UserWarning, match=f"client {STARVED} has an update that is not finite after the defenses"):
        end = run(small_federation(TINY_MLP), Blobs(SIZES), 1, [BadDefense(), recorder, reports])
    assert end.isfinite().all()
    assert sorted(message.client for message in recorder.messages) == [0, 2]
    assert [client.dropped for client in reports.rounds[0].clients] == [False, True, False]
