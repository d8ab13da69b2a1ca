"""What every network of the zoo offers: it can be built at a fraction of its width, and it names its channel axes."""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any, ClassVar, Self

import torch
from lightning.pytorch.core.mixins import HyperparametersMixin
from torch import Tensor, nn

from app.common.errors import raise_all
from app.common.ranges import range_problems


@dataclass(frozen=True)
class DataShape:
    """Image channels, height and width in pixels, and number of classes."""

    channels: int
    height: int
    width: int
    classes: int


@dataclass(frozen=True)
class LayerAxes:
    """Names of the channel axes that the parameters of one layer span.

    Layers that share an axis name share the choice of channels: a convolution and its norm, the input of a layer and
    the output of the one before, all ends of a residual addition.
    """

    # axis of the output channels (first dimension of every parameter), None where it is never cut
    output: str | None = None
    input: str | None = None  # axis of the input channels (second dimension of the weight), None where it is never cut
    # consecutive inputs per input channel: height x width of the map that is flattened before a linear layer, 1
    # elsewhere
    spread: int = 1
    # axis of the rank-1 factors of a factorised layer (columns of `left`, first dimension of all else but the bias)
    factors: str | None = None


class ScalableNet(nn.Module, HyperparametersMixin, ABC):
    """Image classifier whose hidden channels scale with `rate`.

    A subclass calls `super().__init__()` and then `self.save_hyperparameters()` first thing in its `__init__`, takes
    `shape: DataShape` first and `rate: float = 1.0` last, and sizes its hidden layers with `scaled_width`.
    """

    announced: ClassVar[type[ScalableNet] | None] = None
    """The class of the network that a malicious server has inserted layers in front of; None for an honest network."""

    def __init__(self) -> None:
        super().__init__()

    def save_hyperparameters(self, *args: Any, frame: FrameType | None = None, **options: Any) -> None:
        """Keep the arguments of the constructor, and refuse numbers outside the ranges that it declares."""
        caller = frame or sys._getframe(1)
        super().save_hyperparameters(*args, frame=caller, **options)
        raise_all(range_problems(partial(type(self), **self.hparams), "model.net"))

    @abstractmethod
    def layer_axes(self) -> dict[str, LayerAxes]:
        """Axes of every layer that has parameters or buffers, by the layer's name in `named_modules()`."""

    @abstractmethod
    def forward(self, images: Tensor) -> Tensor:
        """Logits (batch, classes) of normalised images (batch, channels, height, width)."""

    def scaled(self, rate: float) -> Self:
        """The same network with freshly initialised hidden layers of `rate` (0, 1] times the full width."""
        return type(self)(**{**self.hparams, "rate": rate})

    def without_inserted(self) -> ScalableNet:
        """The network itself, without layers that a malicious server has inserted."""
        return self

    # ---- networks with a part that belongs to the client -------------------------------------------------------------

    def private_names(self) -> tuple[str, ...]:
        """Names of the parameters that stay on the client by design and are never uploaded."""
        return ()

    def mask_private(self, used: float = 1.0) -> None:
        """Replace the private parameters by values that are public, as in the server's copy of the network.

        Of the channels that they switch on, only the first `used`, in [0, 1], are; 0 switches everything off.
        """
        return

    def sample_noise(self, generator: torch.Generator) -> Mapping[str, Tensor]:
        """Random numbers of one local step: values of non-persistent buffers, by name."""
        return {}

    def clamp_ranges(self) -> Mapping[str, tuple[float, float]]:
        """Smallest and largest value of parameters that are clamped before every local step, by name."""
        return {}

    def penalty(self) -> Tensor | None:
        """A term of the objective over a client's whole training set; a local step weighs it by 1 / samples."""
        return None


def scaled_width(width: int, rate: float) -> int:
    """Channels of a layer at `rate`: ceil(rate * width), as in HeteroFL and MaPP-FL."""
    # 0.1 * 30 is a little more than 3 in floating point
    return max(1, math.ceil(round(rate * width, 6)))
