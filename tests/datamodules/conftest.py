"""A dataset small enough to check by hand, and the folder with real ones."""

import os
from pathlib import Path

import pytest
import torch

from datamodules import FederatedDataModule, RawData


class Toy(FederatedDataModule):
    """12 samples of each of 4 classes for training, 3 for testing; 6 owners."""

    loads = 0

    def load(self) -> RawData:
        self.loads += 1
        labels, test_labels = torch.arange(4).repeat(12), torch.arange(4).repeat(3)
        images = torch.arange(60 * 2 * 2 * 3).remainder(256).to(torch.uint8).view(60, 2, 2, 3)
        return RawData(
            images[:48],
            labels,
            images[48:],
            test_labels,
            ("cat", "dog", "emu", "fox"),
            (0.5, 0.4, 0.3),
            (0.2, 0.3, 0.4),
            owners=torch.arange(48) // 8,
            owner_names=tuple("uvwxyz"),
        )


@pytest.fixture
def toy() -> type[Toy]:
    return Toy


@pytest.fixture
def real_root() -> Path:
    root = os.environ.get("RAMPART_DATA")
    if not root or not Path(root).is_dir():
        pytest.skip("RAMPART_DATA names no folder with real datasets")
    return Path(root)
