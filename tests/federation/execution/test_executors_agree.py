"""Worker threads, one after the other, all at once: the same result within float tolerance."""

from functools import partial

import lightning.pytorch as pl
import pytest
import torch
from federation_kit import PICTURES, TINY_MLP, Blobs, Reports, run, sgd, small_federation
from torch.optim import Adam

from app.common.errors import UserError
from app.federation.aggregation import QFFL
from app.federation.evaluation import Evaluation
from app.federation.execution.executors import InSequence, WorkerThreads
from app.federation.execution.vectorised import Vectorised
from app.federation.hooks import FederatedCallback
from app.federation.local_training import LocalTraining
from app.models import CNN, MLP, DataShape, LeNet5
from datamodules import CropFlip

EXECUTORS = ("sequence", "threads", "vectorised")
SIZES = (3, 7, 10, 13, 9)  # partial batches, a leftover of one sample, clients that finish early
ROOMY = DataShape(1, 16, 16, 4)  # norms over 2x2 maps; over single pixels they would amplify rounding errors
NETS = {
    "mlp": TINY_MLP,
    "cnn group": partial(CNN, u=4, norm="group", channels_per_group=2),
    "cnn batch": partial(CNN, u=4, norm="batch"),
}
LOCAL = {
    "momentum and decay": {"optimizer": sgd(0.1, momentum=0.9, weight_decay=0.05)},
    "adam": {"optimizer": partial(Adam, lr=0.01, eps=1e-6)},
    "proximal": {"optimizer": sgd(0.2), "proximal": 0.7},
    "clipped": {"optimizer": sgd(0.5, momentum=0.5), "clip_norm": 0.2},
    "steps": {"optimizer": sgd(0.1, momentum=0.9), "steps": 5},
}


def outcome(executor: str, net: object, local: dict, augment: CropFlip | None = None, **settings: object):
    """Final vector and reports of two rounds with three widths."""
    reports = Reports()
    federation = small_federation(
        net,
        executor=executor,
        workers=2,
        capacities=[1.0, 0.5, 0.5, 1.0, 0.25],
        local=LocalTraining(**{"batch_size": 4, **local}),
        evaluation=Evaluation(),
        **settings,
    )
    data = Blobs(SIZES, ROOMY, nonmembers=0.3, augment=augment)
    return run(federation, data, 2, [reports]), reports.rounds


def assert_same(first, second, atol: float = 1e-11) -> None:
    """Equal vectors and equal reports of every client in every round."""
    torch.testing.assert_close(first[0], second[0], rtol=0, atol=atol)
    for left, right in zip(first[1], second[1], strict=True):
        assert left.server.accuracy == right.server.accuracy
        assert left.server.loss == pytest.approx(right.server.loss, abs=1e-7)
        assert [client.client for client in left.clients] == [client.client for client in right.clients]
        for mine, theirs in zip(left.clients, right.clients, strict=True):
            assert mine.loss == pytest.approx(theirs.loss, abs=1e-9)
            for name in ("received_common", "received_own", "trained_common", "trained_own", "samples", "capacity"):
                assert getattr(mine, name) == pytest.approx(getattr(theirs, name), abs=0, nan_ok=True), name
            assert (mine.bytes_up, mine.bytes_down) == (theirs.bytes_up, theirs.bytes_down)


@pytest.mark.parametrize(
    ("net", "local"),
    [
        *(("mlp", local) for local in LOCAL),
        ("cnn group", "steps"),
        *(("cnn batch", local) for local in ("clipped", "steps")),
    ],
)
def test_executors_agree(net, local):
    """Every kind of local training, every kind of net, unequal sizes and widths; Adam on all nets follows below.

    Momentum and proximal terms act on flat parameters, whatever layers they belong to.
    """
    reference, *others = (outcome(executor, NETS[net], LOCAL[local]) for executor in EXECUTORS)
    for other in others:
        assert_same(reference, other)


@pytest.mark.parametrize("net", NETS)
def test_executors_agree_with_augmentation(net):
    """Crops are drawn client by client, whoever trains them."""
    augment = CropFlip(padding=1)
    reference, *others = (outcome(executor, NETS[net], LOCAL["adam"], augment) for executor in EXECUTORS)
    for other in others:
        assert_same(reference, other)
    plain, _ = outcome("sequence", NETS[net], LOCAL["adam"])
    assert not torch.allclose(plain, reference[0])


def test_executors_agree_on_the_received_loss():
    """q-FFL's weights depend on it."""
    reference, *others = (
        outcome(executor, NETS["cnn group"], LOCAL["clipped"], server=partial(QFFL, q=1.0)) for executor in EXECUTORS
    )
    for other in others:
        assert_same(reference, other)


