"""Which coordinates of an update moved least."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def smallest(values: Tensor, count: int) -> Tensor:
    """Mask (bool) of exactly `count` smallest values; among equal ones the first by position.

    Args:
        values: (n,) finite numbers.
        count: how many, 0 to n.
    """
    if count <= 0:
        return torch.zeros_like(values, dtype=torch.bool)
    threshold = torch.kthvalue(values, count).values
    mask = values < threshold
    # coordinates of silent units do not move at all, so ties are common and a bare threshold would take too many
    tied = torch.nonzero(values == threshold).flatten()
    mask[tied[: count - int(mask.sum())]] = True
    return mask


def least_moved(change: Tensor, fraction: float, parts: Sequence[int]) -> Tensor:
    """Mask (bool) of the given fraction of coordinates with the smallest absolute change, part by part.

    Args:
        change: (n,) values after training minus values before.
        fraction: of the coordinates of each part, 0 to 1, rounded down.
        parts: lengths of consecutive parts; they add up to n.
    """
    pieces = change.abs().split(list(parts))
    # a fraction such as 0.7 of 10 coordinates is 6.999... in floating point, and means 7
    counts = [math.floor(round(fraction * piece.numel(), 6)) for piece in pieces]
    return torch.cat([smallest(piece, count) for piece, count in zip(pieces, counts, strict=True)])
