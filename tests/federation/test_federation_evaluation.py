"""What a round reports about the server and the clients, against direct computation."""

import math
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from federation_kit import (
    PICTURES,
    TINY_MLP,
    Blobs,
    Recorder,
    Reports,
    make_trainer,
    run,
    sgd,
    small_federation,
    whole_batch,
)
from torch.nn.functional import cross_entropy

from app.federation.evaluation import Evaluation, Score, evaluation_batches, score, statistics_context
from app.federation.local_training import LocalTraining
from app.federation.parameters import ParameterSpace
from app.models import CNN
from app.models.norms import posthoc_statistics

SIZES = (5, 8, 11)


def test_scores_add_up():
    """Sums, so that parts of a test set make the whole; nothing scored is NaN, not zero."""
    total = Score(3, 2.5, 4) + Score(1, 0.5, 2)
    assert total == Score(4, 3.0, 6)
    assert total.accuracy == pytest.approx(2 / 3)
    assert total.mean_loss == pytest.approx(0.5)
    assert math.isnan(Score().accuracy)
    assert math.isnan(Score().mean_loss)
    assert sum([Score(1, 1.0, 2), Score(2, 2.0, 3)], Score()) == Score(3, 3.0, 5)


def test_a_leftover_sample_joins_the_batch_before():
    """Only where the batch's statistics matter; other nets are evaluated in larger batches."""
    indices = torch.arange(17)
    normalised, plain = CNN(PICTURES, u=2), CNN(PICTURES, u=2, norm="none")
    assert [len(batch) for batch in evaluation_batches(normalised, indices, 8)] == [8, 9]
    assert [len(batch) for batch in evaluation_batches(normalised, indices[:16], 8)] == [8, 8]
    assert [len(batch) for batch in evaluation_batches(plain, indices, 8)] == [17]


def direct(net, data, indices, batch_size=None) -> tuple[float, float]:
    """Accuracy and mean loss in evaluation mode, batch by batch."""
    net.eval()
    correct, loss = 0, 0.0
    with torch.no_grad():
        for batch in indices.split(batch_size or len(indices)):
            images, labels = data.store.batch(batch, next(net.parameters()).dtype)
            logits = net(images)
            correct += int((logits.argmax(1) == labels).sum())
            loss += float(cross_entropy(logits, labels, reduction="sum"))
    return correct / len(indices), loss / len(indices)


@pytest.mark.parametrize("net", [TINY_MLP, partial(CNN, u=2), partial(CNN, u=2, norm="none")])
def test_reported_server_accuracy(net):
    """Of the model after aggregation, on the whole common test set, in batches of the configured size."""
    data, reports = Blobs(SIZES, PICTURES, tests=24), Reports()
    federation = small_federation(net, evaluation=Evaluation(clients=False, batch_size=8))
    trainer = make_trainer(2, callbacks=[reports])
    trainer.fit(federation, datamodule=data)
    accuracy, loss = direct(federation.net, data, data.common_test, 8)
    server = reports.rounds[-1].server
    assert server.total == 24
    assert server.accuracy == accuracy
    assert server.mean_loss == pytest.approx(loss, abs=1e-12)
    assert float(trainer.callback_metrics["server/accuracy"]) == pytest.approx(accuracy, abs=1e-6)
    assert float(trainer.callback_metrics["server/loss"]) == pytest.approx(loss, abs=1e-6)


def test_server_is_evaluated_as_often_as_lightning_validates():
    """check_val_every_n_epoch=2: the rounds between report nothing about the server."""
    reports = Reports()
    run(small_federation(), Blobs(SIZES), 4, [reports], check_val_every_n_epoch=2)
    assert [report.server.total for report in reports.rounds] == [0, 20, 0, 20]


class Sent(Recorder):
    """Keeps what every client was sent."""

    def on_round_start(self, trainer, federation, plan):
        """The server's vector."""
        self.theta = federation.theta.clone()


