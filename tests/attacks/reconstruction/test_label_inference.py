"""Labels read from the gradient of the classifier."""

from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from app.attacks.reconstruction.inversion.label_inference import inferred_labels
from app.common.errors import UserError
from app.models.base import DataShape
from app.models.cnn import CNN
from app.models.mlp import MLP

SHAPE = DataShape(1, 8, 8, 10)
NETS = {
    "dense": lambda: MLP(SHAPE, hidden=(32,)),
    "group norm": lambda: CNN(SHAPE, u=8, norm="group"),
    "no bias": lambda: CNN(SHAPE, u=8, norm="group", bias=False),
    "linear": lambda: MLP(SHAPE, hidden=()),
    "linear without bias": lambda: MLP(SHAPE, hidden=(), bias=False),
}


def made(build, seed=0):
    """A network whose values depend on nothing but the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build().train()


def gradient(net, images, labels):
    """Flat gradient of the mean cross-entropy."""
    parts = torch.autograd.grad(cross_entropy(net(images), labels), list(net.parameters()))
    return torch.cat([part.reshape(-1) for part in parts])


def batch(count, draw, classes=10):
    """Noise with random labels."""
    return torch.randn(count, 1, 8, 8, generator=draw), torch.randint(0, classes, (count,), generator=draw)


def hits(found, truth):
    """Share of the labels that are found, each as often as it occurs."""
    return sum((Counter(found.tolist()) & Counter(truth.tolist())).values()) / len(truth)


def accuracy(net, count, repeats=40):
    """Mean share of found labels over random batches."""
    draw = torch.Generator().manual_seed(count)
    found = 0.0
    for _ in range(repeats):
        images, labels = batch(count, draw)
        found += hits(inferred_labels(net, gradient(net, images, labels), count, 10), labels)
    return found / repeats


@pytest.mark.parametrize("name", NETS)
def test_one_sample_is_always_right(name):
    """Also with features of both signs and without a bias."""
    assert accuracy(made(NETS[name]), 1) == 1.0


def test_one_sample_of_a_sharp_network():
    """A network that is sure of another class, or almost sure of the right one, tells the label all the same."""
    net = made(NETS["dense"]).double()
    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():
        net.layers.classifier.weight *= 30
    for _ in range(50):
        images, labels = batch(1, draw)
        assert inferred_labels(net, gradient(net, images.double(), labels), 1, 10).tolist() == labels.tolist()


def test_two_classes_without_bias():
    """Rows of equal length are told apart by their sign, given features that are not negative."""
    net = made(lambda: MLP(DataShape(1, 8, 8, 2), hidden=(16,), bias=False))
    draw = torch.Generator().manual_seed(0)
    for _ in range(40):
        images, labels = batch(1, draw, classes=2)
        assert inferred_labels(net, gradient(net, images, labels), 1, 2).tolist() == labels.tolist()


@pytest.mark.parametrize(("name", "least"), [("dense", 0.95), ("group norm", 0.9), ("no bias", 0.85)])
def test_small_batches_of_a_fresh_network(name, least):
    """Nearly all labels of two, four and eight samples are found, repeated ones included."""
    net = made(NETS[name])
    assert accuracy(net, 2) >= 0.97
    assert accuracy(net, 4) >= 0.95
    assert accuracy(net, 8) >= least


def test_exact_where_the_assumption_holds():
    """A network that predicts all classes alike gives away how often each label occurs, whatever the batch."""
    net = made(NETS["dense"])
    nn.init.zeros_(net.layers.classifier.weight)
    nn.init.zeros_(net.layers.classifier.bias)
    draw = torch.Generator().manual_seed(0)
    for count in (3, 20, 64):
        images, labels = batch(count, draw)
        found = inferred_labels(net, gradient(net, images, labels), count, 10)
        assert found.tolist() == sorted(labels.tolist())


def test_negative_gradients_come_first():
    """A class whose gradient is hardly negative is in the batch before another one is in it twice."""
    net = made(lambda: MLP(DataShape(1, 1, 1, 4), hidden=()))
    seen = torch.tensor([0.0, 0.0, 0.0, 0.0, -0.9, 0.5, -0.01, 0.41])
    assert inferred_labels(net, seen, 2, 4).tolist() == [0, 2]
    assert inferred_labels(net, seen, 3, 4).tolist() == [0, 0, 2]
    assert inferred_labels(net, seen, 1, 4).tolist() == [0]


def test_nothing_known_of_the_network_beyond_the_gradient():
    """Its values do not count, and neither does the order of the samples."""
    net, other = made(NETS["dense"]), made(NETS["dense"], seed=1)
    images, labels = batch(6, torch.Generator().manual_seed(0))
    seen = gradient(net, images, labels)
    found = inferred_labels(net, seen, 6, 10)
    assert torch.equal(found, inferred_labels(other, seen, 6, 10))
    again = gradient(net, images.flip(0), labels.flip(0))
    assert torch.equal(found, inferred_labels(net, again, 6, 10))
    assert found.dtype == torch.long


def test_no_linear_layer():
    """Refused, since nothing else has one row per class."""
    net = nn.Sequential(nn.Conv2d(1, 10, 8), nn.Flatten())
    with pytest.raises(UserError, match="no linear layer"):
        inferred_labels(net, torch.zeros(650), 1, 10)
