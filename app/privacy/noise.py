"""Gaussian noise, repeatable or secret, and clipping of whole vectors."""

from __future__ import annotations

import secrets

import torch
from torch import Tensor

from app.seeding import derive_key


class NoiseSource:
    """Seeds of noise: from the run's seed, so that runs can be repeated, or from the operating system (`secret`).

    Whoever knows the seed of a run can compute its noise and subtract it: use secret noise to protect real data. Both
    are floating-point noise, which does not resist attacks on the low-order bits of the numbers.
    """

    def __init__(self, secret: bool = False) -> None:
        self.secret = secret

    def seed(self, run_seed: int, purpose: str, *numbers: int) -> int:
        """Seed of one release: the same for the same purpose and numbers, or secret."""
        return secrets.randbits(63) if self.secret else derive_key(run_seed, purpose, *numbers)

    @property
    def description(self) -> str:
        origin = "seeded by the operating system" if self.secret else "seeded by the run, so that it can be repeated"
        return f"floating-point noise (secure mode off), {origin}"


def gaussian_like(values: Tensor, deviation: float, seed: int) -> Tensor:
    """Independent Gaussian noise for every value, of the given standard deviation (0 gives zeros) and seed."""
    if deviation == 0:
        return torch.zeros_like(values)
    generator = torch.Generator(device=values.device).manual_seed(seed)
    return torch.randn(values.shape, generator=generator, dtype=values.dtype, device=values.device) * deviation


def clip_factor(values: Tensor, norm: float) -> float:
    """Factor that scales values to a Euclidean norm of at most `norm`: 1 where they are short enough."""
    length = float(values.double().norm())
    return 1.0 if length <= norm else norm / length
