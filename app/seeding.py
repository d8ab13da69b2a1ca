"""Random numbers that depend only on what they are for.

Every random choice draws from a generator keyed by (run seed, purpose, round, client, ...), so a result depends neither
on the number of devices, nor on the order in which clients are trained, nor on whether the run was interrupted.
Never use these generators for secrets: keys and cryptographic noise come from the operating system.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch


def derive_key(seed: int, purpose: str, *numbers: int) -> int:
    """63-bit key of (seed, purpose, numbers), stable across machines and Python versions."""
    text = ":".join([str(seed), purpose, *map(str, numbers)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def torch_generator(seed: int, purpose: str, *numbers: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Torch generator on `device` for one purpose."""
    return torch.Generator(device=device).manual_seed(derive_key(seed, purpose, *numbers))


def numpy_generator(seed: int, purpose: str, *numbers: int) -> np.random.Generator:
    """NumPy generator for one purpose."""
    return np.random.default_rng(derive_key(seed, purpose, *numbers))
