"""Gradient inversion by optimisation: one image comes back, noise does not, and unread coordinates do not count."""

import math
from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, interpolate

from app.attacks.reconstruction.inversion.gradient_matching import GradientMatching, total_variation
from app.attacks.reconstruction.inversion.second_derivatives import smoothed_second_derivatives
from app.common.errors import UserError
from app.metrics.image_similarity import pearson_matrix
from app.models.base import DataShape
from app.models.cnn import CNN
from app.models.layers import SeededDropout
from app.models.lenet import LeNet5
from app.models.mlp import MLP

SHAPE = DataShape(1, 8, 8, 4)
LOW, HIGH = torch.tensor([-1.0]), torch.tensor([1.0])


def conv_net(seed=0, activation=nn.ReLU, inputs=1):
    """Two convolutions and a classifier that sees every pixel of the map."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(inputs, 12, 3, padding=1),
            activation(),
            nn.Conv2d(12, 12, 3, padding=1, stride=2),
            activation(),
            nn.Flatten(),
            nn.Linear(192, 4),
        )


def picture(seed=0):
    """A bright blob on a dark ground, with a stripe."""
    draw = torch.Generator().manual_seed(seed)
    row, column = (torch.arange(8.0) - 1 - 5 * torch.rand(2, 1, generator=draw)).square()
    blob = 2 * torch.exp(-(row[:, None] + column[None, :]) / 4) - 1
    blob[:, int(7 * torch.rand((), generator=draw))] = 0.5
    return blob.view(1, 1, 8, 8)


def landscape(seed):
    """A smooth image of 28x28 pixels."""
    grid = torch.rand(1, 1, 5, 5, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return interpolate(grid, (28, 28), mode="bilinear")


def pooled_net(kind):
    """A network of the project with max-pools, for 28x28 pixels: LeNet-5, or the CNN with group norm."""
    shape = DataShape(1, 28, 28, 4)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LeNet5(shape) if kind == "LeNet5" else CNN(shape, norm="group")


def gradient(net, images, labels):
    """Flat gradient of the mean cross-entropy in training mode without dropout; the network is left alone."""
    copy = deepcopy(net).train().requires_grad_()
    for layer in copy.modules():
        if isinstance(layer, SeededDropout):
            layer.p = 0.0
    parts = torch.autograd.grad(cross_entropy(copy(images), labels), list(copy.parameters()))
    return torch.cat([part.reshape(-1) for part in parts])


def run(net, seen, count=1, known=None, seed=0, shape=SHAPE, **settings):
    """The attack with few steps."""
    attack = GradientMatching(**{"steps": 150, **settings})
    bounds = tuple(bound.repeat(shape.channels) for bound in (LOW, HIGH))
    return attack.images(net, seen, known, shape, count, None, bounds, torch.Generator().manual_seed(seed))


def likeness(truth, found):
    """Pearson correlation of every true image and its best match."""
    return pearson_matrix(truth, found).max(dim=1).values


@pytest.mark.parametrize(
    ("activation", "dtype", "steps"), [(nn.ReLU, torch.float32, 150), (nn.Softplus, torch.float64, 250)]
)
def test_one_image_comes_back(activation, dtype, steps):
    """From the gradient of a convolutional network, whose size does not matter."""
    net, image = conv_net(activation=activation).to(dtype), picture().to(dtype)
    found = run(net, 7 * gradient(net, image, torch.tensor([2])), steps=steps)
    assert found.images.dtype == dtype
    assert found.labels.tolist() == [2]
    assert likeness(image, found.images) >= 0.95
    assert found.losses.shape == (1,)
    assert found.losses[0] < 0.05


def test_a_batch_of_a_dense_network_comes_back():
    """Three images with their inferred labels, all of them; in colour."""
    shape = DataShape(3, 4, 4, 4)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = MLP(shape, hidden=(100,))
    images = torch.rand(3, 3, 4, 4, generator=torch.Generator().manual_seed(1)) * 2 - 1
    found = run(net, gradient(net, images, torch.tensor([0, 2, 3])), count=3, shape=shape)
    assert found.labels.tolist() == [0, 2, 3]
    assert likeness(images, found.images).min() >= 0.95


@pytest.mark.parametrize(("kind", "seed", "steps"), [("LeNet5", 2, 150), ("CNN", 1, 200)])
def test_an_image_comes_back_through_pools(kind, seed, steps):
    """In real size, through max-pools and a norm; without coarse moves and blurred kinks it stays much less alike."""
    net, image = pooled_net(kind), landscape(seed)
    seen = gradient(net, image, torch.tensor([2]))
    found, plain = (
        run(net, seen, shape=DataShape(1, 28, 28, 4), steps=steps, tv=0.05, **settings)
        for settings in ({}, {"scales": 0, "blur": 0.0})
    )
    assert likeness(image, found.images) >= 0.9
    assert likeness(image, plain.images) < 0.85
    assert found.losses[0] < plain.losses[0]


def test_kinks_are_blurred_in_the_second_derivative_alone():
    """Values and first derivatives keep their bits; afterwards the layers are the network's own."""
    net, image = pooled_net("CNN"), landscape(0)
    own, seen, out = list(net.modules()), gradient(net, image, torch.tensor([1])), net(image)
    with smoothed_second_derivatives(net, 0.3):
        assert list(net.modules()) != own
        # Not copied: a stand-in must give the gradient of the very network that is searched with.
        parts = torch.autograd.grad(cross_entropy(net(image), torch.tensor([1])), list(net.parameters()))
        assert torch.equal(torch.cat([part.reshape(-1) for part in parts]), seen)
        assert torch.equal(net(image), out)
    assert list(net.modules()) == own
    with smoothed_second_derivatives(net, 0.0):
        assert list(net.modules()) == own
    with pytest.raises(KeyError), smoothed_second_derivatives(net, 0.3):
        raise KeyError
    assert list(net.modules()) == own