@pytest.mark.parametrize("executor", ["sequence", "threads", "vectorised"])
@pytest.mark.parametrize("net", [TINY_MLP, partial(CNN, u=4)])
def test_client_scores_equal_direct_evaluation(net, executor):
    """The received submodel and the trained one, on the common test set and on the client's own samples."""
    data, reports, sent = Blobs((8, 12, 20), PICTURES, tests=16, nonmembers=0.4), Reports(), Sent()
    local = LocalTraining(batch_size=4, epochs=2, optimizer=sgd(0.2))
    settings = {"capacities": [1.0, 0.5, 0.5], "local": local, "executor": executor, "workers": 2}
    federation = small_federation(net, evaluation=Evaluation(), **settings)
    run(federation, data, 2, [reports, sent])
    trained = {client: vector for client, vector, _ in sent.updates}
    for report in reports.rounds[-1].clients:
        alone = federation.net.scaled(report.capacity).double()
        space = ParameterSpace(alone)
        space.write(alone, sent.theta[federation.plan.index(report.client)])
        own = data.test_indices(report.client)
        assert report.received_common == direct(alone, data, data.common_test)[0]
        assert report.received_own == direct(alone, data, own)[0]
        space.write(alone, trained[report.client])
        assert report.trained_common == direct(alone, data, data.common_test)[0]
        assert report.trained_own == direct(alone, data, own)[0]


@pytest.mark.parametrize("executor", ["sequence", "vectorised"])
def test_utility_is_measured_by_right_labels(executor):
    """Clients train on wrong labels and are evaluated by the right ones."""
    data, reports, sent = Blobs((20, 30), PICTURES, tests=16, nonmembers=0.5), Reports(), Sent()
    data.label_noise = 0.5
    federation = small_federation(TINY_MLP, evaluation=Evaluation(), executor=executor)
    run(federation, data, 1, [reports, sent])
    right, local = SimpleNamespace(store=data.store.rightly_labelled), federation.net.scaled(1.0).double()
    space, changed = ParameterSpace(local), []
    for client, vector, _ in sent.updates:
        own, report = data.test_indices(client), reports.rounds[-1].clients[client]
        for values, reported in ((sent.theta, report.received_own), (vector, report.trained_own)):
            space.write(local, values)
            assert reported == direct(local, right, own)[0]
            changed.append(reported != direct(local, data, own)[0])
    assert len(changed) == 4
    assert any(changed)


def test_training_helps():
    """On a problem that a linear model can learn, the server ends far above chance."""
    reports = Reports()
    data = Blobs((40, 40, 40), PICTURES, tests=100)
    run(small_federation(local=whole_batch(lr=0.5, epochs=5)), data, 5, [reports])
    assert reports.rounds[-1].server.accuracy > 0.95


def test_clients_are_evaluated_every_so_often_and_in_the_last_round():
    """every=2 in five rounds: rounds 2, 4 and 5."""
    reports = Reports()
    run(small_federation(evaluation=Evaluation(every=2)), Blobs(SIZES), 5, [reports])
    known = [not math.isnan(report.clients[0].received_common) for report in reports.rounds]
    assert known == [False, True, False, True, True]


def test_clients_need_not_be_evaluated():
    """clients=False reports losses, but no accuracy."""
    reports = Reports()
    run(small_federation(), Blobs(SIZES), 2, [reports])
    for report in reports.rounds:
        assert all(math.isnan(client.trained_common) and math.isfinite(client.loss) for client in report.clients)


def test_limit_cuts_the_clients_test_set_only():
    """Clients see the first samples of the common test set, the server all of them."""
    data, reports = Blobs(SIZES, PICTURES, tests=30), Reports()
    federation = small_federation(TINY_MLP, evaluation=Evaluation(limit=7), local=whole_batch(lr=0.0))
    run(federation, data, 1, [reports])
    (report,) = reports.rounds
    assert report.server.total == 30
    expected = direct(federation.net, data, data.common_test[:7])[0]
    assert {client.received_common for client in report.clients} == {expected}


def test_own_accuracy_without_own_samples_is_unknown():
    """No held-out sample, no number."""
    reports = Reports()
    run(small_federation(evaluation=Evaluation()), Blobs(SIZES), 1, [reports])
    assert all(math.isnan(client.received_own) for client in reports.rounds[0].clients)


POSTHOC = partial(CNN, u=2, statistics="posthoc")


def posthoc_score(net, data, train, test, batch_size) -> Score:
    """Statistics of the training samples gathered directly, then plain scoring."""
    batches = [data.store.batch(batch, torch.float64)[0] for batch in train.split(batch_size)]
    with posthoc_statistics(net, batches):
        return score(net, data.store, test, batch_size)


