"""The layers that a malicious server inserts in front of a network (Fowl et al. 2022, section 4).

A block adds the same small number to every pixel of an image; a linear measurement of the image decides which number.
All clients hold the whole block, whatever their width. While its parameters are 0, it passes images on unchanged and
gets no gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, wraps
from typing import Any, Literal

import torch
from torch import Tensor, nn

from app.models.base import LayerAxes, ScalableNet

BLOCK = "imprint"
"""Name of the block among the layers of a network."""

MEASURE, SPREAD = f"{BLOCK}.measure", f"{BLOCK}.spread"
"""Names of its layers: the measurement of an image, and what is added to the pixels."""

Variant = Literal["sparse", "cumulative"]

HEIGHT = 1e-6
"""Largest activation of a sparse neuron: so small that images stay what they are however loud the block is made."""


@dataclass(frozen=True)
class BlockSettings:
    """Architecture of a block."""

    pixels: int  # values of an image
    bins: int  # neurons, at least 1
    variant: Variant  # neurons pass a gradient on within their bin only, or from their bin upwards (ReLU)
    height: float = HEIGHT  # largest activation of a sparse neuron, above 0


class ImprintBlock(nn.Module):
    """One neuron per bin of the measurement, and the number that their activations add to all pixels.

    It is in no state dict: what the server keeps is the announced network.
    """

    def __init__(self, settings: BlockSettings) -> None:
        super().__init__()
        self.measure = nn.utils.skip_init(nn.Linear, settings.pixels, settings.bins)
        self.spread = nn.utils.skip_init(nn.Linear, settings.bins, 1, bias=False)
        self.activation = nn.Hardtanh(0.0, settings.height) if settings.variant == "sparse" else nn.ReLU()
        for parameter in self.parameters():
            nn.init.zeros_(parameter)
        self.register_state_dict_post_hook(_leave_out)
        self.register_load_state_dict_pre_hook(_fill_in)

    def forward(self, images: Tensor) -> Tensor:
        shift = self.spread(self.activation(self.measure(images.flatten(1))))
        return images + shift.view(-1, 1, 1, 1)


def with_imprint_block(net: ScalableNet, settings: BlockSettings) -> ScalableNet:
    """The network with a block in front, whose parameters come first; other layers keep their names and values."""
    net.__class__ = _imprinted(type(net), settings)
    _insert(net, settings)
    return net


def _insert(net: nn.Module, settings: BlockSettings) -> None:
    layers = dict(net.named_children())
    for name in layers:
        delattr(net, name)
    for name, layer in {BLOCK: ImprintBlock(settings), **layers}.items():
        setattr(net, name, layer)


@cache
def _imprinted(kind: type[ScalableNet], settings: BlockSettings) -> type[ScalableNet]:
    """A class of networks like `kind`, in all widths, whose images go through a block first."""

    @wraps(kind.__init__)
    def build(net: ScalableNet, *arguments: Any, **options: Any) -> None:
        kind.__init__(net, *arguments, **options)
        _insert(net, settings)

    def layer_axes(net: ScalableNet) -> dict[str, LayerAxes]:
        return {MEASURE: LayerAxes(), SPREAD: LayerAxes(), **kind.layer_axes(net)}

    def forward(net: ScalableNet, images: Tensor) -> Tensor:
        block = net.get_submodule(BLOCK)
        return kind.forward(net, block(images))

    def without_inserted(net: ScalableNet) -> ScalableNet:
        delattr(net, BLOCK)
        net.__class__ = kind
        return net

    own: dict[str, Any] = {"__init__": build, "layer_axes": layer_axes, "forward": forward}
    own |= {"announced": kind, "without_inserted": without_inserted}
    # a private name, which the command line offers to nobody
    return type(kind.__name__, (kind,), {**own, "__module__": __name__, "__qualname__": f"_imprinted.{kind.__name__}"})


def _leave_out(block: nn.Module, state: dict[str, Any], prefix: str, _: object) -> None:
    for name, _parameter in block.named_parameters():
        state.pop(prefix + name)


def _fill_in(block: nn.Module, state: dict[str, Any], prefix: str, *_: object) -> None:
    for name, parameter in block.named_parameters():
        state[prefix + name] = torch.zeros_like(parameter)
