"""Real vectors as integers: norms that hold for every vector, rotations that can be undone, rounding without bias."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.linalg import hadamard

from app.privacy.distributed.rotation import (
    RETRY,
    clipped,
    padded_size,
    rotated,
    rounded,
    rounded_norm,
    signs,
    unrotated,
)
from app.privacy.noise import NoiseStream

KEY = bytes(32)
ANYTHING = st.floats(allow_nan=True, allow_infinity=True, width=64)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    arrays(np.float64, st.integers(1, 40), elements=ANYTHING),
    st.floats(1e-6, 1e6),
    st.floats(1e-3, 1e4),
    st.binary(min_size=32, max_size=32),
)
def test_no_vector_exceeds_the_norm(values, clip, units, key):
    """Not a number, infinite or huge: `units` is the clipping norm on the grid."""
    flips = signs(key, padded_size(len(values)))
    short = clipped(values, clip)
    assert np.isfinite(short).all()
    assert np.linalg.norm(short) <= clip * (1 + 1e-12)
    norm = rounded_norm(units, len(flips))
    integers = rounded(rotated(short, flips) * (units / clip), norm, NoiseStream(key))
    assert sum(int(one) ** 2 for one in integers) <= norm**2


def test_short_vectors_stay_and_long_ones_keep_their_direction():
    """Subnormal ones, too."""
    values = np.array([3.0, -4.0])
    assert np.array_equal(clipped(values, 5.0), values)
    np.testing.assert_allclose(clipped(values, 1.0), [0.6, -0.8])
    np.testing.assert_allclose(clipped(values * 1e300, 1.0), [0.6, -0.8])
    assert np.array_equal(clipped(values * 1e-320, 1.0), values * 1e-320)
    assert not clipped(np.array([1.0, np.nan]), 1.0).any()


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_the_rotation_is_the_walsh_hadamard_transform_with_random_signs(size):
    """SciPy's matrix; sums of rotated vectors are rotations of sums."""
    values, length = np.random.default_rng(0).normal(size=size), padded_size(size)
    flips = signs(KEY, length)
    assert length >= size
    assert (length & (length - 1)) == 0
    expected = hadamard(length) @ (np.pad(values, (0, length - size)) * flips) / math.sqrt(length)
    np.testing.assert_allclose(rotated(values, flips), expected, atol=1e-12)
    np.testing.assert_allclose(unrotated(rotated(values, flips), flips, size), values, atol=1e-12)


def test_signs_are_fair_and_come_from_the_key():
    """Half of them, and others for another key."""
    many = signs(KEY, 10_000)
    assert set(many) == {-1.0, 1.0}
    assert abs(many.mean()) < 0.04
    assert not np.array_equal(many, signs(bytes([1]) * 32, 10_000))


def test_no_coordinate_stands_out_after_a_rotation():
    """A single large value is spread over all coordinates."""
    values = np.zeros(4096)
    values[17] = 1.0
    assert np.abs(rotated(values, signs(KEY, 4096))).max() == pytest.approx(1 / 64)


def test_rounding_is_right_on_average_and_seldom_repeated():
    """Mean over many draws; the bound is exceeded less often than `RETRY`."""
    values = np.random.default_rng(1).normal(size=200)
    norm = rounded_norm(float(np.linalg.norm(values)), 200)
    stream = NoiseStream(KEY)
    draws = np.stack([rounded(values, norm, stream) for _ in range(4000)])
    share = values - np.floor(values)
    assert np.abs((draws.mean(0) - values) / np.sqrt(share * (1 - share) / 4000 + 1e-12)).max() < 5
    free = np.floor(values) + (np.random.default_rng(2).random((4000, 200)) < share)
    assert (np.linalg.norm(free, axis=1) > norm).mean() < RETRY


def test_a_bound_that_cannot_be_met_gives_zeros():
    """Instead of a vector that is too long."""
    assert not rounded(np.full(10, 5.0), 1.0, NoiseStream(KEY)).any()
