"""Which samples shadows are trained on."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.attacks.shadows.splits import PARTS, held_out_part, shared_size, split_in_out, split_out
from app.common.errors import UserError

OWN = np.arange(1000, 1100)
AUDITED = np.arange(40)


def test_out_draws_come_from_the_attackers_data():
    """As many as asked for, the rest of the attacker's data are its non-members."""
    draw = split_out(OWN, 30, seed=1, number=2)
    assert len(draw.members) == 30
    assert np.array_equal(np.union1d(draw.members, draw.nonmembers), OWN)
    assert not np.intersect1d(draw.members, draw.nonmembers).size


def test_too_large_a_draw_leaves_a_part_out():
    """Three quarters at most."""
    draw = split_out(OWN, 10_000, seed=1, number=2)
    assert len(draw.members) == 75
    assert np.array_equal(draw.nonmembers, held_out_part(OWN, 1, 2))


def test_every_sample_is_left_out_by_some_shadow():
    """By exactly one of four shadows in a row where they take all they can."""
    left_out = np.concatenate([split_out(OWN, 10_000, 1, number).nonmembers for number in range(PARTS)])
    assert sorted(left_out) == OWN.tolist()


def test_too_little_data_of_its_own():
    """Refused with the remedy."""
    with pytest.raises(UserError, match=r"--data\.holdout\.shadow"):
        split_out(OWN[:2], 10, 0, 0)


@given(st.integers(2, 41), st.integers(0, 60), st.integers(0, 5))
def test_in_out_pairs(samples, size, seed):
    """What one shadow of a pair leaves out, the other takes; filling comes from the attacker's own data."""
    audited = np.arange(samples)
    first, second = (split_in_out(audited, OWN, size, seed, number) for number in (0, 1))
    assert np.array_equal(np.setdiff1d(first.members, OWN), second.nonmembers)
    assert np.array_equal(np.setdiff1d(second.members, OWN), first.nonmembers)
    assert len(first.members) == max(size, samples // 2)


def test_every_sample_is_in_half_of_the_shadows():
    """Sixteen shadows: eight in, eight out, and no two pairs alike."""
    splits = [split_in_out(AUDITED, OWN, 30, 3, number) for number in range(16)]
    counts = sum(np.isin(AUDITED, draw.members).astype(int) for draw in splits)
    assert set(counts) == {8}
    assert len({draw.members.tobytes() for draw in splits}) == 16


def test_shared_sizes():
    """Close to what was asked for, and equal for neighbours."""
    assert all(abs(shared_size(size) / size - 1) < 0.13 for size in range(4, 5000))
    assert shared_size(75) == shared_size(76)
    assert shared_size(490) != shared_size(17020)
