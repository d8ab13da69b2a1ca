"""A small client computes what is left of the server's network when all other channels are removed.

The server's network is cut in two ways that know nothing of each other: by setting every coordinate outside the
submodel to zero, and by leaving all coordinates alone but blanking the output of every removed channel. All in double
precision.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import cache, partial

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from app.federation.parameters import ParameterSpace
from app.federation.submodels import PRESETS, ChannelSubset, ClientRound, FedRolex, FjORD, Prefix, SubmodelMethod
from app.models import CNN, MLP, AlexNet, DataShape, LeNet5, ResNet18, ScalableNet
from app.models.base import scaled_width

METHODS: dict[str, SubmodelMethod] = {
    **{code: ChannelSubset.preset(code) for code in PRESETS},
    "GFR original": ChannelSubset.preset("GFR", index_scheme="original"),
    "FedRolex": FedRolex(),
    "FjORD": FjORD([0.25, 0.5], draw="round"),
    "prefix": Prefix(),
}
COLOUR = DataShape(3, 8, 8, 5)
NETS = {
    "cnn": partial(CNN, COLOUR, u=8),
    "cnn none": partial(CNN, COLOUR, u=8, norm="none"),
    "cnn running": partial(CNN, COLOUR, u=8, statistics="running"),
    "cnn channel": partial(CNN, COLOUR, u=8, norm="group", channels_per_group=1),
    "lenet": partial(LeNet5, DataShape(1, 16, 20, 4)),
    "alexnet": partial(AlexNet, DataShape(1, 8, 16, 3)),
    "mlp": partial(MLP, DataShape(1, 3, 3, 4), (12, 8, 9)),
    "resnet": partial(ResNet18, DataShape(1, 4, 4, 3), base=8),
    "resnet none": partial(ResNet18, DataShape(1, 4, 4, 3), base=8, norm="none"),
}
"""Every network with batch norm, without any norm, or with one that normalises channels one by one."""

KINDS = ("OFM", "USR", "GFR original", "FedRolex", "FjORD")
"""Methods of every kind; all methods are tried on networks of dense and of convolutional layers."""

SEAT = ClientRound(2, 1, 0.5, 20, 5)


@cache
def server(name: str) -> tuple[ScalableNet, ParameterSpace, Tensor]:
    """A server's network in evaluation mode, its layout, and values that leave no gain at one and no bias at zero."""
    with torch.random.fork_rng():
        torch.manual_seed(6)
        net = NETS[name]().double().eval()
        space = ParameterSpace(net)
        theta = space.read(net)
        theta = theta + 0.05 * torch.randn_like(theta)
    for block in space.blocks:
        if block.name.endswith("running_var"):
            theta[block.coordinates] = theta[block.coordinates].abs() + 0.5
    space.write(net, theta)
    return net, space, theta


def pictures(net: ScalableNet, count: int = 6) -> tuple[Tensor, Tensor]:
    """Random images and labels for a network."""
    shape, generator = net.hparams["shape"], torch.Generator().manual_seed(9)
    size = (count, shape.channels, shape.height, shape.width)
    images = torch.randn(size, generator=generator, dtype=torch.float64)
    return images, torch.randint(shape.classes, (count,), generator=generator)


def with_values(net: ScalableNet, vector: Tensor) -> ScalableNet:
    """The network in evaluation mode, holding a flat vector."""
    net = net.double().eval()
    ParameterSpace(net).write(net, vector)
    return net


@contextmanager
def blanked(net: ScalableNet, method: SubmodelMethod, client_round: ClientRound, factor: float = 1.0) -> Iterator[None]:
    """Let every layer that writes channels blank those that are not chosen; `factor` multiplies the convolutions."""
    axes, hooks = ParameterSpace(net).axes, []
    for name, layer in net.layer_axes().items():
        if layer.output is None:
            continue
        axis = axes[layer.output]
        mask = torch.zeros(axis.width, dtype=torch.float64)
        mask[method.channels(axis, scaled_width(axis.width, method.rate(client_round)), client_round)] = 1.0
        mask = mask * factor if name.endswith("conv") else mask
        hooks.append(net.get_submodule(name).register_forward_hook(partial(_times, mask)))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _times(mask: Tensor, layer, inputs, output: Tensor) -> Tensor:
    return output * mask.view(1, -1, *[1] * (output.dim() - 2))


def logits_and_gradient(net: ScalableNet) -> tuple[Tensor, Tensor]:
    """Output on the pictures, and the flat gradient of its loss."""
    images, labels = pictures(net)
    logits = net(images)
    gradient = torch.autograd.grad(cross_entropy(logits, labels), list(net.parameters()))
    return logits.detach(), torch.cat([part.reshape(-1) for part in gradient])


