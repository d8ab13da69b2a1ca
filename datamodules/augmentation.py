"""Random crop and horizontal flip of a whole batch at once, on the device of the batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from app.common.described import Described
from app.common.ranges import Whole


@dataclass(frozen=True, eq=False)
class Crops:
    """Random draws for each image: (count,) window offsets in pixels and whether it is mirrored, on the CPU."""

    tops: Tensor
    lefts: Tensor
    flips: Tensor


class CropFlip(Described):
    """Random crop of the image padded with black, then a horizontal flip for every second image on average.

    The augmentation of MaPP-FL and its follow-up on CIFAR: padding 4 and flip. Switch the flip off for digits and
    letters, whose mirror image is another sign or none.

    Args:
        padding: black pixels added on each side before cropping back to the original size, at least 0.
        flip: mirror each image with probability 0.5.
    """

    def __init__(self, padding: Whole = 4, flip: bool = True) -> None:
        self.padding = padding
        self.flip = flip

    def draw(self, count: int, generator: torch.Generator) -> Crops:
        """Windows and flips for `count` images, from a CPU generator, so that they are the same on every device."""
        offsets = torch.randint(0, 2 * self.padding + 1, (2, count), generator=generator)
        coins = torch.rand(count, generator=generator) < 0.5
        return Crops(offsets[0], offsets[1], coins if self.flip else torch.zeros_like(coins))

    def apply(self, images: Tensor, crops: Crops, fill: Tensor) -> Tensor:
        """Cropped and mirrored copies.

        Args:
            images: (..., channels, height, width); leading dimensions count as one batch.
            crops: one window per image of the flattened batch.
            fill: (channels,) value of the padding. The papers pad the picture before it is normalised, so on
                normalised images this is `ImageStore.black`, not 0.

        Returns:
            Tensor of the same shape and memory layout.
        """
        pixels = images.flatten(0, -4).permute(0, 2, 3, 1)
        count, height, width, _ = pixels.shape
        edge = self.padding
        padded = fill.to(pixels).repeat(count, height + 2 * edge, width + 2 * edge, 1)
        padded[:, edge : edge + height, edge : edge + width] = pixels
        positions = _positions(crops, height, width, edge).to(images.device)
        cropped = padded.view(-1, pixels.shape[3]).index_select(0, positions).view(pixels.shape).permute(0, 3, 1, 2)
        if not pixels.is_contiguous():
            cropped = cropped.contiguous()
        return cropped.unflatten(0, images.shape[:-3])

    def __call__(self, images: Tensor, generator: torch.Generator, fill: Tensor) -> Tensor:
        return self.apply(images, self.draw(images[..., 0, 0, 0].numel(), generator), fill)


def _positions(crops: Crops, height: int, width: int, padding: int) -> Tensor:
    """Flat pixel position, in the padded batch, of every pixel of the result."""
    across = torch.arange(width)
    columns = torch.where(crops.flips[:, None], width - 1 - across, across) + crops.lefts[:, None]
    rows = torch.arange(height) + crops.tops[:, None]
    padded_height, padded_width = height + 2 * padding, width + 2 * padding
    images = torch.arange(len(crops.tops))[:, None, None] * (padded_height * padded_width)
    return (images + rows[:, :, None] * padded_width + columns[:, None, :]).reshape(-1)
