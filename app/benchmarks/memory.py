"""Peak memory against the number of clients and of rounds."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

from app.benchmarks.ours import ours
from app.benchmarks.table import Row, Table
from app.benchmarks.timing import progress
from app.benchmarks.work import Work

ALLOWED_GROWTH = 1.05
"""Peaks of equal runs differ by a few percent, since the allocator does not work alike twice."""


def peak_memory() -> float:
    """Largest resident memory of this process so far, MB; Linux only."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("this kernel does not report VmHWM")


def print_peak(clients: int, samples: int, rounds: int) -> None:
    """Train and print the peak memory in MB; runs in a process of its own."""
    ours(Work(clients, samples, batch_size=10), rounds)
    print(peak_memory())


def memory_table() -> Table:
    """Peak memory of one federation each, in processes of their own; the data are the same in all."""
    total, settings = 10_000, [((100, 3), (1000, 3)), ((1000, 1), (1000, 6))]
    rows: list[Row] = []
    for small, large in settings:
        peaks = [_peak(clients, total // clients, rounds) for clients, rounds in (small, large)]
        rows += [_row(small, peaks[0], peaks[0], None), _row(large, peaks[1], peaks[0], ALLOWED_GROWTH)]
    return Table(f"peak memory, {total} samples in all, batch 10", "MB", "row above", tuple(rows))


def _peak(clients: int, samples: int, rounds: int) -> float:
    progress(f"memory: {clients} clients x {samples} samples, {rounds} rounds")
    code = f"from app.benchmarks.memory import print_peak; print_peak({clients}, {samples}, {rounds})"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)  # noqa: S603
    return float(done.stdout.split()[-1])


def _row(setting: tuple[int, int], peak: float, reference: float, goal: float | None) -> Row:
    remark = "" if goal is None else f"{peak - reference:+.1f} MB"
    return Row(f"{setting[0]} clients, rounds: {setting[1]}", peak, peak, math.nan, peak / reference, goal, remark)
