"""Reference sets: a part of each client's share that is in no training set and in no audit."""

import math

import numpy as np
import pytest

from app.common.errors import UserError
from datamodules import DirichletSizes, Holdout, Iid, Membership, Natural, split_pool

LABELS = np.arange(1000) % 10
HOLDOUT = Holdout(0.25, 0.2, 0.1, reference=0.1)


def everything(membership):
    """All sets but the reference sets, one after the other."""
    return [*membership.members, *membership.nonmembers, membership.shadow, membership.population, membership.test]


def test_without_a_reference_set_nothing_changes():
    """The default is 0, and gives the very sets that there were before."""
    plain = split_pool(LABELS, None, 50, Iid(7), Holdout(0.25, 0.2, 0.1), seed=4)
    zero = split_pool(LABELS, None, 50, Iid(7), Holdout(0.25, 0.2, 0.1, reference=0.0), seed=4)
    assert plain.reference == zero.reference == ()
    assert all(np.array_equal(one, other) for one, other in zip(everything(plain), everything(zero), strict=True))


def test_reference_samples_come_out_of_the_members_alone():
    """Non-members, shadow and population data are drawn as without a reference set."""
    plain = split_pool(LABELS, None, 50, Iid(7), Holdout(0.25, 0.2, 0.1), seed=4)
    kept = split_pool(LABELS, None, 50, Iid(7), HOLDOUT, seed=4)
    for one, other in zip(everything(plain)[7:], everything(kept)[7:], strict=True):
        assert np.array_equal(one, other)
    for client in range(7):
        both = np.sort(np.concatenate([kept.members[client], kept.reference[client]]))
        assert np.array_equal(both, plain.members[client])
        assert len(kept.reference[client]) > 0
    assert sorted(np.concatenate([*everything(kept), *kept.reference])) == list(range(1050))


def test_the_fraction_is_one_of_the_whole_share():
    """A tenth of the share, not of what the non-members leave; every class its part of what they leave."""
    kept = split_pool(LABELS, None, 0, DirichletSizes(5, alpha=5.0), HOLDOUT, seed=1)
    for client in range(5):
        share = len(kept.members[client]) + len(kept.nonmembers[client]) + len(kept.reference[client])
        assert abs(len(kept.reference[client]) - 0.1 * share) <= 1.5
        rest, own = (np.bincount(LABELS[ids], minlength=10) for ids in (kept.members[client], kept.reference[client]))
        for left, held in zip(rest + own, own, strict=True):
            assert held in (math.floor(left * 0.1 / 0.75), math.ceil(left * 0.1 / 0.75))


def test_the_draw_has_a_key_of_its_own():
    """The seed decides, clients draw apart, and it is not the draw of the non-members again."""
    same = Holdout(0.5, 0, 0, reference=0.25)  # half of what is left, as the non-members were half of all
    first, again, other = (split_pool(LABELS[:400] * 0, None, 0, Iid(2), same, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(*pair) for pair in zip(first.reference, again.reference, strict=True))
    assert not np.array_equal(first.reference[0], other.reference[0])
    ranks = [np.searchsorted(np.sort(np.r_[first.members[c], first.reference[c]]), first.reference[c]) for c in (0, 1)]
    assert not np.array_equal(*ranks)


def test_indices_of_a_data_module(toy):
    """The client's reference set, and an empty one where there is none."""
    plain, kept = toy(Iid(3)), toy(Iid(3), holdout=HOLDOUT)
    plain.setup()
    kept.setup()
    assert plain.reference_indices(1).tolist() == []
    for client in range(3):
        assert kept.reference_indices(client).tolist() == kept.membership.reference[client].tolist()
        assert not set(kept.reference_indices(client).tolist()) & set(kept.train_indices(client).tolist())
    assert kept.sizes == [len(own) for own in kept.membership.members]


def test_an_overlap_with_a_reference_set_is_noticed():
    """With any other set."""
    ids, none = np.arange(3), np.arange(0)
    Membership((ids[:1],), (ids[1:2],), none, none, none, (ids[2:],)).check_disjoint()
    with pytest.raises(AssertionError, match="more than one set"):
        Membership((ids[:1],), (ids[1:],), none, none, none, (ids[2:],)).check_disjoint()


def test_fractions_that_leave_nothing():
    """Out of range, or the whole share together with the non-members."""
    with pytest.raises(UserError, match=r"holdout.reference is 1.0"):
        split_pool(LABELS, None, 0, Iid(2), Holdout(0, 0, 0, reference=1.0), seed=0)
    with pytest.raises(UserError, match=r"clients 0.6 and holdout.reference 0.4(.|\n)*lower --data.holdout.clients"):
        split_pool(LABELS, None, 0, Iid(2), Holdout(0.6, 0, 0, reference=0.4), seed=0)


def test_a_client_without_members_counts_what_it_keeps():
    """Three samples, all of them non-members or reference samples."""
    owners = np.array([0] * 40 + [1] * 3)
    with pytest.raises(UserError, match=r"client 1 \(of its 3 samples\)(.|\n)*--data.holdout.reference"):
        split_pool(np.zeros(43, dtype=np.int64), owners, 0, Natural(), Holdout(0.5, 0, 0, reference=0.49), seed=0)


def test_who_lacks_reference_samples_is_reported():
    """None at all, or too few of some clients."""
    ids, none = np.arange(10), np.arange(0)
    plain = Membership((ids, ids), (none, none), none, none, none)
    [problem] = plain.reference_problems()
    assert "--data.holdout.reference 0.1" in problem.remedy
    kept = Membership((ids, ids), (none, none), none, none, none, (ids[:3], ids[:1]))
    assert kept.reference_problems() == []
    [problem] = kept.reference_problems(least=2)
    assert "client 1 (it has 1)" in problem.cause