@pytest.mark.parametrize("net", ["mlp", "cnn group"])
def test_executors_agree_in_single_precision(net):
    """Loosely, since rounding differs."""
    vectors = [
        run(
            small_federation(NETS[net], executor=executor, local=LocalTraining(batch_size=4, optimizer=sgd(0.1))),
            Blobs(SIZES, ROOMY),
            precision="32-true",
        )
        for executor in EXECUTORS
    ]
    for vector in vectors[1:]:
        torch.testing.assert_close(vector, vectors[0], rtol=0, atol=2e-5)


class Ridge(FederatedCallback):
    """A loss hook that works for many clients at once."""

    vectorisable = True

    def client_loss(self, federation, client, batch, logits, loss):
        """Adds the squared norm of the logits and of the parameters."""
        return loss + 0.1 * logits.square().mean() + 0.05 * sum(p.square().sum() for p in client.net.parameters())


def test_a_vectorisable_loss_hook_acts_on_each_client_alone():
    """The same objective under vmap as one by one."""
    vectors = []
    for executor in EXECUTORS:
        federation = small_federation(
            TINY_MLP, executor=executor, local=LocalTraining(batch_size=4, optimizer=sgd(0.1))
        )
        vectors.append(run(federation, Blobs(SIZES), 2, [Ridge()]))
    for vector in vectors[1:]:
        torch.testing.assert_close(vector, vectors[0], rtol=0, atol=1e-12)


class OneByOne(FederatedCallback):
    """Looks at each client."""

    def on_client_start(self, trainer, federation, client):
        """Nothing to do."""


REFUSED = {
    "dropout": (partial(MLP, hidden=(6,), dropout=0.2), [], "dropout"),
    "running statistics": (partial(CNN, u=4, statistics="running"), [], "running statistics"),
    "a callback": (TINY_MLP, [OneByOne()], "OneByOne"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_vectorised_is_refused_where_it_would_be_wrong(case):
    """The error names the reason and the way out."""
    net, callbacks, reason = REFUSED[case]
    with pytest.raises(UserError, match=reason) as caught:
        run(small_federation(net, executor="vectorised"), Blobs(SIZES, PICTURES), 1, callbacks)
    assert "--model.executor auto" in str(caught.value)


def test_all_reasons_are_named_at_once():
    """Dropout and a callback."""
    with pytest.raises(UserError, match=r"OneByOne.*dropout"):
        run(small_federation(REFUSED["dropout"][0], executor="vectorised"), callbacks=[OneByOne()])


class Spy(pl.Callback):
    """Remembers which executor runs."""

    def on_train_epoch_start(self, trainer, pl_module):
        """The executor exists by now."""
        self.executor = pl_module._executor


AUTO = {
    "tiny net, tiny batches": (TINY_MLP, 16, 2, [], Vectorised),
    "tiny net, large batches": (TINY_MLP, 128, 2, [], WorkerThreads),
    "large net": (partial(MLP, hidden=(7000, 70)), 16, 2, [], WorkerThreads),
    "convolutional": (NETS["cnn group"], 16, 2, [], WorkerThreads),
    "one worker": (NETS["cnn group"], 16, 1, [], InSequence),
    "dropout": (partial(MLP, hidden=(6,), dropout=0.2), 16, 2, [], WorkerThreads),
    "callback": (TINY_MLP, 16, 2, [OneByOne()], WorkerThreads),
    "vectorisable callback": (TINY_MLP, 16, 2, [Ridge()], Vectorised),
}


@pytest.mark.parametrize("case", AUTO)
def test_auto_picks_the_expected_executor(case):
    """On a CPU: all at once for tiny nets with small batches, else threads where there are several workers."""
    net, batch_size, workers, callbacks, expected = AUTO[case]
    spy = Spy()
    federation = small_federation(
        net, executor="auto", workers=workers, local=LocalTraining(batch_size=batch_size, optimizer=sgd(0.1))
    )
    run(federation, Blobs((4, 4), PICTURES), 1, [spy, *callbacks])
    assert type(spy.executor) is expected


@pytest.mark.parametrize("net", [partial(MLP, hidden=(8,), dropout=0.4), partial(LeNet5, padding=4, dropout=0.3)])
def test_dropout_masks_do_not_depend_on_the_executor(net):
    """Masks are keyed by round and client, so threads draw what the sequence draws."""
    vectors = [
        run(
            small_federation(net, executor=executor, workers=3, local=LocalTraining(batch_size=4)),
            Blobs(SIZES, PICTURES),
        )
        for executor in ("sequence", "threads")
    ]
    torch.testing.assert_close(vectors[1], vectors[0], rtol=0, atol=1e-12)


def test_running_statistics_travel_and_are_averaged():
    """Ordinary batch norm: buffers move, and are the plain mean of the clients' even under a server optimiser."""
    federation = small_federation(partial(CNN, u=2, statistics="running"), executor="threads", workers=2)
    end = run(federation, Blobs((6, 6), PICTURES), 1)
    buffers = end[federation.space.trainable :]
    assert len(buffers) == 60
    assert not torch.equal(buffers.unique(), torch.tensor([0.0, 1.0], dtype=torch.float64))
