import numpy as np
import pytest

from app.common.errors import UserError
from datamodules import Centralised, Iid


def test_iid_shares_differ_by_one_at_most():
    sizes = [len(share) for share in Iid(7).assign(np.zeros(100, dtype=np.int64), None, 3)]
    assert sizes == [15, 15, 14, 14, 14, 14, 14]


def test_iid_shares_look_like_the_pool():
    labels = np.sort(np.arange(10_000) % 10)
    for share in Iid(4).assign(labels, None, 0):
        assert np.abs(np.bincount(labels[share]) - 250).max() < 60


def test_centralised_holds_everything_in_order():
    (share,) = Centralised().assign(np.array([2, 1, 0]), None, 0)
    assert share.tolist() == [0, 1, 2]
    assert Centralised().groups(1) == ["all"]


def test_few_samples_per_client():
    """So many each, nobody twice; the rest is used by nobody."""
    dealt = Iid(3, samples=4).assign(np.arange(100) % 10, None, 0)
    assert [len(share) for share in dealt] == [4, 4, 4]
    assert len(set(np.concatenate(dealt).tolist())) == 12


@pytest.mark.parametrize(("samples", "words"), [(0, "samples is 0"), (40, "3 clients x 40 samples")])
def test_sample_counts_that_cannot_be(samples, words):
    """Too few, or more than there are."""
    with pytest.raises(UserError, match=words):
        Iid(3, samples=samples).assign(np.arange(100) % 10, None, 0)
