import numpy as np
import pytest

from app.common.errors import UserError
from datamodules import DirichletLabels, DirichletSizes
from datamodules.partitions.dirichlet_sizes import rounded_counts

PUBLISHED = [17020, 7400, 7040, 6310, 4060, 3110, 1660, 1650, 1260, 490]


def test_sizes_published_for_cifar10_with_seed_41():
    labels = np.tile(np.arange(10), 5000)
    shares = DirichletSizes(10, 0.85, seed=41).assign(labels, None, 0)
    assert [len(share) for share in shares] == PUBLISHED
    for share, size in zip(shares, PUBLISHED, strict=True):
        assert np.bincount(labels[share]).tolist() == [size // 10] * 10


def test_another_shuffle_seed_keeps_the_sizes_and_changes_the_samples():
    labels = np.tile(np.arange(10), 500)
    one, two = (DirichletSizes(seed=41, shuffle_seed=shuffle).assign(labels, None, 0) for shuffle in (None, 7))
    assert [len(share) for share in one] == [len(share) for share in two]
    assert not np.array_equal(one[0], two[0])


def test_the_seed_of_the_run_deals_anew_and_keeps_the_sizes():
    labels = np.tile(np.arange(10), 500)
    split = DirichletSizes(seed=41, shuffle_seed="run")
    shares = {seed: split.assign(labels, None, seed) for seed in (0, 7)}
    assert [len(share) for share in shares[0]] == [len(share) for share in shares[7]]
    assert not np.array_equal(shares[0][0], shares[7][0])
    for dealt, expected in zip(shares[7], DirichletSizes(seed=41, shuffle_seed=7).assign(labels, None, 0), strict=True):
        assert np.array_equal(dealt, expected)


def test_the_same_places_of_every_class_go_to_a_client():
    labels = np.repeat(np.arange(3), 100)
    share = DirichletSizes(4, seed=2).assign(labels, None, 0)[1]
    places = [set(share[labels[share] == label] - 100 * label) for label in range(3)]
    assert places[0] == places[1] == places[2]


@pytest.mark.parametrize(
    ("shares", "total", "counts"),
    [
        ([0.5, 0.3, 0.2], 10, [5, 3, 2]),
        ([0.34, 0.33, 0.33], 10, [3, 3, 4]),
        ([0.36, 0.36, 0.28], 10, [3, 4, 3]),
        ([0.28, 0.18, 0.18, 0.18, 0.18], 3, [0, 0, 1, 1, 1]),
    ],
)
def test_remainders_go_to_the_smallest_and_excess_leaves_the_largest(shares, total, counts):
    assert rounded_counts(np.array(shares), total).tolist() == counts


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("kind", [DirichletSizes, DirichletLabels])
def test_alpha_must_be_positive_and_finite(kind, alpha):
    with pytest.raises(UserError, match=r"partition.alpha is (.|\n)*--data.partition.alpha"):
        kind(alpha=alpha).assign(np.zeros(1000, dtype=np.int64), None, 0)


def test_label_skew_grows_as_alpha_falls():
    labels = np.arange(5000) % 10

    def skew(alpha):
        shares = DirichletLabels(10, alpha, min_samples=1).assign(labels, None, 0)
        return np.mean([np.bincount(labels[share], minlength=10).max() / len(share) for share in shares])

    assert skew(1000.0) < 0.13
    assert skew(0.1) > 0.4


def test_every_client_has_its_minimum():
    shares = DirichletLabels(20, 0.3, min_samples=15).assign(np.arange(5000) % 10, None, 1)
    assert min(len(share) for share in shares) >= 15


def test_a_minimum_beyond_the_pool_is_refused_before_any_draw():
    partition = DirichletLabels(10, min_samples=11, attempts=10**9)
    with pytest.raises(
        UserError, match=r"110 in all, the pool has 100(.|\n)*none was tried(.|\n)*clients to 9 or less"
    ):
        partition.assign(np.arange(100) % 10, None, 0)


def test_an_unlucky_setting_says_how_close_it_came():
    with pytest.raises(UserError, match=r"30 draws with alpha 0.001 (.|\n)*smallest client \d+(.|\n)*alpha"):
        DirichletLabels(10, 0.001, min_samples=10, attempts=30).assign(np.arange(1000) % 10, None, 0)


def test_all_bad_settings_at_once():
    with pytest.raises(UserError) as error:
        DirichletLabels(0, 0, 0, 0, -1).assign(np.zeros(9, dtype=np.int64), None, 0)
    assert len(error.value.problems) == 5
    with pytest.raises(UserError) as error:
        DirichletSizes(0, 0, -1, -1).assign(np.zeros(9, dtype=np.int64), None, 0)
    assert len(error.value.problems) == 4
