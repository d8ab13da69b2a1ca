"""Trap weights: nearly every weighted sum is negative, so that a ReLU fires for few images (Boenisch et al. 2023)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from app.errors import Problem


@dataclass(frozen=True, eq=False)
class Calibration:
    """What an attacker with images of its own can fit biases to.

    Attributes:
        inputs: (n, values) its images as the network sees them, n at least 1.
        count: number of images that the attacked clients have, at least 1.
    """

    inputs: Tensor
    count: int

    def biases(self, weights: Tensor) -> Tensor:
        """(rows) biases with which a row fires for one in `count` images; every image for a single one."""
        sums = self.inputs @ weights.to(self.inputs).T
        place = max(1, math.floor(len(sums) * (1 - 1 / self.count)))
        return -sums.kthvalue(place, dim=0).values


@dataclass(frozen=True)
class TrapWeights:
    """How the weights of a manipulated layer are drawn: half of them negative, the others a little smaller in size.

    Attributes:
        layout: `row` deals the signs over the inputs of every neuron, as Boenisch et al. do; `column` over the neurons
            of every input, as the public code of the attacks on unequal models does.
        sigma: standard deviation of the normal distribution whose magnitudes are taken, above 0.
        scale: positive weights are so much smaller than the negative ones, in (0, 1].
        bias: biases are 0; drawn like one more weight (`trap`, the public code); or `calibrated` on images of the
            attacker's own, so that a neuron fires for one image of the attacked clients on average (0 where the
            attacker has no images).
        output: the layers behind stay as they are in the model (`kept`); are drawn like traps, too (`trap`, the public
            code), which saturates the softmax; or are `loud`: large weights without a pattern behind small traps, so
            that the gradient drowns what other clients still change and no image is predicted with certainty.
        loudness: standard deviation of loud weights, above 0; the traps before them are smaller by its square.
    """

    layout: Literal["row", "column"] = "row"
    sigma: float = 0.5
    scale: float = 0.95
    bias: Literal["zero", "trap", "calibrated"] = "zero"
    output: Literal["kept", "trap", "loud"] = "kept"
    loudness: float = 30.0

    def problems(self) -> Iterator[Problem]:
        """What is wrong with these settings."""
        if self.sigma <= 0:
            yield Problem(f"traps.sigma is {self.sigma}", "no weight could be drawn", "set traps.sigma above 0")
        if self.loudness <= 0:
            yield Problem(f"traps.loudness is {self.loudness}", "nothing would be learnt", "set traps.loudness above 0")
        if not 0 < self.scale <= 1:
            consequence = "neurons would fire for all images or for none"
            yield Problem(f"traps.scale is {self.scale}", consequence, "set traps.scale in (0, 1]")

    def matrix(self, rows: int, columns: int, generator: torch.Generator) -> Tensor:
        """(rows, columns) float32 trap weights: row for row, or column for column."""
        if self.layout == "row":
            return self._lines(rows, columns, generator)
        return self._lines(columns, rows, generator).T.contiguous()

    def vector(self, length: int, generator: torch.Generator) -> Tensor:
        """(length) float32 biases that are drawn, or 0."""
        return self._lines(1, length, generator)[0] if self.bias == "trap" else torch.zeros(length)

    def behind(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor | None:
        """Parameters of a later layer (float32), a matrix or a vector; None where they stay as they are."""
        if self.output == "kept":
            return None
        if self.output == "loud":
            return _normal(*shape, generator=generator) * self.loudness if len(shape) == 2 else torch.zeros(shape)
        return self.matrix(shape[0], shape[1], generator) if len(shape) == 2 else self.vector(shape[0], generator)

    def _lines(self, lines: int, length: int, generator: torch.Generator) -> Tensor:
        """Every line: negative magnitudes, and as many of the same magnitudes made positive and smaller, shuffled."""
        size = self.sigma / self.loudness**2 if self.output == "loud" else self.sigma
        negative = -(_normal(lines, (length + 1) // 2, generator=generator) * size).abs()
        values = torch.cat([negative, -self.scale * negative[:, : length // 2]], dim=1)
        order = torch.rand(lines, length, generator=generator, dtype=torch.float32).argsort(dim=1)
        return values.gather(1, order)


def _normal(*shape: int, generator: torch.Generator) -> Tensor:
    """Standard normal numbers in a stated type: the default type is another one while Lightning trains in double."""
    return torch.randn(*shape, generator=generator, dtype=torch.float32)
