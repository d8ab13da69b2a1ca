"""Layers that networks share: seeded dropout, HeteroFL's Scaler, blocks of convolutions and chains of linear layers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from app.common.errors import raise_all
from app.common.ranges import Decay, Share, range_problems
from app.models.base import LayerAxes


class SeededDropout(nn.Module):
    """Dropout whose masks come from its own generator, so that clients trained in parallel stay reproducible.

    Args:
        p: fraction of activations that are dropped in training, in [0, 1); the others are divided by 1 - p.
    """

    def __init__(self, p: Decay = 0.5) -> None:
        super().__init__()
        raise_all(range_problems(partial(SeededDropout, p=p)))
        self.p = p
        self.generator: torch.Generator | None = None

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        # Drawn in the order of the shape, whatever the memory layout of x: channels_last gives the same mask.
        drawn = torch.rand(x.shape, generator=self.generator, device=x.device)
        return x * (drawn >= self.p) / (1 - self.p)

    def extra_repr(self) -> str:
        return f"p={self.p}"


def seed_dropout(net: nn.Module, generator: torch.Generator | None) -> None:
    """Let every `SeededDropout` of `net` draw from `generator` (on the net's device); None is torch's default."""
    for layer in net.modules():
        if isinstance(layer, SeededDropout):
            layer.generator = generator


def has_dropout(net: nn.Module) -> bool:
    """Whether training `net` draws dropout masks."""
    return any(isinstance(layer, (SeededDropout, _DropoutNd)) and layer.p > 0 for layer in net.modules())


class Scaler(nn.Module):
    """Division by the width rate, so that a narrow layer sends signals as strong as the full one (HeteroFL).

    Args:
        rate: width of the submodel as a fraction of the full width, in (0, 1].
        keep: also divide in evaluation; otherwise evaluation passes signals through unchanged.
    """

    def __init__(self, rate: Share, keep: bool = False) -> None:
        super().__init__()
        raise_all(range_problems(partial(Scaler, rate=rate)))
        self.rate = rate
        self.keep = keep

    def forward(self, x: Tensor) -> Tensor:
        if self.rate == 1 or not (self.training or self.keep):
            return x
        return x / self.rate

    def extra_repr(self) -> str:
        return f"rate={self.rate}, keep={self.keep}"


def make_scaler(active: bool, rate: float, keep: bool) -> nn.Module:
    """A `Scaler`, or the identity where it is switched off."""
    return Scaler(rate, keep) if active else nn.Identity()


def conv_block(conv: nn.Conv2d, norm: nn.Module, pool: bool, scaler: nn.Module | None = None) -> nn.Sequential:
    """Convolution, optional scaler, norm, ReLU and optional 2x2 max-pool, under the names conv, scaler, norm, ..."""
    layers = {"conv": conv, "scaler": scaler, "norm": norm, "activation": nn.ReLU()}
    present = OrderedDict((name, layer) for name, layer in layers.items() if layer is not None)
    return PooledBlock(present | {"pool": nn.MaxPool2d(2)}) if pool else nn.Sequential(present)


class PooledBlock(nn.Sequential):
    """Layers that end with a ReLU and a max-pool, which is applied first, so that the ReLU sees a smaller map.

    ReLU keeps the order of values, so outputs and gradients are the same bit for bit (up to rounding where clients are
    stacked). Other layers put in their places are applied in the order of the names.
    """

    def forward(self, images: Tensor) -> Tensor:
        *first, activation, pool = self
        swapped = type(activation) is nn.ReLU and type(pool) is nn.MaxPool2d
        for layer in (*first, *((pool, activation) if swapped else (activation, pool))):
            images = layer(images)
        return images


def linear_chain(widths: Sequence[int], classes: int, bias: bool, dropout: float) -> nn.Sequential:
    """Flatten; hidden linear layers (widths[0] inputs, widths[1:] outputs) with ReLU and dropout; classifier."""
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    for number, (inputs, outputs) in enumerate(pairwise(widths), start=1):
        layers[f"hidden{number}"] = nn.Linear(inputs, outputs, bias=bias)
        layers[f"activation{number}"] = nn.ReLU()
        layers[f"dropout{number}"] = SeededDropout(dropout)
    layers["classifier"] = nn.Linear(widths[-1], classes, bias=bias)
    return nn.Sequential(layers)


def conv_chain_axes(depth: int, spread: int = 1) -> dict[str, LayerAxes]:
    """Axes conv1, conv2, ... of a net made of `depth` `blocks` (each a `conv_block`) and a linear `classifier`.

    `spread` is the number of pixels that the classifier sees per channel of the last map; 1 after global pooling.
    """
    axes: dict[str, LayerAxes] = {}
    previous: str | None = None
    for number in range(depth):
        current = f"conv{number + 1}"
        axes[f"blocks.{number}.conv"] = LayerAxes(output=current, input=previous)
        axes[f"blocks.{number}.norm"] = LayerAxes(output=current)
        previous = current
    axes["classifier"] = LayerAxes(input=previous, spread=spread)
    return axes
