"""What every network of the zoo offers: it can be built at a fraction of its width, and it names its channel axes."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Self

from lightning.pytorch.core.mixins import HyperparametersMixin
from torch import Tensor, nn


@dataclass(frozen=True)
class DataShape:
    """What a network must know of the data: image channels, height and width in pixels, number of classes."""

    channels: int
    height: int
    width: int
    classes: int


@dataclass(frozen=True)
class LayerAxes:
    """Names of the channel axes that the parameters of one layer span.

    Layers that share an axis name share the choice of channels: a convolution and its norm, the input of a layer and
    the output of the one before, all ends of a residual addition.

    Attributes:
        output: axis of the output channels (first dimension of every parameter), None where it is never cut.
        input: axis of the input channels (second dimension of the weight), None where it is never cut.
        spread: consecutive inputs per input channel: height x width of the map that is flattened before a linear
            layer, 1 elsewhere.
    """

    output: str | None = None
    input: str | None = None
    spread: int = 1


class ScalableNet(nn.Module, HyperparametersMixin, ABC):
    """Image classifier whose hidden channels scale with `rate`.

    A subclass calls `super().__init__()` and then `self.save_hyperparameters()` first thing in its `__init__`, takes
    `shape: DataShape` first and `rate: float = 1.0` last, and sizes its hidden layers with `scaled_width`.
    """

    def __init__(self) -> None:
        super().__init__()

    @abstractmethod
    def layer_axes(self) -> dict[str, LayerAxes]:
        """Axes of every layer that has parameters or buffers, by the layer's name in `named_modules()`."""

    @abstractmethod
    def forward(self, images: Tensor) -> Tensor:
        """Logits (batch, classes) of normalised images (batch, channels, height, width)."""

    def scaled(self, rate: float) -> Self:
        """The same network with freshly initialised hidden layers of `rate` (0, 1] times the full width."""
        return type(self)(**{**self.hparams, "rate": rate})


def scaled_width(width: int, rate: float) -> int:
    """Channels of a layer at `rate`: ceil(rate * width), as in HeteroFL and MaPP-FL."""
    # 0.1 * 30 is a little more than 3 in floating point
    return max(1, math.ceil(round(rate * width, 6)))
