"""Trap weights (Boenisch et al. 2023): pre-activations are mostly negative, so that a ReLU fires for few images."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from app.common.ranges import Positive, Share


@dataclass(frozen=True, eq=False)
class Calibration:
    """Images of the attacker that biases are fitted to."""

    inputs: Tensor  # (n, values) normalised images, n at least 1
    count: int  # number of images that the attacked clients have, at least 1

    def biases(self, weights: Tensor) -> Tensor:
        """(rows) biases with which a neuron fires for one in `count` images; for all images where `count` is 1."""
        activations = self.inputs @ weights.to(self.inputs).T
        place = max(1, math.floor(len(activations) * (1 - 1 / self.count)))
        return -activations.kthvalue(place, dim=0).values


@dataclass(frozen=True)
class TrapWeights:
    """Distribution of the weights of a manipulated layer: half negative, half positive and a little smaller in size.

    Attributes:
        layout: `row` balances the signs over the inputs of every neuron, as Boenisch et al. do; `column` over the
            neurons of every input, as the public code of the attacks on unequal models does.
        sigma: standard deviation of the normal distribution of the magnitudes, above 0.
        scale: ratio of positive to negative magnitudes, in (0, 1].
        bias: `zero`; drawn like a weight (`trap`, the public code); or `calibrated` on the attacker's own images, so
            that a neuron fires for one image of the attacked clients on average (0 where the attacker has no images).
        output: later layers stay as they are (`kept`); are drawn like traps (`trap`, the public code), which saturates
            the softmax; or are `loud`: large normal weights after small traps, so that the gradient is much larger than
            what other clients still change and no image is predicted with certainty.
        loudness: standard deviation of loud weights, above 0; traps are divided by its square.
    """

    layout: Literal["row", "column"] = "row"
    sigma: Positive = 0.5
    scale: Share = 0.95
    bias: Literal["zero", "trap", "calibrated"] = "zero"
    output: Literal["kept", "trap", "loud"] = "kept"
    loudness: Positive = 30.0

    def matrix(self, rows: int, columns: int, generator: torch.Generator) -> Tensor:
        """(rows, columns) float32 trap weights."""
        if self.layout == "row":
            return self._lines(rows, columns, generator)
        return self._lines(columns, rows, generator).T.contiguous()

    def vector(self, length: int, generator: torch.Generator) -> Tensor:
        """(length) float32 biases, drawn or 0."""
        return self._lines(1, length, generator)[0] if self.bias == "trap" else torch.zeros(length)

    def behind(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor | None:
        """Parameters of a later layer (float32), a matrix or a vector; None where they are kept."""
        if self.output == "kept":
            return None
        if self.output == "loud":
            return _normal(*shape, generator=generator) * self.loudness if len(shape) == 2 else torch.zeros(shape)
        return self.matrix(shape[0], shape[1], generator) if len(shape) == 2 else self.vector(shape[0], generator)

    def _lines(self, lines: int, length: int, generator: torch.Generator) -> Tensor:
        """Every line: negative weights, and the same weights made positive and scaled, shuffled."""
        size = self.sigma / self.loudness**2 if self.output == "loud" else self.sigma
        negative = -(_normal(lines, (length + 1) // 2, generator=generator) * size).abs()
        values = torch.cat([negative, -self.scale * negative[:, : length // 2]], dim=1)
        order = torch.rand(lines, length, generator=generator, dtype=torch.float32).argsort(dim=1)
        return values.gather(1, order)


def _normal(*shape: int, generator: torch.Generator) -> Tensor:
    """Float32 normal numbers, whatever the default type (Lightning changes it while it trains in double precision)."""
    return torch.randn(*shape, generator=generator, dtype=torch.float32)