def test_posthoc_statistics_of_the_server():
    """HeteroFL's static batch norm: the server normalises by all clients' training samples, client by client."""
    data, reports = Blobs((8, 8, 12), PICTURES, tests=30), Reports()
    federation = small_federation(POSTHOC, evaluation=Evaluation(clients=False, batch_size=7))
    run(federation, data, 2, [reports])
    everyone = torch.cat([data.train_indices(client) for client in range(3)])
    expected = posthoc_score(federation.net, data, everyone, data.common_test, 7)
    server = reports.rounds[-1].server
    assert server.correct == expected.correct
    assert server.loss == pytest.approx(expected.loss, abs=1e-9)
    with_batch = score(federation.net, data.store, data.common_test, 7)
    assert with_batch.loss != pytest.approx(expected.loss, abs=1e-3)


@pytest.mark.parametrize("executor", ["sequence", "threads", "vectorised"])
def test_posthoc_statistics_of_a_client(executor):
    """A client normalises by its own training samples, so equal models score differently."""
    data, reports, sent = Blobs((10, 15, 20), PICTURES, tests=40), Reports(), Sent()
    settings = {"executor": executor, "workers": 2, "local": whole_batch(lr=0.1)}
    federation = small_federation(POSTHOC, evaluation=Evaluation(batch_size=5), **settings)
    run(federation, data, 1, [reports, sent])
    net = federation.net
    for report in reports.rounds[0].clients:
        train = data.train_indices(report.client)
        federation.space.write(net, sent.theta)
        assert report.received_common == posthoc_score(net, data, train, data.common_test, 5).accuracy
        federation.space.write(net, {c: v for c, v, _ in sent.updates}[report.client])
        assert report.trained_common == posthoc_score(net, data, train, data.common_test, 5).accuracy


def test_posthoc_context_leaves_the_net_as_it_was():
    """No statistics stay behind, and nets of other kinds are left alone."""
    data = Blobs(SIZES, PICTURES)
    data.setup()
    for net, inside in ((POSTHOC(PICTURES), True), (CNN(PICTURES, u=2), False), (TINY_MLP(PICTURES), False)):
        before = {name: value.clone() for name, value in net.state_dict().items()}
        with statistics_context(net, data.store, torch.arange(20), 8):
            assert (len(net.state_dict()) > len(before)) is inside
        assert {name: value.tolist() for name, value in net.state_dict().items()} == {
            name: value.tolist() for name, value in before.items()
        }


def test_evaluation_does_not_change_training():
    """Scores come from a copy's point of view: with or without them, the same bits."""
    for net in (partial(CNN, u=2), POSTHOC, partial(CNN, u=2, statistics="running")):
        results = [
            run(
                small_federation(
                    net,
                    evaluation=Evaluation(clients=clients, batch_size=5),
                    local=LocalTraining(batch_size=4, optimizer=sgd(0.1)),
                ),
                Blobs(SIZES, PICTURES, nonmembers=0.3),
                precision="32-true",
            )
            for clients in (True, False)
        ]
        assert torch.equal(results[0], results[1])


def test_bytes_are_those_of_the_submodel():
    """Down and up, at the client's width and the run's precision."""
    reports = Reports()
    federation = small_federation(TINY_MLP, capacities=[1.0, 0.5, 0.25])
    run(federation, Blobs(SIZES), 1, [reports], precision="32-true")
    for report in reports.rounds[0].clients:
        assert report.bytes_up == report.bytes_down == 4 * len(federation.plan.index(report.client))


def test_seconds_are_counted_per_phase():
    """All phases are there, none negative, and the total covers them on one process."""
    reports = Reports()
    run(small_federation(), Blobs(SIZES), 2, [reports])
    for report in reports.rounds:
        phases = dict(report.seconds)
        total = phases.pop("total")
        assert set(phases) == {"clients", "defend", "channel", "server", "evaluate"}
        assert all(seconds >= 0 for seconds in phases.values())
        assert sum(phases.values()) <= total


def test_validation_without_training():
    """`trainer.validate` scores the server's model as it is."""
    data, federation, trainer = Blobs(SIZES), small_federation(), make_trainer(1)
    trainer.validate(federation, datamodule=data, verbose=False)
    accuracy, loss = direct(federation.net, data, data.common_test)
    assert float(trainer.callback_metrics["server/accuracy"]) == pytest.approx(accuracy, abs=1e-6)
    assert float(trainer.callback_metrics["server/loss"]) == pytest.approx(loss, abs=1e-6)
