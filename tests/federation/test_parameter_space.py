"""The flat vector of a network, and submodels as index sets: checked against slicing tensor by tensor."""

import itertools
from functools import partial

import pytest
import torch
from federation_kit import PICTURES
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from app.common.errors import UserError
from app.federation.parameters import Axis, ParameterSpace
from app.federation.submodels import ClientRound, Prefix, SubmodelMethod
from app.models import CNN, MLP, AlexNet, DataShape, LayerAxes, LeNet5, ResNet18, ScalableNet

COLOUR = DataShape(3, 8, 8, 5)
NETS = {
    "mlp": partial(MLP, COLOUR, (7, 5)),
    "linear": partial(MLP, COLOUR, ()),
    "cnn": partial(CNN, COLOUR, u=3),
    "cnn group": partial(CNN, COLOUR, u=4, norm="group", channels_per_group=1),
    "cnn running": partial(CNN, COLOUR, u=2, statistics="running"),
    "lenet": partial(LeNet5, DataShape(2, 16, 20, 3)),
    "alexnet bn": partial(AlexNet, DataShape(3, 8, 8, 4)),
    "resnet": partial(ResNet18, COLOUR, base=4),
    "resnet running": partial(ResNet18, COLOUR, base=2, statistics="running"),
}
SMALL = ("mlp", "cnn", "cnn running", "resnet running")


@pytest.fixture(params=NETS)
def net(request) -> ScalableNet:
    """Every network of the zoo."""
    return NETS[request.param]()


def widths(space: ParameterSpace) -> dict[str, int]:
    """Full width of every axis."""
    return {name: axis.width for name, axis in space.axes.items()}


def prefix(space: ParameterSpace, rate: float) -> Tensor:
    """Coordinates of HeteroFL's submodel."""
    return Prefix().index(space, ClientRound(0, 0, rate, 1, 0))


def kept_positions(axis: str | None, length: int, spread: int, choice: dict[str, Tensor]) -> list[int]:
    """Positions along one dimension that a choice of channels keeps."""
    if axis is None or axis not in choice:
        return list(range(length))
    return [channel * spread + offset for channel in choice[axis].tolist() for offset in range(spread)]


def sliced_index(net: ScalableNet, choice: dict[str, Tensor]) -> Tensor:
    """Slices an arange-filled copy of every tensor along its first two dimensions."""
    axes = net.layer_axes()
    buffers = [(name, buffer) for name, buffer in net.named_buffers() if buffer.is_floating_point()]
    start, parts = 0, []
    for name, tensor in [*net.named_parameters(), *buffers]:
        layer = axes[name.rpartition(".")[0]]
        coordinates = torch.arange(start, start + tensor.numel()).view(tensor.shape)
        coordinates = coordinates[kept_positions(layer.output, tensor.shape[0], 1, choice)]
        if tensor.ndim > 1:
            coordinates = coordinates[:, kept_positions(layer.input, tensor.shape[1], layer.spread, choice)]
        parts.append(coordinates.reshape(-1))
        start += tensor.numel()
    return torch.cat(parts)


def enumerated_index(space: ParameterSpace, net: ScalableNet, choice: dict[str, Tensor]) -> list[int]:
    """Counts through every coordinate of every tensor and asks whether its channels are kept."""
    layers, found, coordinate = net.layer_axes(), [], 0
    for block in space.blocks:
        layer = layers[block.name.rpartition(".")[0]]
        for position in itertools.product(*map(range, block.shape)):
            out_kept = layer.output is None or position[0] in choice[layer.output]
            inputs = len(position) > 1 and layer.input is not None
            in_kept = not inputs or position[1] // layer.spread in choice[layer.input]
            if out_kept and in_kept:
                found.append(coordinate)
            coordinate += 1
    return found


