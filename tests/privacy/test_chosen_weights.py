"""A dishonest server chooses the weights: no sample moves the network by more than the clipping norm, or not at all."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.grad import conv2d_weight

from app.common.errors import UserError
from app.privacy.clipping import clipped_sums, row_norms
from app.privacy.ghost_clipping import GhostClipping
from app.privacy.noise import NoiseStream
from app.privacy.private_steps import Mechanism, PrivateSteps, unsupported_layers

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing")

METHODS = ("ghost", "hooks", "ew")


class Kept(torch.optim.SGD):
    """Keeps the gradient instead of applying it, which huge weights would round away."""

    def step(self, closure=None):
        """All coordinates of all parameters."""
        self.gradient = torch.cat([each.grad.flatten() for group in self.param_groups for each in group["params"]])


def applied(net, batch, method, clip=1.0, physical=None):
    """Sum of the clipped gradients of a batch, without noise."""
    optimizer = Kept(net.parameters(), lr=1.0)
    steps = PrivateSteps(net, optimizer, Mechanism(clip, 0.0, method, physical, 1.0), NoiseStream(bytes(32)))
    steps.step(batch, lambda part: cross_entropy(steps.net(part[0]), part[1]))
    steps.close()
    return optimizer.gradient


def cancelling(seed, offset):
    """Large constant activations under a kernel with zero mean, and output weights that alternate between places."""
    torch.manual_seed(seed)
    wide, narrow, out = nn.Conv2d(8, 512, 1), nn.Conv2d(512, 64, 1), nn.Linear(256, 10)
    with torch.no_grad():
        wide.weight.mul_(50)
        wide.bias.fill_(offset)
        narrow.weight.normal_(std=1e-4)
        narrow.weight.sub_(narrow.weight.mean(1, keepdim=True))
        narrow.bias.zero_()
        out.weight.copy_((0.3 * torch.randn(10, 64, 1) * torch.tensor([1.0, -1.0, 1.0, -1.0])).view(10, 256))
        out.bias.zero_()
    return nn.Sequential(wide, nn.ReLU(), narrow, nn.Flatten(), out)


@pytest.mark.parametrize("offset", [1e3, 1e5, 1e7])
def test_norms_that_cancel_do_not_let_a_sample_through(offset):
    """A gradient of norm 1e3 whose squared norm is a difference of far larger numbers: 1 at most is added up."""
    for seed in range(20):
        batch = torch.rand(1, 8, 2, 2), torch.tensor([seed % 10])
        assert float(applied(cancelling(seed, offset), batch, "ghost").double().norm()) < 1.001


def random_convolution(generator):
    """A convolution with few places, an input and a gradient of its output, of any scale and with cancellation."""

    def drawn(*shape):
        offset, spread, scale = torch.rand(3, generator=generator)
        values = torch.randn(shape, generator=generator) * 10 ** (4 * spread - 2) + offset.round() * 10 ** (5 * spread)
        if torch.rand(1, generator=generator) < 0.5:
            values = values - values.mean((2, 3), keepdim=True)
        return values * 10 ** (60 * scale.double() - 30).float()

    kernel = int(torch.randint(1, 3, (1,), generator=generator))
    return nn.Conv2d(40, 60, kernel, bias=False), drawn(1, 40, 3, 3), drawn(1, 60, 4 - kernel, 4 - kernel)


def test_convolutions_of_any_scale_against_double_precision():
    """Never more than the clipping norm; what is well-conditioned and neither over- nor underflows is exact."""
    generator, exact = torch.Generator().manual_seed(0), 0
    for _ in range(400):
        layer, inputs, gradient = random_convolution(generator)
        ghost = GhostClipping(layer)
        (found,) = ghost.clipped((layer(inputs) * gradient).sum(), 1, 1.0)
        ghost.close()
        assert float(found.double().norm()) < 1.001
        true = conv2d_weight(inputs.double(), layer.weight.shape, gradient.double())
        expected = true / max(1.0, float(true.norm()))
        terms = inputs.double().norm() * gradient.double().norm()
        in_range = all(1e-15 < each.abs().max() < 1e15 for each in (inputs, gradient)) and 1e-3 < terms < 1e17
        if in_range and true.norm() > 0.3 * terms:
            exact += 1
            torch.testing.assert_close(found.double(), expected, rtol=2e-3, atol=2e-3 * float(expected.norm()))
    assert exact > 20


@pytest.mark.parametrize("method", METHODS)
def test_networks_of_any_scale(method):
    """Every parameter scaled by up to 1e30 or down to 1e-30: one sample adds a finite gradient within the norm."""
    for seed in range(25):
        torch.manual_seed(seed)
        norm = nn.GroupNorm(2, 60)
        net = nn.Sequential(
            nn.Conv2d(3, 40, 3), nn.ReLU(), nn.Conv2d(40, 60, 3), norm, nn.Tanh(), nn.Flatten(), nn.Linear(240, 4)
        )
        reach = (3, 10, 30)[seed % 3]
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.mul_(10 ** (2 * reach * torch.rand(()) - reach))
        gradient = applied(net, (torch.randn(1, 3, 6, 6), torch.tensor([1])), method)
        assert float(gradient.double().norm()) < 1.001


def tripped_mlp():
    """Weights that overflow for samples whose first pixel is above 0.9, and for no others."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10))
    with torch.no_grad():
        for layer in (net[1], net[3]):
            layer.weight[0] = 0
        net[1].weight[0, 0], net[1].bias[0], net[3].bias[0] = 1e20, -0.9e20, -1
        net[3].weight[0, 0] = net[5].weight[:, 0] = 1e30
    return net


