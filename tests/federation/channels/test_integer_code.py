"""The code of a round: what fits exactly, what is refused, and what becomes of coordinates that nobody sent."""

import numpy as np
import pytest
import torch

from app.crypto.contributors import Contributors
from app.crypto.fixed_point import FixedPoint
from app.federation.channels.base import Update
from app.federation.channels.integer_code import IntegerCode, WeightCode

THETA = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
INDICES = {0: np.array([0, 1]), 3: np.array([1, 2])}
"""Coordinate 3 belongs to nobody."""


def code(secret=False, largest=5, unit=1.0, outside="refuse"):
    """Eight bits over (-1, 1), two clients that share coordinate 1."""
    weights = WeightCode(unit, dict.fromkeys(INDICES, largest), secret)
    return IntegerCode(Contributors.of(4, INDICES), FixedPoint(8, 1.0), weights, THETA, outside)


def update(client, change, weight=1.0, curvature=0.0, index=None):
    """What a client is about to send."""
    coordinates = torch.from_numpy(INDICES[client] if index is None else index)
    received = THETA[coordinates]
    vector = received + torch.tensor(change, dtype=torch.float64)
    return Update(client, 0, coordinates, vector, received, len(coordinates), 1, 0.1, 0.0, 0.0, weight, curvature)


def sums(coded, *updates):
    """All clients' integers, added up."""
    total = np.zeros(coded.length, dtype=np.int64)
    for one in updates:
        total[coded.positions(one.client)] += coded.encode(one)
    return total


def test_largest_sum_is_reached_and_not_passed():
    """Everybody changes a coordinate by as much as the range holds, with the largest weight."""
    coded = code()
    most = coded._point.largest * coded._point.step
    total = sums(coded, update(0, [most, most], 5.0), update(3, [most, most], 5.0))
    assert total.max() == coded.largest_sum


@pytest.mark.parametrize("weight", [6.0, -1.0])
def test_weights_out_of_bounds_are_refused(weight):
    """One unit above the largest, or negative."""
    assert code().weight(update(0, [0.0, 0.0], 5.0)) == 5
    with pytest.raises(ValueError, match=r"of client 0 is not in 0\.\.5"):
        code().encode(update(0, [0.0, 0.0], weight))


@pytest.mark.parametrize("index", [np.array([0, 2]), np.array([0, 1, 2])])
def test_other_coordinates_than_planned_are_refused(index):
    """As many coordinates, or more of them."""
    with pytest.raises(ValueError, match="client 0 sends other weights than planned"):
        code().encode(update(0, [0.1] * len(index), index=index))


@pytest.mark.parametrize("curvature", [127 * 5 + 1.0, -1.0])
def test_curvature_out_of_bounds_is_refused(curvature):
    """It shares the slots of the values, so it has their bound."""
    assert code(secret=True).encode(update(0, [0.0, 0.0], curvature=127 * 5.0))[-1] == 127 * 5
    with pytest.raises(ValueError, match=r"curvature .* of client 0 is too large"):
        code(secret=True).encode(update(0, [0.0, 0.0], curvature=curvature))


def test_values_and_clipped_values_are_counted():
    """Over all clients of the process; values at the range are cut, values just within it are not."""
    coded = code(outside="clip")
    sums(coded, update(0, [1.0, 0.9]), update(3, [-7.0, 0.0]))
    assert (coded.coded, coded.clipped) == (4, 2)


@pytest.mark.parametrize("secret", [False, True])
def test_means_weights_and_curvature(secret):
    """Coordinate by coordinate; the curvature and the weights come back in their unit."""
    coded = code(secret, unit=0.5)
    total = sums(coded, update(0, [0.5, 0.5], 1.0, 2.0), update(3, [-0.25, 0.5], 0.5, 1.5))
    found = coded.decode(total, {0: 2, 3: 1}, "zero")
    assert found.mean.tolist() == [1.5, 2 + (2 * 0.5 - 0.25) / 3, 3.5, 0.0]
    assert found.weight.tolist() == [1.0, 1.5, 0.5, 0.0]
    assert found.curvature.tolist() == ([2.0, 3.5, 1.5, 0.0] if secret else [0.0] * 4)
    assert found.updates == 2


@pytest.mark.parametrize("uncovered", ["keep", "zero"])
def test_nobody_arrived(uncovered):
    """The model stays, even where coordinates that nobody sends become zero."""
    coded = code()
    found = coded.decode(np.zeros(coded.length, dtype=np.int64), {}, uncovered)
    assert torch.equal(found.mean, THETA)
    assert found.updates == 0


def test_weights_are_whole_numbers_or_rounded():
    """Half a client cannot count where clients count as one; a tiny weight is a unit, not nothing."""
    with pytest.raises(ValueError, match=r"weight 0\.5 is no whole number"):
        code().encode(update(0, [0.0, 0.0], 0.5))
    fine = WeightCode(2.0**-16, {0: 2**16})
    assert [fine.integer(weight) for weight in (1.0, 0.0, 1e-12, 1.6 * 2**-16)] == [2**16, 0, 1, 2]


def test_bounded_influence_is_rounded_inward():
    """No norm of a change grows, and no weight, so that what was clipped stays clipped."""
    weights = WeightCode(2.0**-4, dict.fromkeys(INDICES, 16), inward=True)
    assert weights.integer(0.99) == 15
    coded = IntegerCode(Contributors.of(4, INDICES), FixedPoint(8, 1.0), weights, THETA, "refuse")
    assert coded.encode(update(0, [0.9999 / 128, -1.9999 / 128], 1.0)).tolist() == [0, -16]
