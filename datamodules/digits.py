"""The small digits that come with scikit-learn: no download, seconds per run."""

from __future__ import annotations

import functools
from typing import Any

import torch
from sklearn.datasets import load_digits

from app.common.ranges import Inside
from datamodules.base import FederatedDataModule, RawData
from datamodules.split import common_test_mask


@functools.cache
def _bundle() -> Any:
    """Images and labels, read once: the compressed table takes longer than a round of a small federation."""
    return load_digits()


class Digits(FederatedDataModule):
    """1,797 handwritten digits of 8x8 grey pixels, part of scikit-learn: nothing to download.

    Args:
        test_fraction: share of the images, the same for every seed, that forms the common test set, in (0, 1).
    """

    def __init__(self, test_fraction: Inside = 0.2, **shared: Any) -> None:
        super().__init__(**shared)
        self.test_fraction = test_fraction

    def load(self) -> RawData:
        bundle = _bundle()
        images = torch.tensor(bundle.images / 16, dtype=torch.float32).unsqueeze(-1)
        labels = torch.tensor(bundle.target, dtype=torch.int64)
        test = torch.from_numpy(common_test_mask(labels.numpy(), self.test_fraction))
        names = tuple(str(digit) for digit in range(10))
        return RawData.divided(images, labels, test, class_names=names, mean=(0.3053,), std=(0.3760,))
