"""The published datasets, where RAMPART_DATA names a folder that holds them in torchvision's layout."""

import numpy as np
import pytest
import torch

from app.models.base import DataShape
from datamodules import CIFAR10, FEMNIST, MNIST, DirichletSizes, FashionMNIST, Holdout, Multimodal, Natural, Staircase

pytestmark = pytest.mark.real_data
PAPER = Holdout(0, 0, 0)


@pytest.fixture
def femnist(real_root):
    path = real_root / "femnist.npz"
    if not path.is_file():
        pytest.skip("no femnist.npz in RAMPART_DATA")
    return str(path)


def need(folder):
    if not folder.is_dir():
        pytest.skip(f"no {folder.name} in RAMPART_DATA")


def test_cifar10_has_the_published_sizes_and_statistics(real_root):
    need(real_root / "cifar-10-batches-py")
    data = CIFAR10(str(real_root), partition=DirichletSizes(seed=41), holdout=PAPER)
    data.setup()
    assert data.sizes == [17020, 7400, 7040, 6310, 4060, 3110, 1660, 1650, 1260, 490]
    assert data.shape == DataShape(3, 32, 32, 10)
    assert len(data.common_test) == 10_000
    images, _ = data.store.batch(torch.arange(0, 50_000, 5))
    assert images.mean((0, 2, 3)).abs().max() < 0.02
    assert (images.std((0, 2, 3)) - 1).abs().max() < 0.02


@pytest.mark.parametrize("kind", [MNIST, FashionMNIST])
def test_grey_sets_are_normalised(kind, real_root):
    need(real_root / kind.__name__)
    data = kind(str(real_root), partition=Multimodal(90, 20))
    data.setup()
    images, _ = data.store.batch(torch.arange(0, 60_000, 7))
    assert abs(images.mean()) < 0.02
    assert abs(images.std() - 1) < 0.02
    assert data.clients == 110
    assert set(np.count_nonzero(data.client_class_table(), axis=1)) == {2}


def test_femnist_clients_share_no_writer(femnist):
    data = FEMNIST(femnist, partition=Natural(), holdout=PAPER)
    data.setup()
    with np.load(femnist) as file:
        writers = file["writers"][file["split"] == 0]
    owners = [set(writers[own]) for own in data.membership.members]
    assert all(len(held) == 1 for held in owners)
    assert len(set.union(*owners)) == len(owners) == len(np.unique(writers))
    assert sum(data.sizes) == 41_258
    assert len(data.common_test) == 4_700


def test_femnist_staircase_keeps_writers_whole(femnist):
    data = FEMNIST(femnist)
    data.setup()
    assert isinstance(data.partition, Staircase)
    with np.load(femnist) as file:
        writers = file["writers"][file["split"] == 0]
    pairs = zip(data.membership.members, data.membership.nonmembers, strict=True)
    held = [set(writers[np.concatenate(pair)]) for pair in pairs]
    assert sum(map(len, held)) == len(set.union(*held))
    assert [len(group) for group in held][1:] == [27, 24, 21, 18, 15, 12, 9, 6, 3]
    assert np.argmax(data.sizes) == 0
