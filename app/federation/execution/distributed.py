"""What rounds need of the processes and devices beyond what Lightning's strategies offer."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, TypeVar

import torch
import torch.distributed as distributed
from lightning.pytorch import Trainer
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.utilities import rank_zero_only

T = TypeVar("T")


_ALONE: ContextVar[bool] = ContextVar("alone", default=False)


@contextmanager
def alone() -> Iterator[None]:
    """Within it, this process works by itself, as in a shadow run: nothing is gathered, and it is its own first one."""
    lightning: Any = rank_zero_only  # which keeps the number of this process
    token, rank = _ALONE.set(True), lightning.rank
    lightning.rank = 0
    try:
        yield
    finally:
        lightning.rank = rank
        _ALONE.reset(token)


def gather(value: T) -> list[T]:
    """Every process's value, by rank; only for values made by this application, since they are pickled."""
    if _ALONE.get() or not (distributed.is_available() and distributed.is_initialized()):
        return [value]
    values: list[T | None] = [None] * distributed.get_world_size()
    distributed.all_gather_object(values, value)
    return [value for value in values if value is not None]


def from_first(value: T) -> T:
    """The first process's value, on all processes."""
    return gather((value,))[0][0]


@contextmanager
def one_thread() -> Iterator[None]:
    """Within it, an operation on the CPU uses one thread: small networks gain nothing from more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def precise(device: torch.device) -> torch.dtype:
    """The widest floating type of a device, for sums; Apple's GPUs have no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def keep_freed_memory() -> None:
    """Let the C library keep freed memory (up to 512 MB) for the next step instead of returning it to the system.

    Activations are allocated and freed in every step, and the page faults take time: 8 % of a round of the papers' CNN
    on one machine, nothing measurable on another. Only glibc has the call; elsewhere nothing happens.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        trim_threshold, mmap_threshold = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
        mallopt(mmap_threshold, 1 << 28)
        mallopt(trim_threshold, 1 << 29)


def spare_driver_lookups() -> None:
    """Let torch remember that there is no NVIDIA GPU, where there is none.

    Adam asks for one in every step. Lightning makes torch look for NVIDIA's management library then, so that processes
    can fork beside a GPU; without the library, each search takes 0.12 ms, a sixth of a step of a tiny network.
    """
    if not torch.cuda.is_available():
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "0"


def autocast_of(trainer: Trainer) -> Callable[[], AbstractContextManager[None]]:
    """Makes the autocast context of mixed precision; autocast is per thread, so each worker enters its own."""
    plugin = trainer.precision_plugin
    return plugin.autocast_context_manager if isinstance(plugin, MixedPrecision) else nullcontext
