"""Coordinates that stay on the client: the baseline without federation, and local heads."""

import pytest
import torch
from federation_kit import TINY_MLP, Blobs, Recorder, Reports, initial, make_trainer, run, small_federation, whole_batch

from app.common.errors import UserError
from app.federation.evaluation import Evaluation
from app.federation.private_coordinates import PersonalCoordinates

SIZES = (5, 8, 11)


def lonely(**settings: object):
    """Every client for itself."""
    return small_federation(TINY_MLP, personal=["*"], **settings)


def test_nothing_personal_is_ever_sent():
    """`*`: messages are empty, the server never moves, clients learn nevertheless."""
    recorder, reports = Recorder(), Reports()
    federation = lonely(evaluation=Evaluation(), local=whole_batch(lr=1.0, epochs=10))
    start = initial(small_federation(TINY_MLP), Blobs(SIZES))
    end = run(federation, Blobs(SIZES), 6, [recorder, reports])
    assert torch.equal(end, start)
    assert all(message.index.numel() == 0 and message.size == 0 for message in recorder.messages)
    assert all(vector.numel() == 0 for _, vector, _ in recorder.updates)
    first, last = reports.rounds[0].clients, reports.rounds[-1].clients
    for before, after in zip(first, last, strict=True):
        assert after.loss < before.loss
        assert after.trained_common > before.received_common
        assert after.bytes_up == 0


def test_local_rounds_are_one_long_local_training():
    """Three rounds of two full-batch steps are six steps of one client alone."""
    federation = lonely(local=whole_batch(epochs=2))
    run(federation, Blobs(SIZES), 3)
    alone = lonely(local=whole_batch(epochs=6))
    run(alone, Blobs(SIZES), 1)
    for client, values in federation.personal.state_dict().items():
        torch.testing.assert_close(values, alone.personal.state_dict()[client], rtol=0, atol=1e-13)


def test_received_scores_of_local_clients_are_their_own():
    """Clients start from different models, so scores must not be shared between them."""
    reports = Reports()
    federation = lonely(evaluation=Evaluation(), local=whole_batch(lr=1.0, epochs=10))
    run(federation, Blobs(SIZES), 3, [reports])
    earlier, later = reports.rounds[-2].clients, reports.rounds[-1].clients
    assert [client.trained_common for client in earlier] == [client.received_common for client in later]
    assert len({client.received_common for client in later}) > 1


def test_a_local_head_stays_and_the_rest_travels():
    """Messages hold exactly the other coordinates; the server's head never moves; clients' heads differ."""
    recorder = Recorder()
    federation = small_federation(TINY_MLP, personal=["layers.classifier.*"])
    start = initial(small_federation(TINY_MLP), Blobs(SIZES))
    end = run(federation, Blobs(SIZES), 2, [recorder])
    head = federation.space.matching(["layers.classifier.*"])
    body = (~head).nonzero().flatten()
    assert all(torch.equal(message.index, body) for message in recorder.messages)
    assert torch.equal(end[head], start[head])
    assert not torch.equal(end[~head], start[~head])
    kept = list(federation.personal.state_dict().values())
    assert {len(values) for values in kept} == {int(head.sum())}
    assert not torch.equal(kept[0], kept[1])


def test_a_local_head_is_put_back_into_what_the_client_receives():
    """Round 2 starts from the server's body and the client's own head."""

    class Start(Recorder):
        """Keeps what clients are sent."""

        def on_broadcast(self, trainer, federation, client, vector):
            """After personal coordinates are in place."""
            self.started.append((federation.plan.round, client, vector.clone()))

        def on_round_start(self, trainer, federation, plan):
            """The server's vector and the heads before the round."""
            self.theta = federation.theta.clone()
            self.heads = dict(federation.personal.state_dict())

    recorder = Start()
    federation = small_federation(TINY_MLP, personal=["layers.classifier.*"])
    run(federation, Blobs(SIZES), 2, [recorder])
    head = federation.space.matching(["layers.classifier.*"])
    for round_, client, vector in recorder.started:
        if round_ == 1:
            assert torch.equal(vector[~head], recorder.theta[~head])
            assert torch.equal(vector[head], recorder.heads[str(client)])


