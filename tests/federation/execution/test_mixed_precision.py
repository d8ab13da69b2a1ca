"""bfloat16 autocast: close to single precision, parameters and sums stay in full."""

from functools import partial

import pytest
import torch
from federation_kit import TINY_MLP, Blobs, Reports, initial, run, sgd, small_federation
from torch.nn.functional import cross_entropy

from app.federation.evaluation import Evaluation
from app.federation.hooks import FederatedCallback
from app.federation.local_training import LocalTraining
from app.federation.parameters import ParameterSpace
from app.models import CNN, DataShape

ROOMY = DataShape(1, 16, 16, 4)
NETS = {"mlp": TINY_MLP, "cnn": partial(CNN, u=4, norm="group", channels_per_group=4)}
LOCAL = LocalTraining(batch_size=5, epochs=2, optimizer=sgd(0.05))


def trained(precision: str, executor: str, net: str, reports: Reports) -> torch.Tensor:
    """Two rounds, clients evaluated before and after training."""
    federation = small_federation(NETS[net], executor=executor, workers=2, local=LOCAL, evaluation=Evaluation())
    return run(federation, Blobs((9, 12, 15), ROOMY), 2, [reports], precision=precision)


@pytest.mark.parametrize("executor", ["sequence", "threads", "vectorised"])
@pytest.mark.parametrize("net", NETS)
def test_bfloat16_is_close_to_single_precision(net, executor):
    """The step of two rounds points the same way and is about as long."""
    start = initial(small_federation(NETS[net], local=LOCAL), Blobs((9, 12, 15), ROOMY), precision="32-true")
    single, mixed = Reports(), Reports()
    expected = trained("32-true", executor, net, single) - start
    step = trained("bf16-mixed", executor, net, mixed) - start
    assert step.dtype == torch.float32
    assert bool(step.isfinite().all())
    assert not torch.equal(step, expected)
    assert float((step - expected).norm() / expected.norm()) < 0.5
    for mine, theirs in zip(mixed.rounds[-1].clients, single.rounds[-1].clients, strict=True):
        assert mine.loss == pytest.approx(theirs.loss, rel=0.02)
        assert mine.bytes_up == theirs.bytes_up


def test_every_parameter_is_trained():
    """No weight is frozen by a copy that autocast kept."""
    start = initial(small_federation(NETS["cnn"], local=LOCAL), Blobs((9, 12, 15), ROOMY), precision="32-true")
    federation = small_federation(NETS["cnn"], local=LOCAL, evaluation=Evaluation())
    end = run(federation, Blobs((9, 12, 15), ROOMY), 1, precision="bf16-mixed")
    assert all(not torch.equal(end[block.coordinates], start[block.coordinates]) for block in federation.space.blocks)


class Batches(FederatedCallback):
    """Keeps one client's batches and its trained vector."""

    def __init__(self) -> None:
        self.batches = []

    def client_loss(self, federation, client, batch, logits, loss):
        """The batch as the client saw it."""
        if client.client == 0:
            self.batches.append(batch)
        return loss

    def on_client_update(self, trainer, federation, update):
        """The result."""
        if update.client == 0:
            self.vector = update.vector.clone()


@pytest.mark.parametrize("executor", ["sequence", "threads"])
def test_local_training_is_an_ordinary_autocast_loop(executor):
    """Step by step against a loop that enters autocast for each forward pass: no stale copy of a weight is used."""
    watched, data = Batches(), Blobs((9, 12, 15), ROOMY)
    start = initial(small_federation(NETS["cnn"], local=LOCAL), data, precision="32-true")
    federation = small_federation(NETS["cnn"], executor=executor, workers=2, local=LOCAL, evaluation=Evaluation())
    run(federation, data, 1, [watched], precision="bf16-mixed")
    net = NETS["cnn"](ROOMY).to(memory_format=torch.channels_last)
    space = ParameterSpace(net)
    space.write(net, start)
    optimizer = LOCAL.build_optimizer(net.parameters(), 0.05)
    assert len(watched.batches) == 4
    for images, labels in watched.batches:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = cross_entropy(net(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.testing.assert_close(space.read(net) - start, watched.vector - start, rtol=0, atol=1e-7)


def test_the_server_is_evaluated_alike_by_all_executors():
    """Worker threads score in the same precision as the main thread does."""
    scores = []
    for executor in ("sequence", "threads"):
        reports = Reports()
        trained("bf16-mixed", executor, "cnn", reports)
        scores.append([report.server for report in reports.rounds])
    assert scores[0] == scores[1]
