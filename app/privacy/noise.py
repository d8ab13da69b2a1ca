"""Gaussian noise and coins of differential privacy, repeatable or secret, and clipping of whole vectors."""

from __future__ import annotations

import math
import secrets

import torch
from torch import Tensor

from app.common.seeding import KEY_BYTES, derive_bytes
from app.crypto.secure_aggregation.streams import key_stream

_FRACTION_BITS = 53


class NoiseSource:
    """Keys of noise: from the run's seed, so that runs can be repeated, or from the operating system (`secret`).

    An adversary who knows the seed of a run can compute its noise and subtract it: use secret noise to protect real
    data.
    """

    def __init__(self, secret: bool = False) -> None:
        self.secret = secret

    def key(self, run_seed: int, purpose: str, *numbers: int) -> bytes:
        """Key of one release: the same for the same purpose and numbers, or secret."""
        return secrets.token_bytes(KEY_BYTES) if self.secret else derive_bytes(run_seed, purpose, *numbers)

    def stream(self, run_seed: int, purpose: str, *numbers: int) -> NoiseStream:
        return NoiseStream(self.key(run_seed, purpose, *numbers))

    @property
    def description(self) -> str:
        origin = "the operating system" if self.secret else "the run's seed, so that it can be repeated"
        return (
            f"noise of AES-256 in counter mode, keyed by {origin}; rounded to floating point, neither discrete nor "
            "snapped, so attacks on the low-order bits of a release (Mironov 2012) are not ruled out"
        )


class NoiseStream:
    """Gaussian numbers and coins of one key of 32 bytes: AES-256 in counter mode, then Box-Muller.

    Every bit of the key matters, unlike with torch's CPU generator, which keeps 32 bits of a seed: those can be tried
    one by one, and repeat by chance. Bits are made on the CPU, so a key gives the same numbers on all devices.
    """

    def __init__(self, key: bytes) -> None:
        self._stream = key_stream(key)

    def normal_like(self, values: Tensor, deviation: float) -> Tensor:
        """Independent Gaussian noise for every value, of the given standard deviation (0 gives zeros)."""
        if deviation == 0:
            return torch.zeros_like(values)
        pairs = (values.numel() + 1) // 2
        words = self.words(2 * pairs).to(values.device if values.is_cuda else "cpu")
        # radius with 53 bits, so that tails reach to 8.5 standard deviations; the angle in the precision of the values
        radius = (-2 * _uniform(words[:pairs]).log()).sqrt().mul(deviation).to(values.dtype)
        angle = words[pairs:].to(values.dtype) * (math.pi / 2**63)
        noise = torch.cat([radius * angle.cos(), radius * angle.sin()])[: values.numel()]
        return noise.view(values.shape).to(values.device)

    def coins(self, count: int, probability: float) -> Tensor:
        """(count) bool on the CPU, each independently True with the given probability."""
        return self.uniform(count) <= probability

    def uniform(self, count: int) -> Tensor:
        """(count) float64 on the CPU, uniform in (0, 1] with 53 bits."""
        return _uniform(self.words(count))

    def words(self, count: int) -> Tensor:
        """(count) int64, all 64 bits random."""
        buffer = bytearray(8 * count + 16)  # room for a block more, which the cipher asks for
        self._stream.update_into(bytes(8 * count), buffer)
        return torch.frombuffer(buffer, dtype=torch.int64)[:count]


def _uniform(words: Tensor) -> Tensor:
    """Random 64-bit words as float64, uniform in (0, 1]."""
    return 1 - ((words >> (64 - _FRACTION_BITS)) & (2**_FRACTION_BITS - 1)).double() * 2.0**-_FRACTION_BITS


def clip_factor(values: Tensor, norm: float) -> float:
    """Factor that scales values to a Euclidean norm of at most `norm`: 1 where they are short enough."""
    length = float(values.double().norm())
    return 1.0 if length <= norm else norm / length
