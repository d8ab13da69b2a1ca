"""MNIST, FashionMNIST, CIFAR-10 and CIFAR-100, read by torchvision."""

from __future__ import annotations

import pickle
from abc import abstractmethod
from http.client import HTTPException
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad as pad_borders
from torchvision import datasets

from app.common.errors import UserError
from app.common.ranges import Whole
from datamodules.base import FederatedDataModule, RawData

UNREADABLE = (RuntimeError, OSError, EOFError, KeyError, ValueError, pickle.UnpicklingError)


class TorchvisionData(FederatedDataModule):
    """A dataset that torchvision can read and download; a subclass names it and says how to open it.

    Args:
        root: folder that holds, or will hold, the files in torchvision's layout.
        download: fetch the files where they are missing.
    """

    title: ClassVar[str]
    mean: ClassVar[tuple[float, ...]]
    std: ClassVar[tuple[float, ...]]

    def __init__(self, root: str = "data", download: bool = False, **shared: Any) -> None:
        super().__init__(**shared)
        self.root = root
        self.download = download

    @abstractmethod
    def open(self, train: bool, download: bool = False) -> Any:
        """Torchvision's dataset object of the training or the test part."""

    def pixels(self, part: Any) -> Tensor:
        """Images of one part as (n, height, width, channels) uint8."""
        return torch.as_tensor(part.data)

    def prepare_data(self) -> None:
        if not self.download:
            return
        try:
            self.open(train=True, download=True)
        except (HTTPException, *UNREADABLE) as error:
            raise UserError.of(
                f"{self.title} could not be downloaded to {self.root}: {' '.join(str(error).split())}",
                "there is no data to train on",
                "check the connection and try again, or copy the files there and set --data.download false",
            ) from error

    def load(self) -> RawData:
        try:
            train, test = self.open(train=True), self.open(train=False)
        except UNREADABLE as error:
            raise self._missing(error) from error
        return RawData(
            images=self.pixels(train),
            labels=torch.as_tensor(train.targets, dtype=torch.int64),
            test_images=self.pixels(test),
            test_labels=torch.as_tensor(test.targets, dtype=torch.int64),
            class_names=tuple(name.split(" - ")[0] for name in train.classes),
            mean=self.mean,
            std=self.std,
        )

    def _missing(self, error: Exception) -> UserError:
        return UserError.of(
            f"no {self.title} in {Path(self.root)} ({' '.join(str(error).split())})",
            "there is no data to train on",
            "set --data.download true, or let --data.root name the folder that holds it",
        )


class MNIST(TorchvisionData):
    """MNIST: 60,000 + 10,000 handwritten digits, 28x28 grey.

    Args:
        pad: black pixels added on each side, at least 0; 2 gives 32x32.
    """

    published: ClassVar[Any] = datasets.MNIST
    title = "MNIST"
    mean = (0.1307,)
    std = (0.3081,)

    def __init__(self, root: str = "data", download: bool = False, pad: Whole = 0, **shared: Any) -> None:
        super().__init__(root, download, **shared)
        self.pad = pad

    def open(self, train: bool, download: bool = False) -> Any:
        return self.published(self.root, train=train, download=download)

    def pixels(self, part: Any) -> Tensor:
        return pad_borders(part.data, (self.pad,) * 4).unsqueeze(-1)


class FashionMNIST(MNIST):
    """FashionMNIST: 60,000 + 10,000 pieces of clothing in ten classes, 28x28 grey."""

    published = datasets.FashionMNIST
    title = "FashionMNIST"
    mean = (0.2860,)
    std = (0.3530,)


def _files_exist(dataset: datasets.CIFAR10) -> bool:
    folder = Path(dataset.root) / dataset.base_folder
    return all((folder / name).is_file() for name, _ in dataset.train_list + dataset.test_list)


def _unverified(published: type[datasets.CIFAR10]) -> type[datasets.CIFAR10]:
    """A reader of files of the user's own making, whose checksums are not the published ones."""
    return type(f"Own{published.__name__}", (published,), {"_check_integrity": _files_exist})


class CIFAR10(TorchvisionData):
    """CIFAR-10: 50,000 + 10,000 photographs in ten classes, 32x32 colour.

    Args:
        verify: compare the files with the published checksums. The files are pickles, which can run code when read:
            switch the check off only for files you made yourself, such as a subset.
    """

    published: ClassVar[Any] = datasets.CIFAR10
    title = "CIFAR-10"
    mean = (0.4914, 0.4822, 0.4465)
    std = (0.2470, 0.2434, 0.2615)

    def __init__(self, root: str = "data", download: bool = False, verify: bool = True, **shared: Any) -> None:
        super().__init__(root, download, **shared)
        self.verify = verify

    def open(self, train: bool, download: bool = False) -> Any:
        source = self.published if self.verify else _unverified(self.published)
        return source(self.root, train=train, download=download)

    def _missing(self, error: Exception) -> UserError:
        folder = Path(self.root) / self.published.base_folder
        if not (self.verify and folder.is_dir()):
            return super()._missing(error)
        return UserError.of(
            f"files in {folder} are missing or differ from the published {self.title}",
            "they are pickles, which can run code when read, so they were not opened",
            "set --data.download true to fetch the published files, or --data.verify false if you made these yourself",
        )


class CIFAR100(CIFAR10):
    """CIFAR-100: 50,000 + 10,000 photographs in a hundred classes, 32x32 colour."""

    published = datasets.CIFAR100
    title = "CIFAR-100"
    mean = (0.5071, 0.4865, 0.4409)
    std = (0.2673, 0.2564, 0.2761)
