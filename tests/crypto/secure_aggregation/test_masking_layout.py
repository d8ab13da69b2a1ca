"""Who holds which positions of the sum, and which of them two clients have in common."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from masking_kit import NARROW

from app.crypto.secure_aggregation import layout as layout_module
from app.crypto.secure_aggregation.layout import VectorLayout

SUBMODELS = st.lists(st.sets(st.integers(0, 14)).map(sorted), min_size=2, max_size=4)


def layout_of(*submodels, length=15, threshold=1):
    """One client per submodel."""
    return VectorLayout(length, NARROW, {u: np.array(s, dtype=np.int64) for u, s in enumerate(submodels)}, threshold)


def check_overlaps(layout):
    """All pairs against numpy's own intersection, and the sum's positions against the layout's."""
    for u, mine in layout.positions.items():
        assert np.arange(layout.length)[layout.place(u)].tolist() == mine.tolist()
        for v, others in layout.positions.items():
            assert mine[layout.overlap(u, v)].tolist() == np.intersect1d(mine, others).tolist()


@given(SUBMODELS)
def test_overlap_is_what_both_hold(submodels):
    """For all pairs, each way round, asked once and again."""
    layout = layout_of(*submodels)
    check_overlaps(layout)
    check_overlaps(layout)


def test_overlap_without_room_is_the_same(monkeypatch):
    """Nothing is kept, everything is worked out again."""
    monkeypatch.setattr(layout_module, "_ROOM", 0)
    layout = layout_of([0, 2, 5], [2, 4, 5], [5, 9], [0, 2, 7, 9])
    check_overlaps(layout)
    check_overlaps(layout)


def test_same_submodels_are_worked_out_once(monkeypatch):
    """100 clients with three arrays have three pairs of arrays, two sides each."""
    worked_out = []
    original = VectorLayout._common
    monkeypatch.setattr(VectorLayout, "_common", lambda *given: worked_out.append(1) or original(*given))
    arrays = [np.array([0, 2, 5]), np.array([2, 4, 5]), np.array([1, 2, 9])]
    layout = VectorLayout(15, NARROW, {client: arrays[client % 3] for client in range(100)}, 1)
    for u in range(100):
        for v in range(u):
            layout.overlap(u, v)
    assert len(worked_out) == 6


def test_neighbouring_positions_are_slices():
    """Slices are cheap: the same submodel, one inside the other, and none in common."""
    layout = layout_of(range(15), range(3, 8), [0, 14], [])
    assert layout.overlap(0, 0) == slice(0, 15)
    assert layout.overlap(0, 1) == slice(3, 8)
    assert layout.overlap(1, 0) == slice(0, 5)
    assert layout.overlap(1, 2) == layout.overlap(2, 1) == slice(0, 0)
    assert layout.overlap(0, 3) == layout.overlap(3, 0) == slice(0, 0)


def test_points_follow_the_order_of_clients():
    """1, 2, ... whatever order the clients come in."""
    everything = np.arange(3)
    assert VectorLayout(3, NARROW, dict.fromkeys([8, 2, 5], everything), 2).points == {2: 1, 5: 2, 8: 3}


@pytest.mark.parametrize("submodel", [[-1, 2], [3, 15], [4, 4], [5, 3]])
def test_impossible_positions_are_refused(submodel):
    """Outside the sum, twice, or out of order."""
    with pytest.raises(ValueError, match="strictly ascending"):
        layout_of([0, 1], submodel)


def test_positions_of_another_type_are_refused():
    """Positions are int64 everywhere."""
    with pytest.raises(ValueError, match="int64"):
        VectorLayout(3, NARROW, {0: np.arange(3, dtype=np.int32)}, 1)


@pytest.mark.parametrize("threshold", [0, 3])
def test_impossible_thresholds_are_refused(threshold):
    """Nobody, or more than there are."""
    with pytest.raises(ValueError, match=f"threshold of {threshold} for 2 clients"):
        layout_of([0], [1], threshold=threshold)


def test_layout_travels_between_processes():
    """Arrays that were shared are shared again, and what was kept is left behind."""
    shared = np.array([1, 4, 6])
    layout = VectorLayout(15, NARROW, {0: shared, 1: np.array([1, 2, 6]), 2: shared}, 2)
    layout.overlap(0, 1)
    copy = pickle.loads(pickle.dumps(layout))
    assert (copy.length, copy.word, copy.threshold, copy.points) == (15, NARROW, 2, layout.points)
    assert copy.positions[0] is copy.positions[2]
    check_overlaps(copy)
