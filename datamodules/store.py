"""All images of a dataset in one tensor on one device, so that memory does not grow with the number of clients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from app.models.base import DataShape


@dataclass(frozen=True, eq=False)
class ImageStore:
    """Every sample once: first the pool (in dataset order), then the common test set.

    A sample id, everywhere in the application, is the position of the sample in this store.
    """

    # (samples, height, width, channels), uint8 in 0..255 or float32 in 0..1; channels come last so that a gathered
    # batch is a channels_last image batch without a copy
    images: Tensor
    labels: Tensor  # (samples,) int64 classes
    mean: Tensor  # (channels,) float32, subtracted from pixels on the 0..1 scale
    std: Tensor  # (channels,) float32, what they are divided by afterwards
    classes: int  # number of classes
    right_labels: Tensor | None = None  # (samples,) int64, where some of `labels` were made wrong

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> DataShape:
        """Channels, height, width and classes, as a network needs them."""
        _, height, width, channels = self.images.shape
        return DataShape(channels, height, width, self.classes)

    @property
    def black(self) -> Tensor:
        """(channels,) normalised value of a pixel that was 0 in the file: what padding must be filled with."""
        return -self.mean / self.std

    @cached_property
    def _scale(self) -> Tensor:
        """Factor of every value of an image; whole rows multiply several times faster than three channels broadcast."""
        scale = 255.0 if self.images.dtype == torch.uint8 else 1.0
        return (1.0 / (scale * self.std)).repeat(self.images.shape[1] * self.images.shape[2])

    @cached_property
    def _shift(self) -> Tensor:
        """What is added to every value of an image after scaling."""
        return self.black.repeat(self.images.shape[1] * self.images.shape[2])

    @property
    def device(self) -> torch.device:
        return self.images.device

    def to(self, device: torch.device | str) -> ImageStore:
        """The same store on another device (itself where it is there already)."""
        if self.device == torch.device(device):
            return self
        names = ("images", "labels", "mean", "std", *(("right_labels",) if self.right_labels is not None else ()))
        return replace(self, **{name: getattr(self, name).to(device) for name in names})

    def extended(self, images: Tensor, labels: Tensor) -> ImageStore:
        """The same store with further samples (n, height, width, channels) behind its own."""
        right = None if self.right_labels is None else torch.cat([self.right_labels, labels.to(self.device)])
        return replace(
            self,
            images=torch.cat([self.images, images.to(self.device)]),
            labels=torch.cat([self.labels, labels.to(self.device)]),
            right_labels=right,
        )

    @cached_property
    def rightly_labelled(self) -> ImageStore:
        """The same images with their right labels, by which utility is measured; itself where none was made wrong."""
        if self.right_labels is None:
            return self
        return replace(self, labels=self.right_labels, right_labels=None)

    def batch(self, indices: Tensor, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        """Normalised images and labels of the samples `indices`.

        Args:
            indices: int64 sample ids of any shape, such as (batch,) or (clients, batch), on any device.
            dtype: floating type of the images; the normalisation itself runs in float32 or wider.

        Returns:
            Images (*indices.shape, channels, height, width) with channels_last strides, labels of indices.shape.
        """
        chosen = indices.to(self.device).reshape(-1)
        pixels = self.images.index_select(0, chosen).to(torch.promote_types(dtype, torch.float32))
        pixels = pixels.view(len(chosen), self._scale.numel()).mul_(self._scale).add_(self._shift).to(dtype)
        images = pixels.view(*indices.shape, *self.images.shape[1:]).movedim(-1, -3)
        return images, self.labels.index_select(0, chosen).view(indices.shape)
