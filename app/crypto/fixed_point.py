"""Fixed-point integers: their sums are exact, whether encrypted, masked or plain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

Outside = Literal["refuse", "clip"]
"""What becomes of values that the range does not hold."""


class OutsideRangeError(ValueError):
    """Values that fixed point cannot represent.

    Attributes:
        positions: (n) int64, where they are.
        largest: the largest absolute value among them; NaN where one is not a number.
    """

    def __init__(self, positions: np.ndarray, largest: float) -> None:
        self.positions, self.largest = positions, largest
        super().__init__(f"{len(positions)} values outside the range, the largest {largest:g}")


@dataclass(frozen=True)
class FixedPoint:
    """Signed fixed point.

    Attributes:
        bits: of one value with its sign, in [2, 32].
        range: values must lie within (-range, range), above 0.
    """

    bits: int
    range: float

    @property
    def step(self) -> float:
        """Distance of neighbouring values; rounding moves a value by at most half of it."""
        return self.range / 2 ** (self.bits - 1)

    @property
    def largest(self) -> int:
        return 2 ** (self.bits - 1) - 1

    def quantise(self, values: np.ndarray, outside: Outside = "refuse", inward: bool = False) -> np.ndarray:
        """Nearest multiples of `step` as int64; ties go to the even one.

        Args:
            values: real numbers.
            outside: what becomes of those that the range does not hold.
            inward: round towards 0 instead, by less than a step, so that no norm of the values grows.

        Raises:
            OutsideRangeError: where values lie outside the range and are not to be clipped, or are not finite.
        """
        scaled = np.divide(values, self.step, dtype=np.float64)
        (np.trunc if inward else np.rint)(scaled, out=scaled)
        if not (-self.largest <= scaled.min(initial=0) and scaled.max(initial=0) <= self.largest):  # or not a number
            wrong = ~(np.abs(scaled) <= self.largest) if outside == "refuse" else ~np.isfinite(scaled)
            if wrong.any():
                positions = np.flatnonzero(wrong)
                raise OutsideRangeError(positions, float(np.abs(values[positions]).max()))
            np.clip(scaled, -self.largest, self.largest, out=scaled)
        return scaled.astype(np.int64)

    def restore(self, integers: np.ndarray) -> np.ndarray:
        """Integers, or sums of them, as real numbers (float64)."""
        return integers * self.step
