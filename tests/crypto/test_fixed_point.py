"""Fixed point: rounding by at most half a step, exact sums, nothing outside the range unnoticed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.crypto.fixed_point import FixedPoint, OutsideRangeError


@given(
    bits=st.integers(2, 32),
    exponent=st.integers(-6, 6),
    shares=st.lists(st.floats(-0.49, 0.49), min_size=1, max_size=20),
)
def test_values_come_back_within_half_a_step(bits, exponent, shares):
    """For every precision and range, as long as values are a step away from the ends."""
    point = FixedPoint(bits, 2.0**exponent)
    values = np.array(shares) * point.range
    integers = point.quantise(values)
    assert integers.dtype == np.int64
    assert np.abs(integers).max() <= point.largest
    assert np.abs(point.restore(integers) - values).max() <= point.step / 2


def test_step_and_largest_value():
    """20 bits over (-2, 2): a step of 2^-18, and the largest value one step below 2."""
    point = FixedPoint(20, 2.0)
    assert point.step == 2.0**-18
    assert point.largest * point.step == 2.0 - point.step
    assert point.quantise(np.array([2.0 - point.step, -2.0 + point.step])).tolist() == [2**19 - 1, 1 - 2**19]


def test_ties_go_to_the_even_integer():
    """So that rounding has no drift."""
    point = FixedPoint(8, 128.0)
    assert point.quantise(np.array([0.5, 1.5, 2.5, -0.5, -1.5])).tolist() == [0, 2, 2, 0, -2]


def test_sums_of_integers_are_sums_of_values():
    """A hundred rounded values add up exactly, in any order."""
    point = FixedPoint(16, 1.0)
    values = np.random.default_rng(1).uniform(-0.9, 0.9, (100, 7))
    integers = point.quantise(values)
    assert (point.restore(integers.sum(0)) == point.restore(integers)[::-1].sum(0)).all()


@pytest.mark.parametrize("value", [2.0, -2.0, 1e30, np.inf, -np.inf, np.nan])
def test_values_outside_are_refused(value):
    """With their places."""
    with pytest.raises(OutsideRangeError) as error:
        FixedPoint(20, 2.0).quantise(np.array([0.1, value, 0.2, value]))
    assert error.value.positions.tolist() == [1, 3]
    assert error.value.largest == pytest.approx(abs(value), nan_ok=True)


def test_values_outside_may_be_clipped_but_not_invented():
    """To the nearest end; what is not a number has none."""
    point = FixedPoint(20, 2.0)
    assert point.quantise(np.array([5.0, -1e9, 0.0]), "clip").tolist() == [point.largest, -point.largest, 0]
    with pytest.raises(OutsideRangeError):
        point.quantise(np.array([0.0, np.nan]), "clip")
