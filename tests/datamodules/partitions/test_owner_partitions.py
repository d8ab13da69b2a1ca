import numpy as np
import pytest

from app.common.errors import UserError
from datamodules import Natural, Staircase

# Owner k has k + 1 samples, and owner numbers have gaps.
OWNERS = np.random.default_rng(0).permutation(np.repeat(10 * np.arange(20), np.arange(1, 21)))
LABELS = np.zeros(len(OWNERS), dtype=np.int64)


def owner_sets(shares: list[np.ndarray]) -> list[set[int]]:
    return [set(OWNERS[share].tolist()) for share in shares]


def test_one_owner_per_client_in_order():
    shares = Natural().assign(LABELS, OWNERS, 3)
    assert owner_sets(shares) == [{10 * owner} for owner in range(20)]
    assert [len(share) for share in shares] == list(range(1, 21))


def test_several_owners_per_client_are_never_split():
    sets = owner_sets(Natural(6).assign(LABELS, OWNERS, 3))
    assert [len(held) for held in sets] == [6, 6, 6, 2]
    assert set.union(*sets) == set((10 * np.arange(20)).tolist())
    assert sum(map(len, sets)) == 20


def test_a_list_says_how_many_owners_each_client_has():
    sets = owner_sets(Natural([1, 5, 2]).assign(LABELS, OWNERS, 3))
    assert [len(held) for held in sets] == [1, 5, 2]


def test_small_owners_are_left_out():
    assert owner_sets(Natural(min_samples=18).assign(LABELS, OWNERS, 0)) == [{170}, {180}, {190}]


def test_the_staircase_of_the_paper_puts_the_rest_first():
    owners = np.repeat(np.arange(167), 3)
    shares = Staircase().assign(np.zeros(501, dtype=np.int64), owners, 0)
    held = [np.unique(owners[share]) for share in shares]
    assert [len(group) for group in held] == [32, 27, 24, 21, 18, 15, 12, 9, 6, 3]
    order = np.random.default_rng(0).permutation(167)
    assert set(held[-1]) == set(order[:3])
    assert set(held[0]) == set(order[-32:])


def test_data_without_owners_get_a_remedy():
    for partition in (Natural(), Staircase()):
        with pytest.raises(UserError, match=r"does not say who owns what(.|\n)*FEMNIST or ImageFolder"):
            partition.assign(LABELS, None, 0)


def test_too_few_owners():
    with pytest.raises(UserError, match=r"21 owners asked for, 20 have"):
        Natural([20, 1]).assign(LABELS, OWNERS, 0)
    with pytest.raises(UserError, match=r"136 owners asked for, 20 have(.|\n)*--data.partition.step"):
        Staircase().assign(LABELS, OWNERS, 0)
    with pytest.raises(UserError, match=r"1 owners asked for, 0 have at least 99"):
        Natural(min_samples=99).assign(LABELS, OWNERS, 0)


@pytest.mark.parametrize("owners", [0, [], [2, 0]])
def test_clients_without_owners_are_refused(owners):
    with pytest.raises(UserError, match=r"partition\.owners_per_client"):
        Natural(owners).assign(LABELS, OWNERS, 0)


def test_a_flat_staircase_is_refused():
    with pytest.raises(UserError, match=r"partition\.step is 0"):
        Staircase(3, 0).assign(LABELS, OWNERS, 0)