def prefix_choice(space: ParameterSpace, rate: float) -> dict[str, Tensor]:
    """The first channels of every axis."""
    return {axis: torch.arange(max(1, -int(-rate * width // 1))) for axis, width in widths(space).items()}


def test_write_and_read_are_inverse(net):
    """What is written is read back, for parameters and for running statistics."""
    space = ParameterSpace(net)
    vector = torch.randn(space.size)
    space.write(net, vector)
    assert torch.equal(space.read(net), vector)


def test_read_follows_the_order_of_the_parameters(net):
    """The vector is every parameter, flattened, one after the other; then floating-point buffers."""
    floating = [buffer for buffer in net.buffers() if buffer.is_floating_point()]
    expected = torch.cat([tensor.detach().flatten() for tensor in [*net.parameters(), *floating]])
    assert torch.equal(ParameterSpace(net).read(net), expected)


def test_channels_last_memory_does_not_reorder_the_vector():
    """Coordinates are counted by position in the tensor, whatever its memory layout."""
    net = CNN(COLOUR, u=3)
    plain = ParameterSpace(net).read(net)
    turned = net.to(memory_format=torch.channels_last)
    space = ParameterSpace(turned)
    assert torch.equal(space.read(turned), plain)
    space.write(turned, plain.flip(0))
    assert torch.equal(space.read(turned), plain.flip(0))


def test_training_the_net_leaves_the_written_vector_alone():
    """`write` copies: an optimiser step on the net must not edit the vector the next client starts from."""
    net = MLP(COLOUR, (4,))
    space = ParameterSpace(net)
    vector = torch.randn(space.size)
    before = vector.clone()
    space.write(net, vector)
    net(torch.randn(2, 3, 8, 8)).sum().backward()
    torch.optim.SGD(net.parameters(), lr=1.0).step()
    assert torch.equal(vector, before)
    assert not torch.equal(space.read(net), before)


def test_read_is_a_copy(net):
    """Editing the vector does not edit the net."""
    space = ParameterSpace(net)
    vector = space.read(net)
    vector.zero_()
    assert space.read(net).abs().sum() > 0
    assert not vector.requires_grad


def test_full_choice_is_every_coordinate(net):
    """All channels, named or left out, are all coordinates in order."""
    space = ParameterSpace(net)
    whole = {axis: torch.arange(width) for axis, width in widths(space).items()}
    for choice in (whole, {}):
        assert torch.equal(space.index(choice), torch.arange(space.size))


@pytest.mark.parametrize("rate", [0.5, 0.25])
def test_prefix_equals_slicing(net, rate):
    """HeteroFL's submodel is `tensor[:out, :in]` of every tensor, with flattened maps expanded."""
    space = ParameterSpace(net)
    assert torch.equal(prefix(space, rate), sliced_index(net, prefix_choice(space, rate)))


@pytest.mark.parametrize("rate", [0.5, 0.25])
@pytest.mark.parametrize("name", SMALL)
def test_prefix_equals_counting_every_coordinate(name, rate):
    """The same, asked coordinate by coordinate."""
    net = NETS[name]()
    space = ParameterSpace(net)
    assert prefix(space, rate).tolist() == enumerated_index(space, net, prefix_choice(space, rate))


@pytest.mark.parametrize("rate", [1.0, 0.5, 0.3, 0.25, 0.0625])
def test_submodel_has_the_coordinates_of_the_scaled_net(net, rate):
    """As many coordinates, tensor by tensor, as the network built at that rate."""
    space, narrow = ParameterSpace(net), ParameterSpace(net.scaled(rate))
    index = prefix(space, rate)
    assert len(index) == narrow.size
    assert int((index < space.trainable).sum()) == narrow.trainable
    per_block = [int(((index >= b.start) & (index < b.start + b.size)).sum()) for b in space.blocks]
    assert per_block == [block.size for block in narrow.blocks]


def test_flattened_map_keeps_whole_pixels_of_a_channel():
    """LeNet5: channel c of the last map feeds inputs c * pixels .. (c + 1) * pixels - 1 of the linear layer."""
    net = LeNet5(DataShape(2, 16, 20, 3))
    space = ParameterSpace(net)
    block = next(block for block in space.blocks if block.name == "hidden1.weight")
    index = space.index({"conv2": torch.tensor([1, 4])})
    mine = index[(index >= block.start) & (index < block.start + block.size)] - block.start
    assert net.pixels == 2
    assert (mine % block.shape[1]).unique().tolist() == [2, 3, 8, 9]
    assert len(mine) == 120 * 4


def test_extracted_submodel_computes_what_the_masked_net_does():
    """A submodel loaded with its weights gives the logits of the whole net with all other channels' outputs cut off."""
    net = MLP(COLOUR, (7, 5)).eval()
    space, narrow = ParameterSpace(net), MLP(COLOUR, (7, 5), rate=0.5).eval()
    choice = {"hidden1": torch.tensor([0, 2, 3, 6]), "hidden2": torch.tensor([1, 2, 4])}
    vector = space.read(net)
    ParameterSpace(narrow).write(narrow, vector[space.index(choice)])
    masked = torch.zeros_like(vector)
    index = space.index(choice)
    masked[index] = vector[index]
    images = torch.randn(6, 3, 8, 8)
    logits = narrow(images)
    space.write(net, masked)
    assert torch.allclose(net(images), logits, atol=1e-6)


def test_buffers_come_after_the_parameters():
    """Running statistics are the last coordinates; counters are not among them."""
    net = CNN(COLOUR, u=2, statistics="running")
    space = ParameterSpace(net)
    parameters = sum(parameter.numel() for parameter in net.parameters())
    assert space.trainable == parameters
    assert space.size == parameters + 2 * (2 + 4 + 8 + 16)
    kinds = ["running" in block.name for block in space.blocks]
    assert kinds == sorted(kinds)
    assert not any("num_batches" in block.name for block in space.blocks)
    assert torch.equal(space.read(net)[space.trainable :].unique(), torch.tensor([0.0, 1.0]))


class RandomChannels(SubmodelMethod):
    """Any `keep` channels, for tests."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def channels(self, axis: Axis, keep: int, client_round: ClientRound) -> Tensor:
        """A random subset, ascending."""
        return torch.randperm(axis.width, generator=self.generator)[:keep].sort().values


SPACES = {name: (NETS[name](), ParameterSpace(NETS[name]())) for name in ("mlp", "cnn", "lenet", "resnet running")}


@given(name=st.sampled_from(sorted(SPACES)), rate=st.floats(0.05, 1.0), seed=st.integers(0, 10**6))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_random_choices_are_valid_index_sets(name, rate, seed):
    """Unique, ascending, in bounds; and extract then scatter is the identity on covered coordinates."""
    _, space = SPACES[name]
    index = RandomChannels(seed).index(space, ClientRound(0, 0, rate, 1, 0))
    assert index.dtype == torch.int64
    assert bool((index.diff() > 0).all())
    assert 0 <= int(index[0]) <= int(index[-1]) < space.size
    vector = torch.arange(1.0, space.size + 1)
    target = torch.full((space.size,), -1.0)
    target[index] = vector[index]
    covered = target != -1.0
    assert int(covered.sum()) == len(index)
    assert torch.equal(target[covered], vector[covered])


@given(name=st.sampled_from(sorted(SPACES)), rate=st.floats(0.05, 1.0), seed=st.integers(0, 10**6))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_random_choices_equal_slicing(name, rate, seed):
    """Any choice of channels, not only the first ones."""
    net, space = SPACES[name]
    generator = torch.Generator().manual_seed(seed)
    choice = {
        axis: torch.randperm(width, generator=generator)[: max(1, round(rate * width))].sort().values
        for axis, width in widths(space).items()
    }
    assert torch.equal(space.index(choice), sliced_index(net, choice))


class Undeclared(ScalableNet):
    """Forgets one layer in its axes, or gives one axis two widths."""

    def __init__(self, shape: DataShape, clash: bool = False, rate: float = 1.0) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.first, self.forgotten = nn.Linear(4, 3), nn.Linear(3, 2)

    def layer_axes(self) -> dict[str, LayerAxes]:
        """Wrong on purpose."""
        clash = {"forgotten": LayerAxes(output="hidden")} if self.hparams["clash"] else {}
        return {"first": LayerAxes(output="hidden"), **clash}

    def forward(self, images: Tensor) -> Tensor:
        """Never called."""
        return images


def test_a_layer_without_declared_axes_is_refused():
    """The error names the layer and the net."""
    with pytest.raises(UserError, match="forgotten") as caught:
        ParameterSpace(Undeclared(PICTURES))
    assert "Undeclared" in str(caught.value)


def test_an_axis_of_two_widths_is_refused():
    """Layers that share an axis must agree on its width."""
    with pytest.raises(ValueError, match="hidden"):
        ParameterSpace(Undeclared(PICTURES, clash=True))


def test_matching_coordinates_by_name():
    """Shell-style patterns select whole blocks; a pattern without a match is an error that lists names."""
    net = MLP(COLOUR, (4,))
    space = ParameterSpace(net)
    heads = space.matching(["*classifier*"])
    assert int(heads.sum()) == 4 * 5 + 5
    assert bool(heads[-25:].all())
    assert bool(space.matching(["*"]).all())
    assert not bool(space.matching([]).any())
    with pytest.raises(UserError, match=r"layers\.hidden1\.weight"):
        space.matching(["*classifier*", "head.*"])
