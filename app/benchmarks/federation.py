"""The scenarios of `scripts/bench federation`: rounds and peak memory against clients and rounds."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from app.benchmarks.ours import ours
from app.benchmarks.peers import peers_table
from app.benchmarks.raw import naive, raw_sequence, raw_threads
from app.benchmarks.table import BenchmarkRow, Table
from app.benchmarks.timing import Effort, compare, progress
from app.benchmarks.work import Competitor, Work
from app.federation.execution.executors import available_cores
from app.models.base import DataShape
from app.models.mlp import MLP

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
    rows: list[BenchmarkRow] = []
    for small, large in settings:
        peaks = [_peak(clients, total // clients, rounds) for clients, rounds in (small, large)]
        rows += [_row(small, peaks[0], peaks[0], None), _row(large, peaks[1], peaks[0], ALLOWED_GROWTH)]
    return Table(f"peak memory, {total} samples in all, batch 10", "MB", "row above", tuple(rows))


def _peak(clients: int, samples: int, rounds: int) -> float:
    progress(f"memory: {clients} clients x {samples} samples, {rounds} rounds")
    code = f"from app.benchmarks.federation import print_peak; print_peak({clients}, {samples}, {rounds})"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)  # noqa: S603
    return float(done.stdout.split()[-1])


def _row(setting: tuple[int, int], peak: float, reference: float, goal: float | None) -> BenchmarkRow:
    remark = "" if goal is None else f"{peak - reference:+.1f} MB"
    return BenchmarkRow(
        f"{setting[0]} clients, rounds: {setting[1]}", peak, peak, math.nan, peak / reference, goal, remark
    )


@dataclass(frozen=True)
class Sizes:
    """How large the scenarios are.

    Attributes:
        few: 10 clients with many samples.
        many: many clients with 10 samples.
        tiny: a tiny net with tiny batches.
        effort: how often each is measured.
    """

    few: Work
    many: Work
    tiny: Work
    effort: Effort


_DIGITS = DataShape(1, 28, 28, 10)
FULL = Sizes(Work(10, 1000, 128), Work(1000, 10, 10), Work(10, 500, 10, net=MLP, shape=_DIGITS), Effort(3, 2))
QUICK = Sizes(Work(4, 128, 128, tests=128), Work(30, 10, 10), Work(10, 50, 10, net=MLP, shape=_DIGITS), Effort(1, 1))


def federation_tables(quick: bool) -> Iterator[Table]:
    """Measure one scenario after the other."""
    sizes = QUICK if quick else FULL
    if not quick:
        yield few_clients(sizes.few, sizes.effort)
    yield few_clients(replace(sizes.few, evaluate=True), sizes.effort)
    yield many_clients(sizes.many, sizes.effort)
    yield tiny_net(sizes.tiny, sizes.effort)
    if not quick:
        yield memory_table()
        yield peers_table(sizes.few, Effort(2, 2))
        yield peers_table(replace(sizes.few, evaluate=True), Effort(2, 2))


def few_clients(work: Work, effort: Effort) -> Table:
    """A few clients with many samples: convolutions dominate."""
    competitors: dict[str, Competitor] = {
        "raw loop, worker threads": _raw_threads(),
        "rampart": ours,
        "rampart, in sequence": partial(ours, executor="sequence"),
        "rampart, vectorised": partial(ours, executor="vectorised"),
        "naive loop": naive,
    }
    kind = "with evaluation" if work.evaluate else "training only"
    return compare(f"{_size(work)}, {kind}", work, competitors, {"rampart": 1.15}, effort)


def many_clients(work: Work, effort: Effort) -> Table:
    """Many clients with few samples: what a client costs beyond its training dominates."""
    competitors: dict[str, Competitor] = {"raw loop, worker threads": _raw_threads(), "rampart": ours}
    table = compare(f"{_size(work)}, training only", work, competitors, {"rampart": 1.3}, effort)
    raw, mine = (row.value for row in table.rows)
    overhead = 1000 * (mine - raw) / work.clients
    remark = f"overhead {overhead:.2f} ms per client (goal <= 3): {'met' if overhead <= 3 else 'NOT MET'}"
    return replace(table, remarks=(remark,))


def tiny_net(work: Work, effort: Effort) -> Table:
    """A tiny net with tiny batches: the interpreter dominates, so one call for all clients pays."""
    competitors: dict[str, Competitor] = {
        "raw loop, in sequence": raw_sequence,
        "rampart": ours,
        "rampart, worker threads": partial(ours, executor="threads"),
    }
    return compare(f"MLP 784-200-10, {_size(work)}, training only", work, competitors, {}, effort)


def _raw_threads() -> Competitor:
    return partial(raw_threads, workers=max(1, available_cores()))


def _size(work: Work) -> str:
    return f"{work.clients} clients x {work.samples} samples, batch {work.batch_size}"
