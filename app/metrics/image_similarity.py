"""How alike images are: Pearson correlation, peak signal-to-noise ratio, structural similarity.

Images are on the pixel scale, where 0 is black and 1 is white.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics.functional.image import structural_similarity_index_measure

HIGHEST_PSNR = 200.0
"""dB that equal images are given in place of infinity; the opposite number bounds the other end."""

CHUNK = 512
"""Images that are held as float64 at once."""


def standardised(images: Tensor) -> Tensor:
    """Images as rows of float64 with mean 0 and length 1; a constant image gives zeros."""
    rows = images.flatten(1).double()
    # divided by its largest value, a constant image is exactly 1 everywhere, whatever its grey
    rows = rows / rows.abs().amax(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
    rows = rows - rows.mean(dim=1, keepdim=True)
    length = rows.norm(dim=1, keepdim=True)
    return torch.where(length > 1e-12, rows / length, 0.0)


def pearson_matrix(truth: Tensor, candidates: Tensor) -> Tensor:
    """(n, m) float64 Pearson correlations, -1 to 1, over all pixels and channels; 0 where an image is constant.

    Args:
        truth: (n, ...) finite values.
        candidates: (m, ...) finite values.
    """
    rows = standardised(truth)
    return torch.cat([rows @ standardised(part).T for part in candidates.split(CHUNK)], dim=1).clamp(-1, 1)


def psnr(truth: Tensor, found: Tensor) -> Tensor:
    """(n,) float64 peak signal-to-noise ratio in dB of image by image, data range 1, within ±HIGHEST_PSNR.

    Args:
        truth: (n, ...) finite values.
        found: (n, ...) finite values.
    """
    return _decibels((truth.double() - found.double()).flatten(1).square().mean(dim=1))


def psnr_matrix(truth: Tensor, candidates: Tensor) -> Tensor:
    """(n, m) float64 peak signal-to-noise ratio in dB, data range 1, within ±HIGHEST_PSNR.

    Args:
        truth: (n, ...) finite values.
        candidates: (m, ...) finite values.
    """
    rows = truth.flatten(1).double()
    exact = "donot_use_mm_for_euclid_dist"  # differences first: products would lose all beyond some 150 dB
    parts = (part.flatten(1).double() for part in candidates.split(CHUNK))
    distances = torch.cat([torch.cdist(rows, part, compute_mode=exact) for part in parts], dim=1)
    return _decibels(distances.square() / rows.shape[1])


def ssim(truth: Tensor, found: Tensor) -> Tensor:
    """(n,) float64 structural similarity of image by image, -1 to 1, data range 1.

    The Gaussian window has 11 pixels and a standard deviation of 1.5, both scaled down for small images: it has the
    largest odd number of pixels up to two thirds of the shorter side, which is 5 for 8 x 8 digits.

    Args:
        truth: (n, channels, height, width), within 0 to 1.
        found: the same shape, within 0 to 1.
    """
    if not len(truth):
        return truth.new_zeros(0, dtype=torch.float64)
    window = min(11, max(1, (2 * min(truth.shape[-2:]) // 3 - 1) // 2 * 2 + 1))
    alike = structural_similarity_index_measure(
        found.double(), truth.double(), sigma=1.5 * window / 11, data_range=1.0, reduction="none"
    )
    assert isinstance(alike, Tensor)
    return alike.reshape(len(truth))


def _decibels(squared_error: Tensor) -> Tensor:
    return (-10 * squared_error.log10()).clamp(-HIGHEST_PSNR, HIGHEST_PSNR)
