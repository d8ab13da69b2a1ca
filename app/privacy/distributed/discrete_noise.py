"""Integer noise: the discrete Gaussian and Skellam distributions, drawn by inversion of a table.

The discrete Gaussian (Canonne, Kamath and Steinke 2020) has probabilities proportional to exp(-k^2 / (2 v)); Skellam is
the difference of two Poisson numbers with mean v / 2 each, so that its variance is v (Agarwal, Kairouz and Liu 2021).
Both are symmetric around 0, and sums of Skellam numbers are Skellam.

What is approximate: cumulative probabilities are integers over 2^128, made from fixed-point weights of 2^-250, and a
number is found by comparing 128 random bits with them. The distribution of one number therefore differs from the exact
one by at most 2^-100 in total variation (up to 2^24 table entries); a billion numbers by 2^-70, which deltas of 1e-9
and more have room for. No floating-point number is compared or added. The time that a draw takes depends on the table
and hardly on the number (binary search); it is no defense against an adversary who measures it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Literal

import numpy as np

from app.privacy.noise import NoiseStream

DiscreteMechanism = Literal["gaussian", "skellam"]

WIDEST = 2.0**16
"""Largest standard deviation: tables have 36 entries per unit, and are made in a second or two there."""

_BITS = 128
_FIXED = 260
"""Bits behind the point of the weights of the discrete Gaussian."""

_TAIL = 220
"""Weights below 2^-220 of all are left out."""


@dataclass(frozen=True, eq=False)
class NoiseTable:
    """Cumulative probabilities of the integers from `lowest` on, over 2^128."""

    lowest: int
    high: np.ndarray  # (entries) uint64, ascending: upper halves
    low: np.ndarray  # (entries) uint64: lower halves

    @classmethod
    def of(cls, weights: list[int]) -> NoiseTable:
        """The symmetric distribution in which k and -k have the weight `weights[k]`."""
        both = [*reversed(weights[1:]), *weights]
        total, sum_, ends = sum(both), 0, []
        for weight in both[:-1]:  # the last integer gets what is left
            sum_ += weight
            ends.append(min((sum_ << _BITS) // total, (1 << _BITS) - 1))  # weights in fixed point may be 0
        high, low = zip(*(divmod(end, 1 << 64) for end in ends), strict=True) if ends else ((), ())
        return cls(1 - len(weights), np.array(high, dtype=np.uint64), np.array(low, dtype=np.uint64))

    def draw(self, stream: NoiseStream, count: int) -> np.ndarray:
        """(count) int64, independent."""
        words = stream.words(2 * count).numpy().view(np.uint64)
        return self.find(words[:count], words[count:])

    def find(self, high: np.ndarray, low: np.ndarray) -> np.ndarray:
        """Integers (count) of random numbers with upper and lower halves (count) uint64."""
        below = np.searchsorted(self.high, high, side="left")
        for place in np.flatnonzero(np.append(self.high, ~np.uint64(0))[below] == high):  # about once in 2^50 draws
            equal = slice(below[place], np.searchsorted(self.high, high[place], side="right"))
            below[place] += np.searchsorted(self.low[equal], low[place], side="right")
        return below + self.lowest


@lru_cache(maxsize=16)
def noise_table(mechanism: DiscreteMechanism, variance: float) -> NoiseTable:
    """The table of a distribution; the variance parameter is above 0 and at most `WIDEST`^2."""
    if not 0 < variance <= WIDEST**2 * 1.001:
        raise ValueError(f"a variance of {variance} is not in (0, {WIDEST**2:g}]")
    weights = _gaussian_weights if mechanism == "gaussian" else _skellam_weights
    return NoiseTable.of(weights(Fraction(variance), _reach(variance)))


def _reach(variance: float) -> int:
    """A number beyond which both distributions have less than 2^-220, by Chernoff's bound for Skellam."""

    def exponent(k: int) -> float:
        ratio = k / variance
        return variance * (math.sqrt(1 + ratio * ratio) - 1) - k * math.asinh(ratio)

    reach = 8
    while exponent(reach) > -_TAIL * math.log(2):
        reach += max(1, reach // 16)
    return reach


def _gaussian_weights(variance: Fraction, reach: int) -> list[int]:
    """exp(-k^2 / (2 v)) for k = 0..reach in fixed point, each from the one before."""
    context = Context(prec=100)
    step = context.divide(Decimal(-variance.denominator), Decimal(2 * variance.numerator))
    ratio = _fixed(context.exp(step), context)  # of the weights of 1 and 0
    square = _fixed(context.exp(context.multiply(step, Decimal(2))), context)
    weights = [1 << _FIXED]
    for _ in range(reach):
        weights.append(weights[-1] * ratio >> _FIXED)
        ratio = ratio * square >> _FIXED
    return weights


def _fixed(number: Decimal, context: Context) -> int:
    return int(context.multiply(number, Decimal(1 << _FIXED)))


def _skellam_weights(variance: Fraction, reach: int) -> list[int]:
    """Bessel functions I_k(v) for k = 0..reach up to a factor, by Miller's backward recurrence.

    I_(k-1) = I_(k+1) + (2 k / v) I_k, which forgets where it starts.
    """
    weights = [0, 1 << 64]  # of reach + 1 and reach
    for k in range(reach, 0, -1):
        weights.append(weights[-2] + 2 * k * variance.denominator * weights[-1] // variance.numerator)
    return weights[:0:-1]
