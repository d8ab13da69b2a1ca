"""Small networks, all submodel methods, and channel lists read off the coordinates of an index."""

import math
from functools import cache

import torch
from torch import Tensor

from app.federation.parameters import ParameterSpace
from app.federation.submodels import PRESETS, ChannelSubset, ClientRound, FedRolex, FjORD, Prefix, SubmodelMethod
from app.models import CNN, MLP, AlexNet, DataShape, LeNet5, ResNet18, ScalableNet

SCHEMES = ("seeded", "original")
RATES = {"1/2": 1 / 2, "1/3": 1 / 3, "1/4": 1 / 4, "0.6": 0.6}
RANDOM = [code for code in PRESETS if code.endswith("R")]
METHODS: dict[str, SubmodelMethod] = {
    **{f"{code} {scheme}": ChannelSubset.preset(code, index_scheme=scheme) for code in PRESETS for scheme in SCHEMES},
    "FedRolex": FedRolex(),
    "FjORD batch": FjORD(),
    "FjORD round": FjORD(draw="round"),
    "prefix": Prefix(),
}
ZOO = {
    "cnn": lambda: CNN(DataShape(3, 8, 8, 5), u=8),
    "lenet": lambda: LeNet5(DataShape(1, 16, 20, 4)),
    "alexnet": lambda: AlexNet(DataShape(1, 8, 16, 3)),
    "mlp": lambda: MLP(DataShape(1, 3, 3, 4), (12, 8)),
    "resnet": lambda: ResNet18(DataShape(1, 4, 4, 3), base=8),
}
"""Every network, small; the maps of LeNet5 and AlexNet have two pixels per channel when they are flattened."""


@cache
def net_of(name: str) -> ScalableNet:
    """A network of the zoo, built once."""
    return ZOO[name]()


@cache
def space_of(name: str) -> ParameterSpace:
    """Its layout."""
    return ParameterSpace(net_of(name))


@cache
def block_sizes(name: str, rate: float) -> tuple[int, ...]:
    """Coordinates of every tensor of the network built at a rate."""
    return tuple(block.size for block in ParameterSpace(net_of(name).scaled(rate)).blocks)


@cache
def mlp_space(*hidden: int) -> ParameterSpace:
    """Layout of a fully connected network with two inputs and two classes."""
    return ParameterSpace(MLP(DataShape(1, 1, 2, 2), hidden))


@cache
def paper_cnn(u: int = 16) -> ParameterSpace:
    """MaPP-FL's network for colour images of ten classes."""
    return ParameterSpace(CNN(DataShape(3, 32, 32, 10), u=u))


WIDE = (24, 16)
"""Hidden layers wide enough that random sets do not meet by chance."""


def fingerprint(method: SubmodelMethod, space: ParameterSpace, client_round: ClientRound) -> bytes:
    """A submodel, to compare and to count."""
    return method.index(space, client_round).numpy().tobytes()


def read_off(space: ParameterSpace, index: Tensor) -> tuple[dict[str, set], dict[str, set]]:
    """Channel lists of every axis as its layers write and as they read it; one list each where all layers agree.

    Holds on the way: the coordinates of a tensor are exactly some outputs x some inputs x the whole kernel, dimensions
    without an axis are whole, and a flattened channel comes with all its pixels.
    """
    chosen = torch.zeros(space.size, dtype=torch.bool)
    chosen[index] = True
    written: dict[str, set] = {axis: set() for axis in space.axes}
    read: dict[str, set] = {axis: set() for axis in space.axes}
    for block in space.blocks:
        coordinates = chosen[block.coordinates].view(*block.shape[:2], -1)
        outputs = coordinates.flatten(1).any(1)
        found = [(written, 0, outputs)]
        if len(block.shape) > 1:
            positions = coordinates.transpose(0, 1).flatten(1).any(1).view(-1, block.spread)
            assert torch.equal(positions.any(1), positions.all(1)), block.name
            found.append((read, 1, positions.any(1)))
        kept = math.prod(int(channels.sum()) for _, _, channels in found)
        kernel = coordinates.shape[2] if len(block.shape) > 1 else 1
        assert int(coordinates.count_nonzero()) == kept * kernel * block.spread ** (len(found) - 1), block.name
        for lists, dimension, channels in found:
            axis = block.axes[dimension]
            if axis is None:
                assert bool(channels.all()), (block.name, dimension)
            else:
                lists[axis].add(tuple(channels.nonzero().flatten().tolist()))
    return written, read


def coupled(space: ParameterSpace, index: Tensor) -> dict[str, tuple[int, ...]]:
    """The one list of channels of every axis, the same for all layers that write or read it."""
    written, read = read_off(space, index)
    lists = {axis: written[axis] | read[axis] for axis in space.axes}
    assert all(len(found) == 1 for found in lists.values()), lists
    return {axis: found.pop() for axis, found in lists.items()}


def family(method: SubmodelMethod, space: ParameterSpace, round_: int, rate: float, clients: int) -> list[bytes]:
    """Submodels of all clients of a round, all of one width."""
    return [fingerprint(method, space, ClientRound(round_, client, rate, clients, 3)) for client in range(clients)]


MIXED = [1.0, 0.5, 1 / 3, 0.25, 0.6] * 4

PATTERNS = {0: "1111", 1: "2121", 2: "1212", 3: "2222"}
"""Half of the channels that the four groups of MaPP-FL (GFM) take in its four convolutions."""


def halves(space: ParameterSpace, index: Tensor) -> str:
    """For every axis, 1 for exactly its first half of channels, 2 for its second, ? for anything else."""
    signs = ""
    for axis, channels in coupled(space, index).items():
        width = space.axes[axis].width
        names = {tuple(range(width // 2)): "1", tuple(range(width // 2, width)): "2"}
        signs += names.get(channels, "?")
    return signs
