"""Random numbers that depend only on what they are for.

Every random choice draws from a generator keyed by (run seed, purpose, round, client, ...), so a result depends neither
on the number of devices, nor on the order in which clients are trained, nor on whether the run was interrupted.
Never use these generators for secrets: keys and cryptographic noise come from the operating system.

torch's CPU generator keeps the low 32 bits of its seed, so among 100,000 (round, client) pairs one or two share a
stream by chance. That is harmless for what is drawn here (orders of batches, crops, dropout masks, initial values,
sizes and channels of submodels): two clients, or two rounds, then shuffle alike, and no guarantee assumes that they do
not. What the accounting of differential privacy assumes to be independent (noise, and Poisson draws of samples and of
clients) has a key of 256 bits instead: `derive_bytes` with `app.privacy.noise`. NumPy's generators use all 63 bits.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch

KEY_BYTES = 32
"""Length of a key from `derive_bytes`."""


def derive_key(seed: int, purpose: str, *numbers: int) -> int:
    """63-bit key of (seed, purpose, numbers), stable across machines and Python versions."""
    digest = hashlib.blake2b(_text(seed, purpose, *numbers), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def derive_bytes(seed: int, purpose: str, *numbers: int) -> bytes:
    """256-bit key of (seed, purpose, numbers), stable across machines and Python versions."""
    return hashlib.blake2b(_text(seed, purpose, *numbers), digest_size=KEY_BYTES).digest()


def torch_generator(seed: int, purpose: str, *numbers: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Torch generator on `device` for one purpose."""
    return torch.Generator(device=device).manual_seed(derive_key(seed, purpose, *numbers))


def numpy_generator(seed: int, purpose: str, *numbers: int) -> np.random.Generator:
    """NumPy generator for one purpose."""
    return np.random.default_rng(derive_key(seed, purpose, *numbers))


def _text(seed: int, purpose: str, *numbers: int) -> bytes:
    return ":".join([str(seed), purpose, *map(str, numbers)]).encode()
