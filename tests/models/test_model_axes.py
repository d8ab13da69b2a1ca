"""A submodel is a choice of channels per axis: the declared axes must say exactly which cells belong together."""

import pytest
import torch
from torch import nn

from app.models import CNN, MLP, AlexNet, DataShape, LeNet5, ResNet18

GREY = DataShape(1, 28, 28, 10)
SMALL = DataShape(1, 8, 8, 10)
COLOUR = DataShape(3, 32, 32, 10)

NETS = {
    "cnn": lambda: CNN(GREY, u=8),
    "cnn 8x8": lambda: CNN(SMALL, u=16),
    "cnn running": lambda: CNN(GREY, u=8, statistics="running"),
    "cnn plain": lambda: CNN(GREY, u=6, norm="none", bias=False),
    "lenet": lambda: LeNet5(GREY),
    "lenet oblong": lambda: LeNet5(DataShape(3, 32, 20, 7), bias=False),
    "alexnet": lambda: AlexNet(COLOUR),
    "alexnet nasr": lambda: AlexNet(COLOUR, "nasr"),
    "mlp": lambda: MLP(SMALL, (20, 10)),
    "mlp linear": lambda: MLP(SMALL, ()),
    "resnet": lambda: ResNet18(COLOUR, base=8),
    "resnet running": lambda: ResNet18(COLOUR, base=8, statistics="running"),
    "resnet plain": lambda: ResNet18(COLOUR, base=8, norm="none", scaler=False),
}
GROUPED = {
    "cnn group": lambda: CNN(GREY, u=16, norm="group"),
    "cnn one group": lambda: CNN(GREY, u=2, norm="group", channels_per_group=1),
    "alexnet group": lambda: AlexNet(COLOUR, norm="group"),
    "resnet group": lambda: ResNet18(COLOUR, base=16, norm="group"),
}


def axis_sizes(net):
    """Size of every axis, after checking that all layers agree on it."""
    sizes = {None: None}
    for name, axes in net.layer_axes().items():
        layer = net.get_submodule(name)
        tensors = [*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)]
        for label, tensor in tensors:
            if tensor.ndim == 0:
                continue
            if axes.output is not None:
                assert sizes.setdefault(axes.output, tensor.shape[0]) == tensor.shape[0], (name, label)
            if label == "weight" and axes.input is not None:
                size, rest = divmod(tensor.shape[1], axes.spread)
                assert rest == 0, name
                assert sizes.setdefault(axes.input, size) == size, (name, label)
    return sizes


def cells(net, choice):
    """For every tensor, the pair (output indices, input indices or None) that a choice of channels selects."""
    for name, axes in net.layer_axes().items():
        layer = net.get_submodule(name)
        for label, tensor in [*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)]:
            if tensor.ndim == 0:
                continue
            rows = torch.arange(tensor.shape[0]) if axes.output is None else choice[axes.output]
            columns = None
            if label == "weight" and tensor.ndim > 1:
                columns = torch.arange(tensor.shape[1])
                if axes.input is not None:
                    columns = (choice[axes.input][:, None] * axes.spread + torch.arange(axes.spread)).flatten()
            yield name, label, tensor, rows, columns


def crop(big, small, choice):
    """Copy the chosen cells of `big` into `small`, and set all other parameters of `big` to zero."""
    for name, label, tensor, rows, columns in cells(big, choice):
        chosen = tensor[rows] if columns is None else tensor[rows][:, columns]
        getattr(small.get_submodule(name), label).copy_(chosen)
        if isinstance(tensor, nn.Parameter):
            tensor.zero_()
            tensor[rows if columns is None else (rows[:, None], columns)] = chosen


def with_random_cells(net):
    """Norms too get weights that tell channels apart."""
    generator = torch.Generator().manual_seed(1)
    for name, tensor in [*net.named_parameters(), *net.named_buffers()]:
        if tensor.ndim == 1:
            drawn = torch.rand(tensor.shape, generator=generator, dtype=tensor.dtype)
            tensor.data.copy_(drawn + 0.5 if name.endswith(("weight", "var")) else drawn - 0.5)
    return net


def check_submodel_equals_silenced_net(build, rate, choose, training):
    torch.manual_seed(0)
    big = with_random_cells(build().double())
    small = big.scaled(rate).double()
    kept = axis_sizes(small)
    choice = {axis: choose(size, kept[axis]) for axis, size in axis_sizes(big).items() if axis}
    shape = big.hparams.shape
    images = torch.randn(3, shape.channels, shape.height, shape.width, dtype=torch.double)
    with torch.no_grad():
        crop(big, small, choice)
        # A Scaler divides the narrow net's signals only: it is tested by itself.
        for scaler in (layer for layer in small.modules() if type(layer).__name__ == "Scaler"):
            scaler.rate = 1.0
        torch.testing.assert_close(small.train(training)(images), big.train(training)(images), rtol=1e-9, atol=1e-9)


def first(size, kept):
    return torch.arange(kept)


def any_order(size, kept):
    return torch.randperm(size)[:kept]


@pytest.mark.parametrize("rate", [1.0, 0.5, 0.25])
@pytest.mark.parametrize("build", [*NETS.values(), *GROUPED.values()], ids=[*NETS, *GROUPED])
def test_axes_cover_every_layer_and_agree_on_sizes(build, rate):
    full = build()
    net = full.scaled(rate)
    axes = net.layer_axes()
    modules = dict(net.named_modules())
    owners = {
        name
        for name, layer in modules.items()
        if any(True for _ in layer.parameters(recurse=False)) or any(True for _ in layer.buffers(recurse=False))
    }
    assert owners <= set(axes) <= set(modules)
    assert axes == full.layer_axes(), "the axes do not depend on the rate"
    whole = axis_sizes(full)
    assert {axis: size and -(-size * rate // 1) for axis, size in whole.items()} == axis_sizes(net)
    shape, outputs = net.hparams.shape, [name for name, layer in axes.items() if layer.output is None]
    assert [net.get_submodule(name).out_features for name in outputs] == [shape.classes]


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("choose", [first, any_order])
@pytest.mark.parametrize("build", NETS.values(), ids=NETS)
def test_a_submodel_answers_as_the_full_net_with_its_other_cells_silenced(build, choose, training):
    check_submodel_equals_silenced_net(build, 0.4, choose, training)


@pytest.mark.parametrize("build", GROUPED.values(), ids=GROUPED)
def test_a_submodel_of_whole_groups_keeps_the_grouping(build):
    check_submodel_equals_silenced_net(build, 0.5, first, training=True)


def test_resnet_shares_one_axis_across_each_residual_stream():
    axes = ResNet18(COLOUR, base=4).layer_axes()
    assert axes["stem.conv"].output == axes["blocks.0.conv2.conv"].output == axes["blocks.1.conv2.norm"].output
    assert axes["blocks.2.conv2.conv"].output == axes["blocks.2.shortcut.conv"].output
    inner = [axes[f"blocks.{number}.conv1.conv"].output for number in range(8)]
    assert len({*inner, *(axes[f"blocks.{number}.conv2.conv"].output for number in range(8))}) == 12


def test_resnet_has_the_same_layers_at_a_rate_where_stages_are_equally_wide():
    full = ResNet18(COLOUR, base=4)
    assert [name for name, _ in full.scaled(0.01).named_parameters()] == [name for name, _ in full.named_parameters()]
