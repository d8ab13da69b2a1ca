"""Clipping of per-sample gradients that holds against a server that chooses the weights.

Weights may be such that a sample's gradient overflows, or that rounding errors exceed it. Norms are therefore too small
by one part in a thousand at most, and a sample whose norm is not finite counts as zero: the update of its client stays
finite, so that no missing update tells that the sample was there.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from app.common.errors import UserError
from app.common.wording import counted

_BLOCK = 2**17
"""Coordinates whose squares are added one after another: so many rounding errors stay below 1e-3 in float32."""


def row_norms(rows: Tensor) -> Tensor:
    """Euclidean norms (samples,) of the rows of a matrix (samples, coordinates)."""
    parts = [torch.linalg.vector_norm(part, dim=1) for part in rows.split(_BLOCK, dim=1)]
    return parts[0] if len(parts) == 1 else torch.linalg.vector_norm(torch.stack(parts), dim=0)


def clip_factors(norms: Tensor, clip: float) -> Tensor:
    """Factors (samples,) in (0, 1] that scale gradients of finite norms (samples,) down to the norm `clip`.

    The summand 1e-6 also covers underflow: a norm below 1e-6 that is computed as 0 gives at most `clip` all the same.
    """
    return (clip / (norms + 1e-6)).clamp(max=1.0)


def without(samples: Tensor, tensor: Tensor) -> Tensor:
    """A tensor (samples, ...) with zeros for some samples (bool); a factor of 0 would leave NaN and infinity as NaN."""
    return tensor.masked_fill(samples.view(-1, *[1] * (tensor.dim() - 1)), 0)


def clipped_sums(gradients: Sequence[Tensor], clip: float) -> list[Tensor]:
    """Sums over the samples of gradients (samples, ...) of several parameters, clipped over all of them together."""
    norms = torch.stack([row_norms(each.flatten(1)) for each in gradients], dim=1).norm(2, dim=1)
    overflown = ~norms.isfinite()
    if overflown.any():
        norms, gradients = without(overflown, norms), [without(overflown, each) for each in gradients]
    factors = clip_factors(norms, clip)
    return [torch.einsum("i,i...", factors, each) for each in gradients]


def check_rows(rows: int, samples: int) -> None:
    """Refuse a layer whose input or gradient has not one row per sample."""
    if rows != samples:
        raise UserError.of(
            f"DP-SGD: a layer of the network got {counted(rows, 'row')} for {counted(samples, 'sample')}",
            "parts of a sample would be clipped one by one, and together exceed the clipping norm",
            "choose another --model.net, whose layers keep samples in their first dimension",
        )
