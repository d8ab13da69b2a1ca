"""Exactly so many coordinates are given up, the ones that moved least, ties by position."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from callbacks.defenses.memdefense import least_moved, smallest


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=40), st.data())
def test_smallest_is_a_stable_sort(values, data):
    """The mask holds the first `count` positions of a stable sort, whatever ties there are."""
    count = data.draw(st.integers(0, len(values)))
    order = sorted(range(len(values)), key=lambda place: (values[place], place))
    expected = [place in order[:count] for place in range(len(values))]
    assert smallest(torch.tensor(values, dtype=torch.float32), count).tolist() == expected


@pytest.mark.parametrize(("fraction", "given_up"), [(0.0, 0), (0.29, 2), (0.3, 3), (0.7, 7), (0.999, 9), (1.0, 10)])
def test_fraction_is_rounded_down(fraction, given_up):
    """floor(gamma n), without losing a coordinate to the rounding of 0.7 * 10."""
    change = torch.arange(10.0) * torch.tensor([1.0, -1.0]).repeat(5)
    mask = least_moved(change, fraction, [10])
    assert mask.tolist() == [place < given_up for place in range(10)]


def test_each_part_gives_up_its_own_share():
    """A part that moves little as a whole is not given up as a whole."""
    change = torch.cat([torch.tensor([0.1, 0.4, 0.2, 0.3]), torch.tensor([40.0, 10.0, 30.0, 20.0])])
    assert least_moved(change, 0.5, [4, 4]).tolist() == [True, False, True, False, False, True, False, True]
    assert least_moved(change, 0.5, [8]).tolist() == [True] * 4 + [False] * 4
    assert least_moved(change, 0.5, [0, 8, 0]).tolist() == [True] * 4 + [False] * 4


def test_coordinates_that_did_not_move_count_once_each():
    """Silent units do not move at all: a bare threshold would give up all of them."""
    change = torch.zeros(100)
    change[::10] = 1.0
    mask = least_moved(change, 0.5, [100])
    assert int(mask.sum()) == 50
    assert not mask[::10].any()