def second_derivative(layer, values):
    """Derivative by the values of the sum of weighted first derivatives; the weights are 1, 2, 3, ..."""
    net, values = nn.Sequential(layer), values.clone().requires_grad_()
    with smoothed_second_derivatives(net, 0.5):
        (slope,) = torch.autograd.grad(net(values).sum(), values, create_graph=True)
        weights = torch.arange(1.0, 1 + values.numel(), dtype=values.dtype).view(values.shape)
        return torch.autograd.grad((weights * slope).sum(), values)[0]


def test_second_derivatives_by_hand():
    """A logistic curve for ReLU and a softmax for max-pool, as wide as half the root mean square of the values."""
    values = torch.tensor([[[[1.0, -2.0], [0.5, 3.0]]]], dtype=torch.float64)
    width, weights = 0.5 * math.sqrt(14.25 / 4), torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    curve = torch.sigmoid(values / width).requires_grad_(False)
    assert torch.allclose(second_derivative(nn.ReLU(), values), weights.view_as(values) * curve * (1 - curve) / width)
    jacobian = torch.autograd.functional.jacobian(lambda flat: torch.softmax(flat / width, 0), values.flatten())
    assert torch.allclose(second_derivative(nn.MaxPool2d(2), values).flatten(), weights @ jacobian)


@pytest.mark.parametrize("settings", [{"kernel_size": 3, "stride": 2}, {"kernel_size": (1, 2)}, {"kernel_size": 2}])
def test_blurred_pools_pool_alike(settings):
    """Windows that overlap, are oblong or leave a rest; a pool with padding keeps its own derivative."""
    net = nn.Sequential(nn.MaxPool2d(**settings))
    maps = torch.randn(2, 3, 7, 9, generator=torch.Generator().manual_seed(0))
    expected = net(maps)
    with smoothed_second_derivatives(net, 0.3):
        assert not isinstance(net[0], nn.MaxPool2d)
        assert torch.equal(net(maps), expected)
    padded = nn.Sequential(nn.MaxPool2d(3, padding=1))
    with smoothed_second_derivatives(padded, 0.3):
        assert isinstance(padded[0], nn.MaxPool2d)


def test_a_random_gradient_gives_nothing():
    """Null: neither is the image found, nor can such a gradient be matched."""
    net, image = conv_net(), picture()
    seen = gradient(net, image, torch.tensor([2]))
    noise = torch.randn(len(seen), generator=torch.Generator().manual_seed(0))
    found = run(net, noise)
    assert abs(likeness(image, found.images)) < 0.5
    assert found.losses[0] > 0.5


def test_unread_coordinates_do_not_count():
    """Whatever they hold: bit for bit the same result, also where they hold no numbers."""
    net, image = conv_net(), picture()
    seen = gradient(net, image, torch.tensor([2]))
    known = torch.rand(len(seen), generator=torch.Generator().manual_seed(0)) < 0.5
    known[-4:] = True
    first = run(net, seen, known=known, steps=40)
    second = run(net, torch.where(known, seen, math.nan), known=known, steps=40)
    assert torch.equal(first.images, second.images)
    assert torch.equal(first.losses, second.losses)
    everything = run(net, seen, steps=40)
    assert not torch.equal(first.images, everything.images)
    assert torch.equal(everything.images, run(net, seen, known=torch.ones_like(known), steps=40).images)


def test_half_of_the_coordinates_are_enough():
    """A narrow submodel tells less, but this one image all the same."""
    net, image = conv_net(), picture()
    seen = gradient(net, image, torch.tensor([2]))
    known = torch.arange(len(seen)) % 2 == 1
    known[-4:] = True  # submodels have the biases of all classes
    assert likeness(image, run(net, seen, known=known).images) >= 0.95


