"""Memory: how much there is, networks that are too large for it, and errors of allocations in words."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

from app.common.errors import Problem, UserError

COPIES = 4
"""Copies of a network's parameters that a round needs at least: the server's, a client's, its gradients, its update."""

PATTERNS = (
    r"tried to allocate (?P<bytes>\d+) bytes",  # torch, on a CPU
    r"[Tt]ried to allocate (?P<size>[\d.]+ [KMGTPE]i?B)",  # torch, on a GPU
    r"Unable to allocate (?P<size>[\d.]+ [KMGTPE]i?B)",  # numpy
)
OVERFLOWS = ("overflow", "storage size calculation", "negative dimension", "too large")
"""Words in torch's errors about sizes that no number can hold."""

SAVING = (
    "use a smaller --model.net, fewer workers (--model.workers) or a smaller --model.block_size; in attacks, fewer "
    "shadows or a smaller attack network"
)


def available_memory() -> int:
    """Bytes that may still be allocated: of the machine, or of the control group if that is less."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    if found := re.search(r"MemAvailable:\s+(\d+) kB", _text("/proc/meminfo")):
        limits.append(1024 * int(found[1]))
    most, used = _text("/sys/fs/cgroup/memory.max").strip(), _text("/sys/fs/cgroup/memory.current").strip()
    if most.isdigit() and used.isdigit():
        limits.append(int(most) - int(used))
    return max(0, min(limits))


@contextmanager
def noted(step: str) -> Iterator[None]:
    """Within it, errors are noted with what was being done."""
    try:
        yield
    except Exception as error:
        error.add_note(step)
        raise


def refuse_too_large(build: Callable[[], nn.Module]) -> None:
    """Refuse a network whose parameters cannot fit into memory, before any of them is allocated.

    Args:
        build: makes the network; it is called on torch's meta device, which allocates nothing. What cannot be built
            there is not checked.

    Raises:
        UserError: where it is too large.
    """
    try:
        with torch.device("meta"):
            net = build()
    except UserError:
        raise
    except Exception as error:
        if isinstance(error, OverflowError) or any(words in str(error).lower() for words in OVERFLOWS):
            cause = f"the network has layers of impossible sizes: {' '.join(str(error).split())[:200]}"
            raise UserError.of(cause, "no memory can hold it", "make it smaller: --model.net") from error
        return
    size = sum(parameter.numel() * parameter.element_size() for parameter in net.parameters())
    if (needed := COPIES * size) > (available := available_memory()):
        count = sum(parameter.numel() for parameter in net.parameters())
        raise UserError.of(
            f"the network has {count:,} parameters, and a round needs at least {in_bytes(needed)} for them",
            f"{in_bytes(available)} of memory are available: the run would be killed",
            "make it smaller: --model.net",
        )


def out_of_memory(error: BaseException) -> Problem | None:
    """An allocation that failed, in words: by which step of how many bytes; None for other errors."""
    text = str(error)
    found = next((found for pattern in PATTERNS if (found := re.search(pattern, text))), None)
    if not isinstance(error, (MemoryError, torch.OutOfMemoryError)) and (
        found is None or not isinstance(error, RuntimeError)
    ):
        return None
    asked = "memory" if found is None else _asked(found.groupdict())
    notes = getattr(error, "__notes__", [])
    step = f" by {' in '.join(notes)}" if notes else ""
    return Problem(
        f"out of memory: {asked} asked for{step}",
        f"the work stops here; {in_bytes(available_memory())} are available now",
        SAVING,
    )


def in_bytes(count: float) -> str:
    """A number of bytes such as `3.2 GB`."""
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if count < 1000:
            return f"{count:.0f} bytes" if unit == "bytes" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} PB"


def _asked(groups: dict[str, str]) -> str:
    return in_bytes(int(groups["bytes"])) if "bytes" in groups else groups["size"]


def _text(path: str) -> str:
    """Content of a file of the system; empty where there is none."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""