same = partial(torch.testing.assert_close, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    ("name", "method"),
    [(name, method) for name in NETS for method in (METHODS if name in ("cnn", "mlp") else KINDS)],
)
def test_a_submodel_is_the_server_without_the_other_channels(name, method):
    """Outputs and gradients agree with both cut networks; a removed channel leaves no gradient outside the index."""
    (net, space, theta), chooser = server(name), METHODS[method]
    index = chooser.index(space, SEAT)
    assert 0 < len(index) < space.size
    trained = index[index < space.trainable]
    small = with_values(net.scaled(chooser.rate(SEAT)), theta[index])
    logits, gradient = logits_and_gradient(small)

    zeroed = torch.zeros_like(theta)
    zeroed[index] = theta[index]
    other_logits, other_gradient = logits_and_gradient(with_values(deepcopy(net), zeroed))
    same(other_logits, logits)
    same(other_gradient[trained], gradient)

    with blanked(net, chooser, SEAT):
        other_logits, other_gradient = logits_and_gradient(net)
    same(other_logits, logits)
    same(other_gradient[trained], gradient)
    other_gradient[trained] = 0
    assert not bool(other_gradient.any())
    whole = net(pictures(net)[0]).detach()
    assert float((whole - logits).abs().max()) > 1e-3, "the other channels matter to the server"


@pytest.mark.parametrize("rate", [1 / 3, 0.25, 0.6, 1.0])
@pytest.mark.parametrize("method", ["GFM", "USR", "FedRolex"])
@pytest.mark.parametrize("name", ["cnn", "lenet", "mlp", "resnet"])
def test_other_widths(name, method, rate):
    """The same outputs for widths that do not divide the layers, and for the whole network."""
    (net, space, theta), chooser, client_round = server(name), METHODS[method], ClientRound(4, 7, rate, 20, 5)
    small = with_values(net.scaled(rate), theta[chooser.index(space, client_round)])
    images, _ = pictures(net)
    with blanked(net, chooser, client_round):
        same(net(images), small(images))


@pytest.mark.parametrize("method", ["GFM", "GFR", "FedRolex", "prefix"])
@pytest.mark.parametrize("make", [partial(CNN, COLOUR, u=8), partial(ResNet18, COLOUR, base=4)], ids=["cnn", "resnet"])
def test_training_mode_with_batch_norm(make, method):
    """Without a Scaler, a training pass normalises the kept channels as the server's would: same loss and gradient."""
    net, chooser = make(scaler=False).double(), METHODS[method]
    space = ParameterSpace(net)
    index = chooser.index(space, SEAT)
    small = with_values(net.scaled(chooser.rate(SEAT)), space.read(net)[index]).train()
    logits, gradient = logits_and_gradient(small)
    with blanked(net.train(), chooser, SEAT):
        other_logits, other_gradient = logits_and_gradient(net)
    same(other_logits, logits)
    same(other_gradient[index], gradient)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("kind", [CNN, ResNet18])
def test_the_scaler_divides_each_convolution_by_the_rate(kind, training, keep):
    """In training, and in evaluation with `keep_scaling`; otherwise the submodel's signals are the server's."""
    width = {"u": 8} if kind is CNN else {"base": 8}
    net, chooser = kind(COLOUR, norm="none", keep_scaling=keep, **width).double(), METHODS["USR"]
    space = ParameterSpace(net)
    small = with_values(net.scaled(0.5), space.read(net)[chooser.index(space, SEAT)])
    images, _ = pictures(net)
    with blanked(net.train(training), chooser, SEAT, factor=2.0 if training or keep else 1.0):
        same(net(images), small.train(training)(images))


def test_group_norm_needs_whole_groups():
    """Half of eight, sixteen ... channels is made of whole groups of four, which are normalised as in the server."""
    net = CNN(COLOUR, u=8, norm="group", channels_per_group=4).double().eval()
    space = ParameterSpace(net)
    images, _ = pictures(net)
    for method in ("OFM", "GFM", "OSM"):
        small = with_values(net.scaled(0.5), space.read(net)[METHODS[method].index(space, SEAT)])
        with blanked(net, METHODS[method], SEAT):
            same(net(images), small(images))


@pytest.mark.parametrize(
    ("name", "method"),
    [
        (name, method)
        for name in ("cnn running", "lenet", "mlp", "resnet")
        for method in METHODS
        if name == "mlp" or method in KINDS
    ],
)
def test_extract_then_scatter(name, method):
    """A submodel read back from the small network and put in its weights is the server's own; other weights stay."""
    (net, space, theta), chooser = server(name), METHODS[method]
    index = chooser.index(space, SEAT)
    small = net.scaled(chooser.rate(SEAT)).double()
    narrow = ParameterSpace(small)
    narrow.write(small, theta[index])
    assert torch.equal(theta.clone().index_put((index,), narrow.read(small)), theta)
    blank = torch.full_like(theta, -7.0)
    blank[index] = narrow.read(small)
    covered = torch.zeros(space.size, dtype=torch.bool)
    covered[index] = True
    assert torch.equal(blank[covered], theta[covered])
    assert bool((blank[~covered] == -7.0).all())
