"""Competitors measured in turn, so that a disturbance of the machine meets all of them, and the tables of results."""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from app.benchmarks.work import Competitor, Work
from app.common.files import finite
from app.results.text_table import text_table


@dataclass(frozen=True)
class BenchmarkRow:
    """The measurement of one competitor."""

    name: str
    value: float  # in the table's unit, median of the repeats
    least: float  # smallest of the repeats
    cpu: float  # seconds of all cores per round, NaN where unknown
    ratio: float  # value as a multiple of the table's reference
    goal: float | None = None  # largest ratio allowed, None where there is no goal
    remark: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the goal is met, None without a goal."""
        return None if self.goal is None else self.ratio <= self.goal

    @property
    def cells(self) -> tuple[str, ...]:
        met = {None: "", True: "yes", False: "NO"}[self.met]
        cpu = "" if math.isnan(self.cpu) else f"{self.cpu:.3f}"
        goal = "" if self.goal is None else f"<= {self.goal:g}"
        return (self.name, f"{self.value:.3f}", f"{self.least:.3f}", cpu, f"{self.ratio:.2f}", goal, met, self.remark)


@dataclass(frozen=True)
class Table:
    """The measurements of one scenario."""

    title: str
    unit: str
    reference: str  # name of what a ratio of 1 is
    rows: tuple[BenchmarkRow, ...]
    remarks: tuple[str, ...] = ()  # lines below the table

    def __str__(self) -> str:
        head = ("", self.unit, "least", "CPU s", f"x {self.reference}", "goal", "met", "")
        table = text_table(head, [row.cells for row in self.rows], left=(0, 7), rule=False)
        return "\n".join([self.title, table, *self.remarks])

    def as_json(self) -> dict[str, Any]:
        """The table as plain values; NaN becomes None."""
        rows = [{**finite(asdict(row)), "met": row.met} for row in self.rows]
        return {**asdict(self), "rows": rows}


@dataclass(frozen=True)
class Effort:
    """Turns, in each of which every competitor runs once, and timed rounds per turn, after one that warms up."""

    repeats: int
    rounds: int


def compare(
    title: str, work: Work, competitors: Mapping[str, Competitor], goals: Mapping[str, float], effort: Effort
) -> Table:
    """Time every competitor; ratios refer to the first one."""
    threads = torch.get_num_threads()
    wall: dict[str, list[float]] = {name: [] for name in competitors}
    cpu: dict[str, list[float]] = {name: [] for name in competitors}
    for repeat in range(effort.repeats):
        for name, competitor in competitors.items():
            progress(f"{title}: {name} ({repeat + 1}/{effort.repeats})")
            torch.set_num_threads(threads)
            run = competitor(work, effort.rounds + 1)
            wall[name] += run.seconds
            cpu[name] += run.cpu_seconds
    torch.set_num_threads(threads)
    reference = next(iter(competitors))
    base = statistics.median(wall[reference])
    rows = tuple(measured_row(name, wall[name], base, goals.get(name), cpu[name]) for name in competitors)
    return Table(title, "s per round", reference, rows)


def measured_row(
    name: str,
    repeats: float | Sequence[float],
    reference: float,
    goal: float | None = None,
    cpu: Sequence[float] = (),
    remark: str = "",
) -> BenchmarkRow:
    """Row of something measured once or several times; `cpu` are seconds of all cores, `reference` is a median."""
    values = [repeats] if isinstance(repeats, float) else repeats
    value, busy = statistics.median(values), statistics.median(cpu) if cpu else math.nan
    return BenchmarkRow(name, value, min(values), busy, value / reference, goal, remark)


def seconds_of(action: Callable[[], object]) -> float:
    """Wall-clock seconds of a call."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def progress(line: str) -> None:
    """Print what is being measured to standard error."""
    print(f"  ... {line}", file=sys.stderr, flush=True)
