"""What must hold of every partition, whatever its settings."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.common.errors import UserError
from datamodules import (
    Centralised,
    DirichletLabels,
    DirichletSizes,
    Iid,
    Multimodal,
    Natural,
    Partition,
    Shards,
    Staircase,
)

PARTITIONS = [
    Iid(3),
    Centralised(),
    DirichletSizes(3),
    DirichletLabels(3, min_samples=2),
    Shards(3, 2),
    Multimodal(3, 2, [0, 1], classes_per_client=1),
    Natural(),
    Natural(2),
    Natural([2, 1]),
    Staircase(2, 1),
]
KEEPS_ALL = (Iid, Centralised, DirichletSizes, DirichletLabels, Staircase)


@pytest.mark.parametrize("partition", PARTITIONS, ids=lambda partition: type(partition).__name__)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(labels=st.lists(st.integers(0, 3), max_size=80), seed=st.integers(0, 2**40))
def test_shares_are_sorted_disjoint_complete_and_repeatable_or_refused(partition: Partition, labels, seed):
    labels = np.array(labels, dtype=np.int64)
    owners = np.arange(len(labels)) // 5
    refusal = None
    try:
        shares = partition.assign(labels, owners, seed)
    except UserError as error:
        refusal = error
    if refusal is not None:
        assert all(problem.cause and problem.consequence and problem.remedy for problem in refusal.problems)
        return
    dealt = np.concatenate(shares)
    assert len(np.unique(dealt)) == len(dealt)
    assert set(dealt) <= set(range(len(labels)))
    assert all(len(share) and np.all(np.diff(share) > 0) for share in shares)
    assert partition.clients in (None, len(shares))
    assert len(partition.groups(len(shares))) == len(shares)
    if isinstance(partition, KEEPS_ALL):
        assert len(dealt) == len(labels)
    again = partition.assign(labels, owners, seed)
    assert all(np.array_equal(one, two) for one, two in zip(shares, again, strict=True))


@pytest.mark.parametrize(
    "make",
    [
        lambda seed: Iid(4, seed=seed),
        lambda seed: DirichletSizes(4, seed=seed),
        lambda seed: DirichletLabels(4, seed=seed),
        lambda seed: Shards(4, seed=seed),
        lambda seed: Multimodal(4, 2, seed=seed),
        lambda seed: Natural(4, seed=seed),
        lambda seed: Staircase(4, seed=seed),
    ],
)
def test_own_seed_beats_the_seed_of_the_run(make):
    labels, owners = np.arange(400) % 10, np.arange(400) // 8
    own = [make(5).assign(labels, owners, run_seed) for run_seed in (1, 2)]
    run = [make(None).assign(labels, owners, run_seed) for run_seed in (5, 6)]

    def same(one, two):
        return len(one) == len(two) and all(map(np.array_equal, one, two))

    assert same(own[0], own[1])
    assert same(own[0], run[0])
    assert not same(run[0], run[1])


@pytest.mark.parametrize("clients", [-1, 0, 101, 10**15])
@pytest.mark.parametrize("kind", [Iid, DirichletSizes, DirichletLabels, Shards, Staircase])
def test_impossible_numbers_of_clients_are_refused_without_trying(kind, clients):
    with pytest.raises(UserError, match="client"):
        kind(clients=clients).assign(np.arange(100) % 10, np.arange(100), 0)


@pytest.mark.parametrize("kind", [Iid, DirichletSizes, DirichletLabels, Shards, Multimodal, Natural, Staircase])
def test_negative_seeds_are_refused(kind):
    with pytest.raises(UserError, match=r"partition\.seed is -1"):
        kind(seed=-1).assign(np.arange(4000) % 10, np.arange(4000) // 10, 0)


def test_clients_left_empty_are_named():
    class Forgetful(Partition):
        def deal(self, labels, owners, seed):
            return [np.arange(3), *[np.arange(0)] * 7]

    with pytest.raises(UserError, match="no samples for client 1, 2, 3, 4, 5 and 2 more"):
        Forgetful(8).assign(np.zeros(9, dtype=np.int64), None, 0)
