"""The server's network as one flat vector, and submodels as index sets into it.

This is the one place that knows about layers: everything else (aggregation, defenses, masks, plans, attacks) reads and
writes flat vectors and indices.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch

import numpy as np
import torch
from torch import Tensor, nn

from app.common.errors import UserError
from app.models.base import LayerAxes, ScalableNet, scaled_width

ChannelChoice = Mapping[str, Tensor]
"""Channels kept on every axis, ascending; an axis that is absent is kept whole."""


@dataclass(frozen=True)
class Block:
    """One parameter or buffer tensor inside the flat vector."""

    name: str  # dotted name in the network, such as `features.0.weight`
    shape: tuple[int, ...]
    start: int  # its first coordinate
    axes: tuple[str | None, ...]  # axis name of each of the first dimensions (None: never cut)
    spread: int  # consecutive inputs per channel along the second dimension

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def coordinates(self) -> slice:
        return slice(self.start, self.start + self.size)


@dataclass(frozen=True)
class Axis:
    """One list of channels that layers share."""

    name: str  # as the network declares it
    number: int  # 0-based position in the order of the layers
    # number of cut layers on the way to it: neighbours along the main path differ by one, also in networks with
    # shortcuts
    depth: int
    width: int  # channels in the server's network


class ParameterSpace:
    """Layout of a network's flat vector: trainable parameters first, then floating-point buffers.

    Attributes:
        blocks: the tensors in flat order.
        trainable: number of coordinates that are parameters; the coordinates after them are buffers (running
            statistics).
        size: number of coordinates.
        axes: the channel axes by name, in the order of the layers.
    """

    def __init__(self, net: ScalableNet) -> None:
        self.blocks = tuple(_blocks(net))
        parameters = {name for name, _ in net.named_parameters()}
        self.trainable = sum(block.size for block in self.blocks if block.name in parameters)
        self.size = sum(block.size for block in self.blocks)
        self.axes = _axes(self.blocks)
        self._sizes: dict[float, int] = {}

    def read(self, net: nn.Module) -> Tensor:
        return FlatNet(self, net).read()

    def write(self, net: nn.Module, vector: Tensor) -> None:
        FlatNet(self, net).write(vector)

    def index(self, outputs: ChannelChoice, inputs: ChannelChoice | None = None) -> Tensor:
        """Coordinates (int64, ascending) of the submodel that keeps the chosen channels on every axis.

        `inputs` are the channels that layers read; by default those that the layer before writes.
        """
        choices = (outputs, outputs if inputs is None else inputs)
        return torch.cat([_block_index(block, choices) for block in self.blocks])

    def size_at(self, rate: float) -> int:
        """Coordinates of a submodel of one width rate, in (0, 1]; methods differ in which ones they are."""
        if rate not in self._sizes:
            self._sizes[rate] = sum(math.prod(self._lengths(block, rate)) for block in self.blocks)
        return self._sizes[rate]

    def _lengths(self, block: Block, rate: float) -> Iterator[int]:
        """Length of every dimension of a block in a submodel of one width rate."""
        for position, length in enumerate(block.shape):
            axis = block.axes[position] if position < len(block.axes) else None
            kept = length if axis is None else scaled_width(self.axes[axis].width, rate)
            yield kept * (block.spread if axis is not None and position == 1 else 1)

    def matching(self, patterns: list[str]) -> Tensor:
        """Mask (bool, size) of the coordinates whose block name matches one of the shell-style patterns."""
        mask = torch.zeros(self.size, dtype=torch.bool)
        for pattern in patterns:
            blocks = [block for block in self.blocks if fnmatch(block.name, pattern)]
            if not blocks:
                names = ", ".join(block.name for block in self.blocks[:6])
                raise UserError.of(
                    f"no parameter matches {pattern!r}",
                    "nothing would be kept on the clients although the configuration asks for it",
                    f"use a shell-style pattern over the parameter names ({names}, ...)",
                )
            for block in blocks:
                mask[block.coordinates] = True
        return mask

    def names(self, mask: Tensor) -> frozenset[str]:
        """Names of the blocks all of whose coordinates are in a mask (bool, size)."""
        return frozenset(block.name for block in self.blocks if bool(mask[block.coordinates].all()))


class FlatNet:
    """One network as a flat vector. Looks its tensors up once, which is faster where it is read and written often.

    The tensors of the network must stay the same objects.
    """

    def __init__(self, space: ParameterSpace, net: nn.Module) -> None:
        tensors = {**dict(net.named_parameters()), **dict(net.named_buffers())}
        self.space = space
        self._tensors = [tensors[block.name] for block in space.blocks]

    @torch.no_grad()
    def read(self) -> Tensor:
        return torch.cat([tensor.reshape(-1) for tensor in self._tensors])

    @torch.no_grad()
    def write(self, vector: Tensor) -> None:
        pieces = vector.split([block.size for block in self.space.blocks])
        shaped = [piece.view(block.shape) for piece, block in zip(pieces, self.space.blocks, strict=True)]
        torch._foreach_copy_(self._tensors, shaped)


class WidthNets:
    """One network per width, built from a prototype on first use and then reused: its values are to be overwritten.

    Every thread has its own networks, so that workers can use them at the same time. `prepare` is called once on every
    new network; with `fork`, torch's global generator, from which initial values are drawn, stays as it was.
    """

    def __init__(
        self, prototype: ScalableNet, prepare: Callable[[ScalableNet], object] | None = None, fork: bool = True
    ) -> None:
        self._prototype, self._prepare, self._fork = prototype, prepare, fork
        self._nets: dict[tuple[int, float], tuple[ScalableNet, FlatNet]] = {}

    def of(self, rate: float) -> tuple[ScalableNet, FlatNet]:
        """The network of one width rate, in (0, 1], and the same network as a flat vector."""
        key = (threading.get_ident(), rate)
        if key not in self._nets:
            like = next(self._prototype.parameters())
            with torch.random.fork_rng(devices=[], enabled=self._fork):
                net = self._prototype.scaled(rate).to(like.device, like.dtype)
            if self._prepare is not None:
                self._prepare(net)
            self._nets[key] = net, FlatNet(ParameterSpace(net), net)
        return self._nets[key]


def lasting_buffers(net: nn.Module) -> list[str]:
    """Names of the floating-point buffers that are part of a model: those that a state dict holds."""
    kept = net.state_dict().keys()
    return [name for name, buffer in net.named_buffers() if buffer.is_floating_point() and name in kept]


def plain_array(values: Tensor) -> np.ndarray:
    """Values on the CPU in a type that NumPy has: half precision becomes single, which loses nothing."""
    return (values.float() if values.element_size() < 4 else values).detach().cpu().numpy()


def _blocks(net: ScalableNet) -> Iterator[Block]:
    layers = net.layer_axes()
    buffers = [(name, net.get_buffer(name)) for name in lasting_buffers(net)]
    start = 0
    for name, tensor in [*net.named_parameters(), *buffers]:
        layer, _, kind = name.rpartition(".")
        if layer not in layers:
            raise UserError.of(
                f"{type(net).__name__} declares no channel axes for layer {layer!r}",
                "its parameters could not be cut into submodels",
                f"add {layer!r} to `layer_axes()` of {type(net).__name__}",
            )
        axes = _block_axes(layers[layer], kind, tensor.dim())
        yield Block(name, tuple(tensor.shape), start, axes, layers[layer].spread)
        start += tensor.numel()


def _block_axes(layer: LayerAxes, kind: str, dimensions: int) -> tuple[str | None, ...]:
    if dimensions == 0:
        return ()
    if layer.factors is not None:
        return (None, layer.factors) if kind == "left" else (None if kind == "bias" else layer.factors,)
    return (layer.output, layer.input) if kind == "weight" and dimensions > 1 else (layer.output,)


def _axes(blocks: tuple[Block, ...]) -> dict[str, Axis]:
    widths = _axis_widths(blocks)
    depths: dict[str | None, int] = {None: -1}
    for block in blocks:  # the first layer that writes an axis decides; residual additions come later
        written, read = [*block.axes, None, None][:2]
        if len(block.axes) == 2 and written not in depths:
            depths[written] = depths.get(read, -1) + 1
    return {name: Axis(name, number, depths.get(name, 0), width) for number, (name, width) in enumerate(widths.items())}


def _axis_widths(blocks: tuple[Block, ...]) -> dict[str, int]:
    widths: dict[str, int] = {}
    for block in blocks:
        for position, axis in enumerate(block.axes):
            if axis is None:
                continue
            width = block.shape[position] // (block.spread if position == 1 else 1)
            if widths.setdefault(axis, width) != width:
                raise ValueError(f"axis {axis!r} is {widths[axis]} wide, but {block.name} makes it {width}")
    return widths


def _block_index(block: Block, choices: tuple[ChannelChoice, ChannelChoice]) -> Tensor:
    """Coordinates of the chosen rows, of the chosen columns in them, and of all that belongs to each."""
    stride = math.prod(block.shape[2:])
    index = torch.arange(block.start, block.start + stride)
    for position in reversed(range(min(len(block.shape), 2))):
        index = ((_kept(block, position, choices[position]) * stride)[:, None] + index).reshape(-1)
        stride *= block.shape[position]
    return index


def _kept(block: Block, position: int, choice: ChannelChoice) -> Tensor:
    axis = block.axes[position] if position < len(block.axes) else None
    channels = choice.get(axis) if axis is not None else None
    if channels is None:
        return torch.arange(block.shape[position])
    if position == 1 and block.spread > 1:
        return (channels[:, None] * block.spread + torch.arange(block.spread)).reshape(-1)
    return channels
