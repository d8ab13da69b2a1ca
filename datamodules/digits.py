"""The small digits that come with scikit-learn: no download, seconds per run."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits

from app.errors import Problem
from app.seeding import numpy_generator
from datamodules.base import FederatedDataModule, RawData
from datamodules.sampling import stratified_mask


class Digits(FederatedDataModule):
    """1,797 handwritten digits of 8x8 grey pixels, part of scikit-learn: nothing to download.

    Args:
        test_fraction: share of the images, the same for every seed, that forms the common test set, in (0, 1).
        shared: settings of every data module.
    """

    def __init__(self, test_fraction: float = 0.2, **shared: Any) -> None:
        super().__init__(**shared)
        self.test_fraction = test_fraction

    def problems(self) -> list[Problem]:
        """Settings of the base, and the test fraction."""
        return super().problems() + fraction_problems(self.test_fraction)

    def load(self) -> RawData:
        """Grey values 0..16 on the 0..1 scale."""
        bundle = load_digits()
        images = torch.tensor(bundle.images / 16, dtype=torch.float32).unsqueeze(-1)
        labels = torch.tensor(bundle.target, dtype=torch.int64)
        test = torch.from_numpy(common_test_mask(labels.numpy(), self.test_fraction))
        names = tuple(str(digit) for digit in range(10))
        return RawData.divided(images, labels, test, class_names=names, mean=(0.3053,), std=(0.3760,))


def common_test_mask(labels: np.ndarray, fraction: float) -> np.ndarray:
    """Samples of the common test set, stratified by class and independent of the run, so that runs compare."""
    return stratified_mask(labels, fraction, numpy_generator(0, "common test"))


def fraction_problems(fraction: float) -> list[Problem]:
    """Complaint about a test fraction out of range."""
    if 0 < fraction < 1:
        return []
    remedy = "set --data.test_fraction above 0 and below 1"
    return [Problem(f"test_fraction is {fraction}", "training or test set would be empty", remedy)]
