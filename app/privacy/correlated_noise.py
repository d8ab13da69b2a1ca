"""Noise that is correlated over rounds, for runs whose participants are fixed in advance (DP-FTRL).

The server releases prefix sums of the clients' changes. An encoder C turns the changes of all rounds into numbers that
get independent noise, and what is released is a fixed function of these, which costs no more: with the prefix-sum
matrix A = B C, the noise of the prefix sums is B z for independent z. A client moves the encoded numbers by the rows of
C, summed over the rounds in which it takes part; this participation decides the sensitivity.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from torch import Tensor

Correlation = Literal["tree", "banded"]
"""Sums of a binary tree (Kairouz et al. 2021, with Honaker's estimate from below), or the square root of the prefix
sums, cut to some bands (Choquette-Choo et al. 2023); a single band is independent noise."""

Draw = Callable[[], Tensor]
"""Independent noise at every call."""


def root_coefficients(count: int) -> np.ndarray:
    """First coefficients of (1 - x)^(-1/2): the column of the square root of the prefix-sum matrix."""
    coefficients = np.ones(count)
    for place in range(1, count):
        coefficients[place] = coefficients[place - 1] * (2 * place - 1) / (2 * place)
    return coefficients


class CorrelatedNoise:
    """The noise of one round after the other.

    Args:
        correlation: how.
        bands: of `banded`: in how many rounds a number is used, at least 1.
    """

    def __init__(self, correlation: Correlation, bands: int) -> None:
        self._correlation = correlation
        self._coefficients = root_coefficients(bands if correlation == "banded" else 1)
        # of a tree: estimates of the complete subtrees of the rounds so far, largest first; of bands: earlier noise
        self._kept: list[Tensor] = []
        self._levels: list[int] = []

    def rows(self, round_: int) -> np.ndarray:
        """(rows, `round_` + 1) rows of the encoder that a round (from 0) completes, over the rounds up to it."""
        if self._correlation != "tree":
            row = np.zeros(round_ + 1)
            used = min(len(self._coefficients), round_ + 1)
            row[round_ + 1 - used :] = self._coefficients[:used][::-1]
            return row[None]
        sizes = [2**level for level in range((round_ + 1).bit_length()) if (round_ + 1) % 2**level == 0]
        rounds = np.arange(round_ + 1)
        return np.stack([rounds > round_ - size for size in sizes]).astype(np.float64)

    def next(self, draw: Draw) -> Tensor:
        """Noise on the sum of the next round."""
        return self._next_of_tree(draw) if self._correlation == "tree" else self._next_of_bands(draw)

    def _next_of_bands(self, draw: Draw) -> Tensor:
        """Row of C^-1 z, by back substitution."""
        noise = draw()
        for earlier, coefficient in zip(reversed(self._kept), self._coefficients[1:], strict=False):
            noise = noise - float(coefficient) * earlier.to(noise)
        most = len(self._coefficients) - 1
        self._kept = [*self._kept, noise][-most:] if most else []
        return noise

    def _next_of_tree(self, draw: Draw) -> Tensor:
        """Change of the prefix sum's noise. A subtree's sum is estimated from its root and its two halves."""
        estimate, variance, level = draw(), 1.0, 0
        self._kept = [one.to(estimate) for one in self._kept]
        before = [*self._kept]
        while self._levels and self._levels[-1] == level:
            left = self._kept.pop()
            self._levels.pop()
            level += 1
            halves = 2 * variance
            estimate = (halves * draw() + left + estimate) / (1 + halves)
            variance = halves / (1 + halves)
        self._kept, self._levels = [*self._kept, estimate], [*self._levels, level]
        new = self._kept[-1]
        for gone in before[len(self._kept) - 1 :]:
            new = new - gone
        return new

    def state_dict(self) -> dict[str, list[Tensor] | list[int]]:
        return {"kept": list(self._kept), "levels": list(self._levels)}

    def load_state_dict(self, state: dict[str, list[Tensor] | list[int]]) -> None:
        self._kept, self._levels = list(state["kept"]), list(state["levels"])  # type: ignore[arg-type]


def squared_sensitivities(noise: CorrelatedNoise, participants: Sequence[Sequence[int]], clients: int) -> np.ndarray:
    """(rounds) squared sensitivity of what is encoded up to each round, for changes of norm at most 1.

    The largest over all clients of the squared norm of the encoder's rows, each summed (absolute values) over the
    rounds in which the client takes part; exact for encoders without negative entries, such as these.
    """
    present = np.zeros((len(participants), clients))
    for round_, members in enumerate(participants):
        present[round_, list(members)] = 1
    moved, largest = np.zeros(clients), np.zeros(len(participants))
    for round_ in range(len(participants)):
        moved += ((np.abs(noise.rows(round_)) @ present[: round_ + 1]) ** 2).sum(axis=0)
        largest[round_] = moved.max(initial=0.0)
    return largest
