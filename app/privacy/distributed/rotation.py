"""Real vectors as integers of bounded norm: clipping, rotation and stochastic rounding (Kairouz, Liu and Steinke 2021).

A vector is scaled down to a Euclidean norm, rotated so that no coordinate stands out, and rounded to integers at random
and without bias; the rounding is drawn anew until the norm of the integers keeps to a bound that holds for every
vector. The bound, and with it privacy, depends neither on the rotation nor on the accuracy of floating point.
"""

from __future__ import annotations

import math

import numpy as np

from app.privacy.noise import NoiseStream

RETRY = math.exp(-0.5)
"""Bound on the probability that a rounding is drawn anew (beta of the paper, which uses this value)."""

_ATTEMPTS = 200
"""After so many, a vector counts as zero: 200 failures have a probability below 1e-43."""

_FLOAT = 1e-9
"""Relative error of a sum of squares in double precision, generously: integers keep to the bound in spite of it."""


def clipped(values: np.ndarray, norm: float) -> np.ndarray:
    """Values (float64) scaled down to a Euclidean norm of at most `norm`; all zeros where one is not finite.

    Squares do not overflow, whatever the values.
    """
    largest = float(np.abs(values).max(initial=0))
    if not math.isfinite(largest):
        return np.zeros(values.shape)
    if largest == 0:
        return values.astype(np.float64)
    unit = values / largest
    length = float(np.linalg.norm(unit))
    return values * 1.0 if largest * length <= norm else unit * (norm / length)


def padded_size(size: int) -> int:
    """The power of 2 that a rotation of `size` coordinates, 1 or more, needs."""
    return 1 << (size - 1).bit_length()


def signs(key: bytes, size: int) -> np.ndarray:
    """(size) float64, 1 and -1, from a public key of 32 bytes."""
    words = NoiseStream(key).words(-(-size // 64)).numpy().view(np.uint8)
    return 1.0 - 2.0 * np.unpackbits(words, count=size)


def rotated(values: np.ndarray, flips: np.ndarray) -> np.ndarray:
    """Values with random signs under the Walsh-Hadamard transform, padded to the length of `flips`; norms stay."""
    padded = np.zeros(len(flips))
    padded[: len(values)] = values
    return _hadamard(padded * flips)


def unrotated(values: np.ndarray, flips: np.ndarray, size: int) -> np.ndarray:
    """The first `size` values before they were rotated."""
    return (_hadamard(values.astype(np.float64)) * flips)[:size]


def _hadamard(values: np.ndarray) -> np.ndarray:
    """The orthonormal Walsh-Hadamard transform, its own inverse; the length is a power of 2."""
    length, half = len(values), 1
    while half < length:
        pairs = values.reshape(-1, 2, half)
        values = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).reshape(-1)
        half *= 2
    return values / math.sqrt(length)


def rounded_norm(norm: float, size: int) -> float:
    """Norm that stochastic rounding keeps to with a probability of 1 - `RETRY` (theorem 1 of the paper).

    Args:
        norm: of real vectors.
        size: number of coordinates.
    """
    surely = norm + math.sqrt(size)
    slack = math.sqrt(-2 * math.log(RETRY)) * (norm + math.sqrt(size) / 2)
    return min(surely, math.sqrt(norm**2 + size / 4 + slack))


def rounded(values: np.ndarray, norm: float, stream: NoiseStream) -> np.ndarray:
    """Integers (int64) beside real values, right on average, whose Euclidean norm is at most `norm`."""
    floor = np.floor(values)
    share = values - floor
    for _ in range(_ATTEMPTS):
        integers = floor + (stream.uniform(len(values)).numpy() <= share)
        if float(np.dot(integers, integers)) * (1 + _FLOAT) <= norm**2:
            return integers.astype(np.int64)
    return np.zeros(len(values), dtype=np.int64)
