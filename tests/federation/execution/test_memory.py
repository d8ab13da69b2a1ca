"""Vectorised calls are no larger than the device's free memory allows; results do not depend on it."""

from functools import partial

import pytest
import torch
from federation_kit import PICTURES, TINY_MLP, Blobs, run, sgd, small_federation
from torch.optim import Adam

from app.federation.client import ClientModule
from app.federation.execution import memory, vectorised
from app.federation.execution.memory import COPIES, bytes_of_training, free_memory, optimiser_copies
from app.federation.execution.vectorised import ClientStack
from app.federation.local_training import LocalTraining
from app.models import CNN, MLP, DataShape

SIZES = (8, 9, 10, 11, 12, 13, 14, 15)
NETS = {"mlp": TINY_MLP, "cnn": partial(CNN, u=4, norm="group", channels_per_group=2)}
LOCAL = LocalTraining(batch_size=4, optimizer=sgd(0.1, momentum=0.9))


@pytest.fixture
def stacks(monkeypatch):
    """Numbers of clients of every vectorised call that was begun."""
    sizes, fit = [], ClientStack.fit

    def counted(stack):
        sizes.append(len(stack._batches))
        fit(stack)

    monkeypatch.setattr(ClientStack, "fit", counted)
    return sizes


def result(net="mlp", **settings):
    """Final vector of two rounds, all clients in one block."""
    return run(small_federation(NETS[net], executor="vectorised", local=LOCAL, **settings), Blobs(SIZES, PICTURES), 2)


def test_bytes_of_a_known_network():
    """A linear layer and its loss: the images, the logits' softmax, one number per label; float32, batches of 6."""
    net = MLP(DataShape(1, 4, 4, 5), hidden=())
    client = ClientModule(net, LocalTraining(optimizer=sgd(0.1)))
    batch = torch.rand(6, 1, 4, 4), torch.zeros(6, dtype=torch.long)
    images, softmax, labels, total = 6 * 16 * 4, 6 * 5 * 4, 6 * 8, 4
    parameters = (16 * 5 + 5) * 4
    expected = COPIES * parameters + images + softmax + labels + total + 2 * images
    assert bytes_of_training(client, batch) == expected
    twice = ClientModule(net, LocalTraining(optimizer=Adam, proximal=0.1))
    assert bytes_of_training(twice, batch) - expected >= 3 * parameters


@pytest.mark.parametrize(("optimizer", "copies"), [(sgd(0.1), 0), (sgd(0.1, momentum=0.9), 1), (Adam, 2)])
def test_state_of_optimisers(optimizer, copies):
    """Counted after one step."""
    assert optimiser_copies(LocalTraining(optimizer=optimizer)) == copies


@pytest.mark.parametrize("net", NETS)
def test_calls_are_bounded_by_free_memory(net, stacks, monkeypatch):
    """Room for three and a half clients: calls of three at most; the model is that of one call."""
    reference = result(net)
    assert stacks == [8, 8]
    stacks.clear()
    measured = []
    monkeypatch.setattr(vectorised, "bytes_of_training", lambda *pair: measured.append(bytes_of_training(*pair)) or 100)
    monkeypatch.setattr(vectorised, "free_memory", lambda device: 350 / memory.USABLE)
    torch.testing.assert_close(result(net), reference, rtol=0, atol=1e-12)
    assert stacks == [3, 3, 2] * 2
    assert len(measured) == 1, "once for a width"
    assert measured[0] > COPIES * 8 * sum(value.numel() for value in NETS[net](PICTURES).parameters())


def test_too_little_for_one_client_is_tried(stacks, monkeypatch):
    """The estimate may be too high."""
    monkeypatch.setattr(vectorised, "free_memory", lambda device: 0)
    result()
    assert stacks == [1] * 16


def test_half_as_many_when_the_memory_is_used_up(stacks, monkeypatch):
    """8 clients fail, 4 fail, 2 fit; from then on there are 2 in a call, and the model is the same."""
    reference, fit = result(), ClientStack.fit
    stacks.clear()
    monkeypatch.setattr(ClientStack, "fit", _failing_above(2, fit))
    torch.testing.assert_close(result(), reference, rtol=0, atol=1e-12)
    assert stacks == [8, 4, *[2] * 8]


def _failing_above(most, fit):
    """Trains, and then finds the memory of the device too small for so many clients."""

    def limited(stack):
        fit(stack)
        if len(stack._batches) > most:
            raise torch.OutOfMemoryError("out of memory")

    return limited


def test_one_client_that_does_not_fit_is_an_error(stacks, monkeypatch):
    """There is nothing left to try."""
    monkeypatch.setattr(ClientStack, "fit", _failing_above(0, ClientStack.fit))
    with pytest.raises(torch.OutOfMemoryError):
        result()
    assert stacks == [8, 4, 2, 1]


def test_free_memory_of_a_device(monkeypatch):
    """What the device has, and what torch holds without using it; nothing is known of a CPU."""
    assert free_memory(torch.device("cpu")) is None
    figures = {"mem_get_info": (1000, 9000), "memory_reserved": 500, "memory_allocated": 200}
    for name, figure in figures.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, figure=figure: figure)
    assert free_memory(torch.device("cuda", 1)) == 1300
