"""A client may refuse to train: it is left out of the round, nobody else notices, and the reason is told once."""

import re
import warnings

import pytest
import torch
from federation_kit import TINY_MLP, Blobs, Recorder, Reports, run, sgd, small_federation, whole_batch

from app.federation.evaluation import Evaluation
from app.federation.hooks import FederatedCallback
from app.federation.local_training import LocalTraining
from app.federation.reports import listed

SIZES = (5, 8, 11)


class Refusing(FederatedCallback):
    """Some clients refuse in some rounds (0-based)."""

    def __init__(self, clients=(1,), rounds=(0,), reason="no wish to"):
        self.clients, self.rounds, self.reason, self.ended = clients, rounds, reason, []

    def on_client_start(self, trainer, federation, client):
        """Say why."""
        assert client.refusal == ""
        if client.client in self.clients and client.round in self.rounds:
            client.refusal = self.reason

    def client_loss(self, federation, client, batch, logits, loss):
        """Who refuses takes no step."""
        assert not client.refusal
        return loss

    def on_client_end(self, trainer, federation, client):
        """Heard for everybody."""
        self.ended.append(client.client)


@pytest.mark.parametrize("executor", ["sequence", "threads"])
def test_who_refuses_is_left_out(executor):
    """The mean is over the others; the client ends as usual, sends nothing, has no scores, and comes back."""
    refusing, recorder, reports = Refusing(), Recorder(), Reports()
    federation = small_federation(executor=executor, workers=2, evaluation=Evaluation())
    with pytest.warns(UserWarning, match=r"^round 1: client 1 refuses to train: no wish to$"):
        run(federation, Blobs(SIZES), 2, [refusing, recorder, reports])
    first = [vector for client, vector, _ in recorder.updates[:2]]
    assert [client for client, _, _ in recorder.updates] == [2, 0, 2, 1, 0]
    torch.testing.assert_close(recorder.started[1], sum(first) / 2, rtol=0, atol=1e-15)
    assert sorted(refusing.ended) == [0, 0, 1, 1, 2, 2]
    one, other = reports.rounds[0].clients[1], reports.rounds[1].clients[1]
    assert (one.dropped, one.refusal, one.bytes_up) == (True, "no wish to", 0)
    assert one.bytes_down == 15 * 8
    assert one.received_common != one.received_common  # not a number
    assert one.trained_common != one.trained_common
    assert (other.dropped, other.refusal) == (False, "")
    assert other.trained_common == other.trained_common


def test_others_are_trained_as_ever():
    """Bit for bit, although the same network is used for the client that refuses."""
    plain, left = Recorder(), Recorder()
    run(small_federation(TINY_MLP), Blobs(SIZES), 1, [plain])
    with pytest.warns(UserWarning, match="refuses"):
        run(small_federation(TINY_MLP), Blobs(SIZES), 1, [Refusing((2,)), left])
    expected = {client: vector for client, vector, _ in plain.updates if client != 2}
    found = {client: vector for client, vector, _ in left.updates}
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[client], expected[client]) for client in found)


@pytest.mark.parametrize("uncovered", ["keep", "zero"])
def test_when_all_refuse_the_server_stays(uncovered):
    """With one warning for all of them, and the usual one that nothing was sent."""
    recorder = Recorder()
    federation = small_federation(uncovered_cells=uncovered)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        end = run(federation, Blobs(SIZES), 2, [Refusing((0, 1, 2), (1,)), recorder])
    texts = [str(warning.message) for warning in told if str(warning.message).startswith("round 2")]
    assert texts == [
        "round 2: clients 0, 1, 2 refuse to train: no wish to",
        "round 2: no client sent a usable update; the server's model stays as it is.",
    ]
    assert torch.equal(end, recorder.started[1])


def test_personal_coordinates_stay():
    """Who refuses keeps what it had."""
    federation = small_federation(personal=["*"], local=whole_batch())
    with pytest.warns(UserWarning, match="refuses"):
        run(federation, Blobs(SIZES), 1, [Refusing()])
    assert set(federation.personal.state_dict()) == {"0", "2"}


def test_a_hundred_clients_stay_readable():
    """Ten names and a number."""
    sizes = [2] * 100
    federation = small_federation(local=LocalTraining(optimizer=sgd(0.1)))
    with pytest.warns(UserWarning, match=re.escape("clients 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 ... (100 in all) refuse")):
        run(federation, Blobs(sizes), 1, [Refusing(range(100))])
    texts = [listed([4]), listed([4, 5]), listed([1, 2, 3], most=2)]
    assert texts == ["client 4", "clients 4, 5", "clients 1, 2 ... (3 in all)"]
