"""Wrong labels: as many as asked for, everywhere in the pool, nowhere in the test set."""

import numpy as np
import pytest
import torch

from app.common.errors import UserError
from datamodules import Digits, Holdout, Iid
from datamodules.split import wrong_labels


def digits(noise, seed=0):
    """Digits with wrong labels."""
    data = Digits(partition=Iid(3), holdout=Holdout(0.5, 0.2, 0.1), seed=seed, label_noise=noise)
    data.setup()
    return data


def test_share_of_wrong_labels():
    """Exactly the share, never the true class, every wrong class about equally often."""
    labels = torch.full((9000,), 4)
    wrong = wrong_labels(labels, 0.5, 10, seed=1)
    assert int((wrong != labels).sum()) == 4500
    counts = torch.bincount(wrong, minlength=10)
    assert counts[4] == 4500
    assert counts[counts != 4500].float().std() < 60


def test_all_sets_alike_but_the_test_set():
    """Members, non-members, shadow and population data have the same share; the common test set has none."""
    clean, noisy = digits(0.0), digits(0.3)
    changed = (clean.store.labels != noisy.store.labels).numpy()
    sets = noisy.membership
    for part in (np.concatenate(sets.members), np.concatenate(sets.nonmembers), sets.shadow, sets.population):
        assert abs(changed[part].mean() - 0.3) < 0.1
    assert not changed[sets.test].any()
    assert changed[: -len(sets.test)].mean() == pytest.approx(0.3, abs=0.001)


def test_right_labels_are_kept():
    """Of every sample, under the same images; nothing is kept where no label is wrong."""
    clean, noisy = digits(0.0), digits(0.3)
    assert torch.equal(noisy.store.rightly_labelled.labels, clean.store.labels)
    assert noisy.store.rightly_labelled.images is noisy.store.images
    assert clean.store.rightly_labelled is clean.store
    assert noisy.store.to("meta").right_labels.device.type == "meta"


def test_seeded():
    """The same seed, the same labels; another seed, others."""
    assert torch.equal(digits(0.3).store.labels, digits(0.3).store.labels)
    assert not torch.equal(digits(0.3).store.labels, digits(0.3, seed=1).store.labels)


@pytest.mark.parametrize("noise", [-0.1, 1.0])
def test_no_share_of_the_data(noise):
    """Refused with the remedy."""
    with pytest.raises(UserError, match=r"--data\.label_noise"):
        digits(noise)
