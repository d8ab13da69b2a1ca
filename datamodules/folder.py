"""A user's own images: a folder per client, or a table that says whose each image is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from app.errors import Problem, raise_all
from datamodules.base import FederatedDataModule, RawData
from datamodules.digits import common_test_mask, fraction_problems
from datamodules.listing import ImageEntry, list_folder, list_table
from datamodules.partitions import Natural, Partition
from datamodules.partitions.base import first_few

MANY_IMAGES = 2000


class ImageFolder(FederatedDataModule):
    """Your own images: root/<client>/<class>/<image>, or a csv table with the columns path, label and client.

    Images are scaled to one square size and kept in memory as bytes. Unless told otherwise, each client of the folder
    or table is a client of the federation.

    Args:
        root: folder with one folder per client, in it one per class; not used with a table.
        table: csv file with the columns path (relative to the file), label, client; None reads `root`.
        image_size: height and width in pixels that images are scaled to, at least 1.
        grayscale: one grey channel instead of three colours.
        test_fraction: share of the images, the same for every seed, that forms the common test set, in (0, 1).
        shared: settings of every data module.
    """

    def __init__(
        self,
        root: str = "data/images",
        table: str | None = None,
        image_size: int = 32,
        grayscale: bool = False,
        test_fraction: float = 0.2,
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        self.root = root
        self.table = table
        self.image_size = image_size
        self.grayscale = grayscale
        self.test_fraction = test_fraction

    def usual_partition(self) -> Partition:
        """One client per client of the folder or table."""
        return Natural()

    def problems(self) -> list[Problem]:
        """Settings of the base, and the image size and test fraction."""
        found = super().problems() + fraction_problems(self.test_fraction)
        if self.image_size < 1:
            remedy = "set --data.image_size to 1 or more"
            found.append(Problem(f"image_size is {self.image_size}", "images would vanish", remedy))
        return found

    def load(self) -> RawData:
        """Read every image; the common test set is drawn from all of them, class by class."""
        entries, problems = list_folder(Path(self.root)) if self.table is None else list_table(Path(self.table))
        images, unreadable = read_images(entries, self.image_size, self.grayscale)
        raise_all(problems + unreadable)
        class_names, labels = _numbered([entry.label for entry in entries])
        owner_names, owners = _numbered([entry.client for entry in entries])
        test = torch.from_numpy(common_test_mask(labels.numpy(), self.test_fraction))
        mean, std = channel_statistics(images[~test])
        return RawData.divided(
            images, labels, test, owners, class_names=class_names, mean=mean, std=std, owner_names=owner_names
        )


def read_images(entries: Sequence[ImageEntry], size: int, grayscale: bool) -> tuple[Tensor, list[Problem]]:
    """(n, size, size, channels) uint8 images, and a complaint about the files that are no images."""
    images = torch.zeros(len(entries), size, size, 1 if grayscale else 3, dtype=torch.uint8)
    broken = []
    for place, entry in enumerate(tqdm(entries, "reading images", disable=len(entries) <= MANY_IMAGES)):
        try:
            with Image.open(entry.path) as picture:
                scaled = picture.convert("L" if grayscale else "RGB").resize((size, size), Image.Resampling.BILINEAR)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
            broken.append(str(entry.path))
            continue
        images[place] = torch.from_numpy(np.array(scaled)).view(images.shape[1:])
    if not broken:
        return images, []
    cause = f"{len(broken)} unreadable image{'s' * (len(broken) > 1)}: {first_few(broken)}"
    return images, [Problem(cause, "the clients would lack them", "replace or remove these files")]


def channel_statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel of uint8 images, on the 0..1 scale; 1 where a channel is constant."""
    values = torch.arange(256, dtype=torch.float64) / 255
    means, stds = [], []
    for channel in images.unbind(-1):
        weights = torch.bincount(channel.flatten(), minlength=256).double()
        weights /= weights.sum()
        mean = (weights * values).sum()
        means.append(float(mean))
        stds.append(float((weights * (values - mean) ** 2).sum().sqrt()) or 1.0)
    return tuple(means), tuple(stds)


def _numbered(names: Sequence[str]) -> tuple[tuple[str, ...], Tensor]:
    """The different names, whole numbers in the order of their value, and the place of each name among them."""
    different = sorted(set(names), key=lambda name: (0, int(name), name) if name.isdecimal() else (1, 0, name))
    place = {name: number for number, name in enumerate(different)}
    return tuple(different), torch.tensor([place[name] for name in names], dtype=torch.int64)
