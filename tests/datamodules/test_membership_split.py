import math

import numpy as np
import pytest

from app.common.errors import UserError
from datamodules import Centralised, DirichletSizes, Holdout, Iid, Membership, Natural, split_pool

LABELS = np.arange(1000) % 10


def everything(membership: Membership) -> np.ndarray:
    parts = [*membership.members, *membership.nonmembers, membership.shadow, membership.population, membership.test]
    return np.concatenate(parts)


def test_sets_are_disjoint_and_lose_nothing():
    membership = split_pool(LABELS, None, 50, Iid(7), Holdout(0.25, 0.2, 0.1), seed=4)
    assert sorted(everything(membership)) == list(range(1050))
    assert membership.test.tolist() == list(range(1000, 1050))
    membership.check_disjoint()


def test_shadow_and_population_hold_their_share_of_each_class():
    membership = split_pool(LABELS, None, 0, Iid(7), Holdout(0.25, 0.2, 0.1), seed=4)
    assert np.bincount(LABELS[membership.shadow]).tolist() == [20] * 10
    assert np.bincount(LABELS[membership.population]).tolist() == [10] * 10


def test_members_and_nonmembers_of_a_client_have_one_distribution():
    membership = split_pool(LABELS, None, 0, DirichletSizes(5, alpha=5.0), Holdout(0.25), seed=1)
    for members, nonmembers in zip(membership.members, membership.nonmembers, strict=True):
        inside, outside = (np.bincount(LABELS[ids], minlength=10) for ids in (members, nonmembers))
        for own, held in zip(inside + outside, outside, strict=True):
            assert held in (math.floor(0.25 * own), math.ceil(0.25 * own))


def test_nothing_but_the_coin_decides_who_is_a_member():
    runs = [split_pool(LABELS, None, 0, Iid(4), Holdout(0.5, 0, 0), seed).members for seed in range(200)]
    rates = np.zeros(1000)
    for members in runs:
        rates[np.concatenate(members)] += 1 / 200
    # 1000 coins of 200 throws each: standard deviation 0.035, and no trend along the dataset.
    assert abs(rates.std() - 0.5 / math.sqrt(200)) < 0.008
    assert abs(np.corrcoef(rates, np.arange(1000))[0, 1]) < 0.1


def test_the_setting_of_the_papers_trains_on_everything():
    membership = split_pool(LABELS, None, 5, Iid(3), Holdout(0, 0, 0), seed=0)
    assert sorted(np.concatenate(membership.members)) == list(range(1000))
    assert all(len(held) == 0 for held in (*membership.nonmembers, membership.shadow, membership.population))


def test_the_seed_decides():
    first, again, other = (everything(split_pool(LABELS, None, 0, Iid(3), Holdout(), seed)) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_owners_follow_their_samples():
    owners = np.repeat(np.arange(10), 100)
    membership = split_pool(LABELS, owners, 0, Natural(), Holdout(), seed=0)
    for client in range(10):
        ids = np.concatenate([membership.members[client], membership.nonmembers[client]])
        assert set(owners[ids]) == {client}


def test_a_client_without_members_is_refused_by_name():
    owners = np.array([0] * 20 + [1])
    with pytest.raises(UserError, match=r"client 1 \(of its 1 sample\)(.|\n)*--data.holdout.clients"):
        split_pool(np.zeros(21, dtype=np.int64), owners, 0, Natural(), Holdout(0.9, 0, 0), seed=0)


def test_bad_fractions_and_partitions_are_reported_at_once():
    with pytest.raises(UserError) as error:
        split_pool(LABELS, None, 0, Iid(0), Holdout(1.0, -0.1, float("nan")), seed=0)
    text = str(error.value)
    for name in ("holdout.clients is 1.0", "holdout.shadow is -0.1", "holdout.population is nan", "clients is 0"):
        assert name in text


def test_fractions_that_take_the_whole_pool():
    with pytest.raises(UserError, match="take the whole pool"):
        split_pool(LABELS, None, 0, Centralised(), Holdout(0, 0.5, 0.5), seed=0)


def test_an_overlap_is_noticed():
    ids = np.arange(3)
    with pytest.raises(AssertionError, match="more than one set"):
        Membership((ids,), (ids[2:],), ids[:0], ids[:0], ids[:0]).check_disjoint()
