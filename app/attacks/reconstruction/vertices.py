"""Which of many mixtures are pure: the corners of what the candidates span.

A neuron that fired for several images tells a mixture of them, which lies between the pure ones. So the pure images are
the corners of the set of all candidates, and successive projection finds corners one by one (Araujo et al. 2001): the
longest vector is a corner, and so is the longest of what is left when it is projected out.
"""

from __future__ import annotations

import torch
from torch import Tensor

OFF_SCALE = 0.02
"""A pixel further off its scale than that makes an image a mixture with negative shares."""

QUIET = 1e-3
"""Neurons that moved by less than this share of the loudest ones tell what other clients did."""

NOTHING_LEFT = 1e-9
"""What is left of an image is nothing when its squared length falls below this share."""


def purity(images: Tensor, moved: Tensor, count: int) -> Tensor:
    """(n,) how sure an attacker can be of each candidate: corners come first, in the order in which they are found.

    Args:
        images: (n, channels, height, width) on the pixel scale.
        moved: (n,) size of the move of the neuron behind each.
        count: number of images that the attacked clients have.
    """
    outside = (images.clamp(0, 1) - images).abs().flatten(1)
    confidence = -outside.mean(dim=1)
    if not len(images):
        return confidence
    loudest = moved.sort(descending=True).values[: max(1, len(moved) // 20)].median()
    usable = (outside.amax(dim=1) <= OFF_SCALE) & (moved >= QUIET * loudest)
    for place, corner in enumerate(corners(images.flatten(1)[usable], count).tolist()):
        confidence[torch.nonzero(usable)[corner]] = 1 + 1 / (1 + place)
    return confidence


def corners(points: Tensor, count: int) -> Tensor:
    """Positions of at most so many corners of (n, values) points, by successive projection."""
    left, lengths = points.double().clone(), points.double().square().sum(dim=1)
    chosen: list[int] = []
    while len(chosen) < min(count, len(points)):
        remaining = left.square().sum(dim=1)
        longest = int(remaining.argmax())
        if remaining[longest] <= NOTHING_LEFT * lengths[longest]:
            break
        chosen.append(longest)
        direction = left[longest] / left[longest].norm()
        left = left - (left @ direction)[:, None] * direction
    return torch.tensor(chosen, dtype=torch.long)
