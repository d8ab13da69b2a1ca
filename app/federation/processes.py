"""What rounds need of the processes and devices beyond what Lightning's strategies offer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import torch
import torch.distributed as distributed
from lightning.pytorch import Trainer
from lightning.pytorch.plugins import MixedPrecision

T = TypeVar("T")


def gather(value: T) -> list[T]:
    """Every process's value, by rank; only for values made by this application, since they travel pickled."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return [value]
    values: list[T | None] = [None] * distributed.get_world_size()
    distributed.all_gather_object(values, value)
    return [value for value in values if value is not None]


def precise(device: torch.device) -> torch.dtype:
    """The widest floating type of a device, for sums; Apple's GPUs have no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def autocast_of(trainer: Trainer) -> Callable[[], AbstractContextManager[None]]:
    """Makes the autocast context of mixed precision; autocast is per thread, so each worker needs its own."""
    plugin = trainer.precision_plugin
    return plugin.autocast_context_manager if isinstance(plugin, MixedPrecision) else nullcontext
