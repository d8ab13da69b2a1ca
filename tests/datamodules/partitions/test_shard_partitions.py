import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.common.errors import UserError
from datamodules import Digits, Holdout, Multimodal, Shards

BALANCED = np.tile(np.arange(10), 600)


def class_counts(labels: np.ndarray, share: np.ndarray) -> list[int]:
    return sorted(np.unique(labels[share], return_counts=True)[1].tolist())


@pytest.mark.parametrize("classes", [1, 2, 3, 4, 10])
def test_every_client_has_equal_shards_of_exactly_z_classes(classes):
    shares = Shards(60, classes).assign(BALANCED, None, 0)
    size = 6000 // (60 * classes)
    assert all(class_counts(BALANCED, share) == [size] * classes for share in shares)
    assert sum(map(len, shares)) == 60 * classes * size


def test_classes_that_are_owned_and_not_trained_on():
    """Five clients with two digits each: every digit has one owner, who trains on samples of one of the two."""
    data = Digits(partition=Shards(5, 1, 10, unused_classes=1), holdout=Holdout(0.0, 0.0, 0.0))
    data.setup("fit")
    owned = np.stack([data.owned_classes(client).numpy() for client in range(5)])
    assert owned.sum(axis=0).tolist() == [1] * 10
    for client in range(5):
        trained = data.store.labels[data.train_indices(client)].unique().tolist()
        assert len(data.train_indices(client)) == 10
        assert len(trained) == 1
        assert owned[client].sum() == 2
        assert owned[client, trained[0]]


def test_unused_classes_need_shards_too():
    """More classes than there are, owned or trained on, and fewer than none are refused."""
    with pytest.raises(UserError, match="11 different classes"):
        Shards(5, 1, 10, unused_classes=10).assign(BALANCED, None, 0)
    with pytest.raises(UserError, match="unused_classes"):
        Shards(5, 1, 10, unused_classes=-1).assign(BALANCED, None, 0)


def test_pairs_of_classes_are_mixed():
    shares = Shards(100, 2).assign(BALANCED, None, 0)
    assert len({tuple(np.unique(BALANCED[share])) for share in shares}) > 25


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    counts=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    clients=st.integers(1, 8),
    classes=st.integers(1, 6),
    seed=st.integers(0, 9),
)
def test_uneven_classes_never_lead_into_a_dead_end(counts, clients, classes, seed):
    labels = np.repeat(np.arange(len(counts)), counts)
    # The largest shard size for which enough shards exist, each class serving a client at most once.
    fits = [s for s in range(1, 41) if sum(min(c // s, clients) for c in counts) >= clients * classes]
    if not fits:
        with pytest.raises(UserError):
            Shards(clients, classes).assign(labels, None, seed)
        return
    shares = Shards(clients, classes).assign(labels, None, seed)
    assert all(class_counts(labels, share) == [max(fits)] * classes for share in shares)


def test_a_shard_size_can_be_given_and_refused():
    assert {len(share) for share in Shards(10, 2, shard_size=7).assign(BALANCED, None, 0)} == {14}
    with pytest.raises(UserError, match=r"shards of 301 samples(.|\n)*at most 300 per shard(.|\n)*shard_size"):
        Shards(10, 2, shard_size=301).assign(BALANCED, None, 0)


def test_more_classes_than_exist():
    with pytest.raises(UserError, match=r"11 different classes(.|\n)*data have 10(.|\n)*classes_per_client to 10"):
        Shards(10, 11).assign(BALANCED, None, 0)


def test_bad_shard_settings_at_once():
    with pytest.raises(UserError) as error:
        Shards(0, 0, 0).assign(BALANCED, None, 0)
    assert len(error.value.problems) == 3


@pytest.mark.parametrize("classes", [2, 3, 4])
@pytest.mark.parametrize(
    ("majority", "minority_classes"),
    [(100, None), (90, [0, 5, 6, 7, 9]), (90, [0, 1, 8, 9])],
    ids=["mnist", "fashion", "cifar"],
)
def test_modes_of_waffle_share_no_class_and_have_equal_shards(classes, majority, minority_classes):
    partition = Multimodal(majority, 20, minority_classes, classes)
    shares = partition.assign(BALANCED, None, 0)
    groups = partition.groups(len(shares))
    assert groups == ["majority"] * majority + ["minority"] * 20
    minority = set([0, 2, 4, 6, 8] if minority_classes is None else minority_classes)
    majority_data = 600 * (10 - len(minority))
    assert len({tuple(class_counts(BALANCED, share)) for share in shares}) == 1
    for group, share in zip(groups, shares, strict=True):
        held = set(BALANCED[share].tolist())
        assert len(held) == classes
        assert held <= minority if group == "minority" else held.isdisjoint(minority)
    assert len(shares[0]) * majority <= majority_data
    assert len(shares[0]) >= 0.9 * min(majority_data / majority, 600)


def test_minority_classes_must_exist():
    with pytest.raises(UserError, match=r"minority_classes has 10, 12, not in the data"):
        Multimodal(minority_classes=[1, 10, 12]).assign(BALANCED, None, 0)


def test_each_mode_needs_enough_classes():
    with pytest.raises(UserError, match=r"minority clients, but the data have 1"):
        Multimodal(10, 5, [3], 2).assign(BALANCED, None, 0)
    with pytest.raises(UserError, match=r"majority clients, but the data have 0"):
        Multimodal(10, 5, list(range(10)), 2).assign(BALANCED, None, 0)


def test_empty_groups_are_refused():
    with pytest.raises(UserError, match=r"majority_clients is 0(.|\n)*minority_clients is -2"):
        Multimodal(0, -2).assign(BALANCED, None, 0)