def tripped_cnn():
    """The same, for any pixel, with few places in the second convolution."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 80, 2, stride=2), nn.ReLU(), nn.Conv2d(80, 60, 3), nn.ReLU(), nn.Flatten(), nn.Linear(240, 10)
    )
    with torch.no_grad():
        net[0].weight[0], net[0].bias[0] = 0, -0.9e20
        net[0].weight[0, 0, 0, 0] = 1e20
        net[2].weight[:, 0] = 1e30
    return net


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("made", [tripped_mlp, tripped_cnn])
@pytest.mark.parametrize("physical", [None, 16])
def test_a_sample_that_overflows_counts_as_zero(method, made, physical):
    """The step is finite, and that of the other samples; nobody can tell it from a step in which the sample is not."""
    torch.manual_seed(1)
    images, labels = 0.5 * torch.rand(40, 1, 8, 8), torch.randint(0, 10, (40,))
    images[7, 0, 0, 0] = 1.0
    assert not made()(images[7:8]).isfinite().all(), "what the test assumes"
    others = torch.arange(40) != 7
    gradient = applied(made(), (images, labels), method, physical=physical)
    without = applied(made(), (images[others], labels[others]), method)
    assert without.norm() > 1
    torch.testing.assert_close(gradient, without, rtol=0, atol=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_a_batch_that_overflows_altogether_is_zero(method):
    """As are steps on weights that are not numbers."""
    net = tripped_mlp()
    assert not applied(net, (torch.ones(3, 1, 8, 8), torch.tensor([0, 1, 2])), method).any()
    with torch.no_grad():
        net[1].bias[3] = torch.nan
    assert not applied(net, (torch.zeros(3, 1, 8, 8), torch.tensor([0, 1, 2])), method).any()


def test_long_rows_are_not_too_short():
    """One large square and very many small ones, each of which is lost when it is added to the large one."""
    row = torch.full((1, 2**23), 2**-12.2)
    row[0, :64] = 1
    assert float(row_norms(row)) > 0.999 * float(row.double().norm())


def test_norms_beyond_the_range_of_floats_count_as_zero():
    """Finite gradients of which the squares overflow, beside an ordinary one."""
    gradients = [torch.tensor([[3e30, 1.0], [3.0, 4.0]]), torch.tensor([[1.0], [0.0]])]
    for found, expected in zip(clipped_sums(gradients, 1.0), ([0.6, 0.8], [0.0]), strict=True):
        torch.testing.assert_close(found, torch.tensor(expected))


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 4)
        self.second.weight = self.first.weight

    def forward(self, images):
        """Through all of them."""
        return self.last(torch.tanh(self.second(torch.tanh(self.first(images)))))


def test_shared_parameters_are_refused_by_ghost_clipping():
    """By the names of the layers; a frozen one may be shared."""
    named = [f"{name} (Linear, which shares a parameter)" for name in ("first", "second")]
    net = Tied()
    assert unsupported_layers(net, "ghost") == named
    net.first.weight.requires_grad_(False)
    assert unsupported_layers(net, "ghost") == []


@pytest.mark.parametrize("method", ["hooks", "ew"])
def test_shared_parameters_are_clipped_right_otherwise(method):
    """The gradient of a shared weight is the sum over its uses, and so is its norm."""
    torch.manual_seed(0)
    net, images, labels = Tied().double(), torch.randn(5, 6).double(), torch.randint(0, 4, (5,))
    assert unsupported_layers(net, method) == []
    expected = 0
    for image, label in zip(images.split(1), labels.split(1), strict=True):
        parts = torch.autograd.grad(cross_entropy(net(image), label), list(net.parameters()))
        gradient = torch.cat([part.flatten() for part in parts])
        expected += gradient * min(1.0, 0.4 / (float(gradient.norm()) + 1e-6))
    torch.testing.assert_close(applied(net, (images, labels), method, 0.4), expected, rtol=0, atol=1e-12)


class Halved(nn.Module):
    """Passes two halves of every image as if they were two samples."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, images):
        """The mean of both."""
        return self.layer(images.view(-1, 3)).view(-1, 2, 4).mean(1)


@pytest.mark.parametrize("method", ["ghost", "hooks"])
def test_parts_of_samples_are_not_clipped_one_by_one(method):
    """A layer that gets more rows than there are samples."""
    with pytest.raises(UserError, match="8 rows for 4 samples"):
        applied(Halved(), (torch.randn(4, 6), torch.tensor([0, 1, 2, 3])), method)
