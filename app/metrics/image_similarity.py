"""Similarity of images: Pearson correlation, peak signal-to-noise ratio (PSNR), structural similarity (SSIM).

Images are on the pixel scale, where 0 is black and 1 is white.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics.functional.image import structural_similarity_index_measure

HIGHEST_PSNR = 200.0
"""PSNR in dB of equal images, in place of infinity; values are clipped to ± this."""

CHUNK = 512
"""Images converted to float64 at a time."""


def standardised(images: Tensor) -> Tensor:
    """Images as float64 rows with mean 0 and norm 1; zeros for a constant image."""
    rows = images.flatten(1).double()
    # dividing by the largest value first makes a constant image exactly 1, so that its mean is exact
    rows = rows / rows.abs().amax(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
    rows = rows - rows.mean(dim=1, keepdim=True)
    length = rows.norm(dim=1, keepdim=True)
    return torch.where(length > 1e-12, rows / length, 0.0)


def pearson_matrix(truth: Tensor, candidates: Tensor) -> Tensor:
    """(n, m) Pearson correlations, -1 to 1, of n true images and m candidates; 0 where an image is constant."""
    rows = standardised(truth)
    return torch.cat([rows @ standardised(part).T for part in candidates.split(CHUNK)], dim=1).clamp(-1, 1)


def psnr(truth: Tensor, reconstructions: Tensor) -> Tensor:
    """(n,) peak signal-to-noise ratio in dB of n pairs of images, data range 1, within ±HIGHEST_PSNR."""
    return _decibels((truth.double() - reconstructions.double()).flatten(1).square().mean(dim=1))


def psnr_matrix(truth: Tensor, candidates: Tensor) -> Tensor:
    """(n, m) peak signal-to-noise ratio in dB of n true images and m candidates, data range 1, within ±HIGHEST_PSNR."""
    rows = truth.flatten(1).double()
    exact = "donot_use_mm_for_euclid_dist"  # the matrix product would lose all precision beyond about 150 dB
    parts = (part.flatten(1).double() for part in candidates.split(CHUNK))
    distances = torch.cat([torch.cdist(rows, part, compute_mode=exact) for part in parts], dim=1)
    return _decibels(distances.square() / rows.shape[1])


def ssim(truth: Tensor, reconstructions: Tensor) -> Tensor:
    """(n,) structural similarity, -1 to 1, of n pairs of images within 0..1.

    The Gaussian window has 11 pixels and a standard deviation of 1.5, both scaled down for small images: it has the
    largest odd number of pixels up to two thirds of the shorter side, which is 5 for 8 x 8 digits.
    """
    if not len(truth):
        return truth.new_zeros(0, dtype=torch.float64)
    window = min(11, max(1, (2 * min(truth.shape[-2:]) // 3 - 1) // 2 * 2 + 1))
    similarity = structural_similarity_index_measure(
        reconstructions.double(), truth.double(), sigma=1.5 * window / 11, data_range=1.0, reduction="none"
    )
    assert isinstance(similarity, Tensor)
    return similarity.reshape(len(truth))


def _decibels(squared_error: Tensor) -> Tensor:
    return (-10 * squared_error.log10()).clamp(-HIGHEST_PSNR, HIGHEST_PSNR)