def test_narrow_clients_with_a_local_head():
    """Submodels keep only their own coordinates; messages never hold a personal one."""
    recorder = Recorder()
    federation = small_federation(TINY_MLP, personal=["layers.classifier.*"], capacities=[1.0, 0.5, 0.25])
    run(federation, Blobs(SIZES), 2, [recorder])
    head = federation.space.matching(["layers.classifier.*"])
    for message in recorder.messages:
        index = federation.plan.index(message.client)
        assert torch.equal(message.index, index[~head[index]])
        assert message.payload.numel() == message.index.numel()


def test_personal_coordinates_survive_a_checkpoint(tmp_path):
    """Two rounds, saved, loaded and continued, end where four rounds in one go do."""
    whole = lonely()
    run(whole, Blobs(SIZES), 4)
    first = lonely()
    trainer = make_trainer(2)
    trainer.fit(first, datamodule=Blobs(SIZES))
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    second = lonely()
    make_trainer(4).fit(second, datamodule=Blobs(SIZES), ckpt_path=tmp_path / "half.ckpt")
    state, expected = second.personal.state_dict(), whole.personal.state_dict()
    assert set(state) == set(expected) == {"0", "1", "2"}
    assert all(torch.equal(state[client], expected[client]) for client in expected)


def test_state_roundtrip():
    """What one store saved, another one gives back."""
    everything, theta = torch.arange(3), torch.tensor([1.0, 2.0, 3.0])
    coordinates = PersonalCoordinates(torch.tensor([True, False, True]), theta)
    coordinates.keep(4, everything, torch.tensor([10.0, 20.0, 30.0]))
    coordinates.synchronise()
    assert coordinates.clients == (4,)
    assert coordinates.of(4).tolist() == [10.0, 30.0]
    other = PersonalCoordinates(torch.tensor([True, False, True]), theta)
    other.load_state_dict(coordinates.state_dict())
    vector = theta.clone()
    other.restore(4, everything, vector)
    assert vector.tolist() == [10.0, 2.0, 30.0]
    newcomer = torch.zeros(3)
    other.restore(5, everything, newcomer)
    assert newcomer.tolist() == [1.0, 0.0, 3.0]


def test_coordinates_outside_a_submodel_are_remembered():
    """A client that trains other coordinates in the next round still has the first ones."""
    theta = torch.zeros(4)
    coordinates = PersonalCoordinates(torch.ones(4, dtype=torch.bool), theta)
    for index, values in (([0, 1], [1.0, 2.0]), ([1, 2], [5.0, 6.0])):
        coordinates.keep(0, torch.tensor(index), torch.tensor(values))
        coordinates.synchronise()
    vector = theta.clone()
    coordinates.restore(0, torch.arange(4), vector)
    assert vector.tolist() == [1.0, 5.0, 6.0, 0.0]


def test_values_of_a_round_count_from_the_next_one():
    """What a client kept shows only after the round, so that order does not matter."""
    coordinates = PersonalCoordinates(torch.ones(2, dtype=torch.bool), torch.zeros(2))
    coordinates.keep(0, torch.arange(2), torch.tensor([7.0, 7.0]))
    vector = torch.zeros(2)
    coordinates.restore(0, torch.arange(2), vector)
    assert vector.tolist() == [0.0, 0.0]


def test_an_unknown_name_is_refused():
    """Before any training, with the names to choose from."""
    with pytest.raises(UserError, match="head"):
        run(small_federation(TINY_MLP, personal=["head.*"]), Blobs(SIZES))


def test_the_server_keeps_its_copy_of_personal_coordinates():
    """With `uncovered_cells: zero` a client that joins late must not start from a head of zeros."""
    federation = small_federation(TINY_MLP, personal=["*classifier*"], uncovered_cells="zero", participation=0.34)
    start = initial(small_federation(TINY_MLP), Blobs(SIZES))
    end = run(federation, Blobs(SIZES), 2)
    head = federation.space.matching(["*classifier*"])
    assert torch.equal(end[head], start[head])
    assert not torch.equal(end[~head], start[~head])
