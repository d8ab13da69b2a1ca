"""Images that an attack offers, and those that were trained on; all on the pixel scale: 0 is black, 1 is white."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from datamodules.store import ImageStore


@dataclass(frozen=True, eq=False)
class Candidates:
    """What an attacker takes for training images, in any order. Nothing here may depend on the truth.

    Attributes:
        images: (candidates, channels, height, width) float, finite, on the pixel scale but not cut to it.
        confidence: (candidates,) float, how sure the attacker is of each, the higher the surer.
    """

    images: Tensor
    confidence: Tensor

    def __post_init__(self) -> None:
        assert self.images.dim() == 4
        assert len(self.images) == len(self.confidence)
        assert bool(torch.isfinite(self.images).all())
        assert not bool(torch.isnan(self.confidence).any())

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True, eq=False)
class Truth:
    """What the attacked clients trained on, known to the evaluator alone; every image has its owner and its number.

    Attributes:
        images: (n, channels, height, width) float, on the pixel scale, n at least 1.
        labels: (n,) int64 classes.
        clients: (n,) int64, who trained on it.
        samples: (n,) int64 sample ids; a pair of client and sample occurs once.
    """

    images: Tensor
    labels: Tensor
    clients: Tensor
    samples: Tensor

    def __post_init__(self) -> None:
        assert len(self.images) == len(self.labels) == len(self.clients) == len(self.samples) > 0
        keys = set(zip(self.clients.tolist(), self.samples.tolist(), strict=True))
        assert len(keys) == len(self), "an image is in the truth twice"

    def __len__(self) -> int:
        return len(self.images)


def to_pixels(store: ImageStore, images: Tensor) -> Tensor:
    """Normalised images (..., channels, height, width), as networks see them, on the pixel scale."""
    mean, std = (value.to(images).view(-1, 1, 1) for value in (store.mean, store.std))
    return images * std + mean


def to_inputs(store: ImageStore, images: Tensor) -> Tensor:
    """Images (..., channels, height, width) on the pixel scale as networks see them."""
    mean, std = (value.to(images).view(-1, 1, 1) for value in (store.mean, store.std))
    return (images - mean) / std


def pixel_bounds(store: ImageStore) -> tuple[Tensor, Tensor]:
    """(channels,) values of a black and of a white pixel, as networks see them."""
    return store.black, (1 - store.mean) / store.std