def test_the_generator_decides():
    """The same seed gives the same bits, whatever torch's own generator does; another seed does not."""
    net = conv_net()
    seen = gradient(net, picture(), torch.tensor([2]))
    first = run(net, seen, steps=30)
    state = torch.random.get_rng_state()
    second = run(net, seen, steps=30)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(first.images, second.images)
    assert not torch.equal(first.images, run(net, seen, steps=30, seed=1).images)


def test_the_best_restart_wins():
    """Three restarts end where the best of three single ones does."""
    net = conv_net()
    seen = gradient(net, picture(), torch.tensor([2]))
    attack, draw = GradientMatching(steps=20), torch.Generator().manual_seed(3)
    single = [attack.images(net, seen, None, SHAPE, 1, None, (LOW, HIGH), draw) for _ in range(3)]
    best = min(single, key=lambda found: float(found.losses[0]))
    assert best is not single[0]
    found = run(net, seen, steps=20, restarts=3, seed=3)
    assert torch.equal(found.images, best.images)
    assert torch.equal(found.losses, best.losses)


def test_the_network_is_left_alone():
    """Running statistics, modes and gradients are as before; images stay in their box."""
    net = CNN(SHAPE, u=4, statistics="running").eval()
    images = torch.cat([picture(0), picture(1)])
    before = {name: value.clone() for name, value in net.state_dict().items()}
    net.requires_grad_(False)
    seen = gradient(net, images, torch.tensor([0, 1]))
    found = run(net, seen, count=2, steps=5, lr=5.0)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert not any(layer.training for layer in net.modules())
    assert all(value.grad is None and not value.requires_grad for value in net.parameters())
    assert found.images.min() >= -1
    assert found.images.max() <= 1
    assert not found.images.requires_grad


@pytest.mark.parametrize(
    "build",
    [
        lambda: CNN(SHAPE, u=4, statistics="running"),
        lambda: CNN(SHAPE, u=4, norm="none", rate=0.5),
        lambda: MLP(SHAPE, hidden=(20,), dropout=0.5),
    ],
    ids=["batch norm", "scaler", "dropout"],
)
def test_the_truth_is_a_perfect_match(build):
    """By batch statistics, with the Scaler of training and without dropout: the true images have distance 0."""
    net, labels = build().double().eval(), torch.tensor([0, 1])
    # What a search begins with is made the truth, and the search is not allowed to move.
    start = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0)).clamp(-1, 1).double()
    attack = GradientMatching(steps=1, lr=1e-12, tv=0.0, labels="known")
    for seed, bound in ((0, 1e-9), (1, math.inf)):
        draw = torch.Generator().manual_seed(seed)
        found = attack.images(net, gradient(net, start, labels), None, SHAPE, 2, labels, (LOW, HIGH), draw)
        assert found.losses.abs().max() < bound
        assert seed == 0 or found.losses.min() > 1e-3


def test_total_variation_by_hand():
    """Mean over neighbours along rows plus mean along columns; a single row has only the one."""
    images = torch.tensor([[[[0.0, 1.0], [0.0, 3.0]]], [[[1.0, 1.0], [1.0, 1.0]]]])
    assert total_variation(images).tolist() == [(1 + 3) / 2 + (0 + 2) / 2, 0.0]
    assert total_variation(torch.tensor([[[[0.0, 1.0, 3.0]]]])).tolist() == [1.5]


def test_smoothness_is_preferred():
    """A large weight of the total variation makes smooth images."""
    net = conv_net()
    seen = gradient(net, picture(), torch.tensor([2]))
    rough, smooth = (total_variation(run(net, seen, steps=60, tv=tv).images) for tv in (0.0, 10.0))
    assert smooth < rough / 4


def test_a_batch_of_one_with_batch_norm():
    """Where its last map is one pixel, no client can have trained on it."""
    with pytest.raises(UserError, match="no batch statistics"):
        run(CNN(SHAPE, u=4), torch.zeros(sum(p.numel() for p in CNN(SHAPE, u=4).parameters())), steps=1)


def test_refused():
    """Settings that seek nothing, known labels that are missing, gradients without numbers."""
    with pytest.raises(UserError) as refusal:
        GradientMatching(steps=0, restarts=0, lr=0.0, tv=-1.0, scales=-1)
    causes = [problem.cause.split(" of ")[0] for problem in refusal.value.problems]
    assert causes == ["steps", "restarts", "lr", "tv", "scales"]
    with pytest.raises(UserError, match="blur of GradientMatching is -1"):
        GradientMatching(blur=-1.0)
    net = conv_net()
    seen = gradient(net, picture(), torch.tensor([2]))
    attack = GradientMatching(steps=1, labels="known")
    with pytest.raises(UserError, match="labels"):
        attack.images(net, seen, None, SHAPE, 1, None, (LOW, HIGH), torch.Generator())
    seen[3] = math.inf
    with pytest.raises(UserError, match="not finite"):
        run(net, seen, steps=1)
