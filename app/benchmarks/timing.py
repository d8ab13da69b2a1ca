"""Competitors measured in turn, so that a noisy neighbour meets all of them."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from app.benchmarks.table import BenchmarkRow, Table, seconds_row
from app.benchmarks.work import Competitor, Work


@dataclass(frozen=True)
class Effort:
    """How long to measure.

    Attributes:
        repeats: turns; in each, every competitor runs once.
        rounds: timed rounds per turn, after one round that warms up.
    """

    repeats: int
    rounds: int


@dataclass
class Timings:
    """Seconds per round of one competitor, on the wall and of all cores."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


def measure(title: str, work: Work, competitors: Mapping[str, Competitor], effort: Effort) -> dict[str, Timings]:
    """Seconds of every timed round by competitor."""
    threads = torch.get_num_threads()
    timings = {name: Timings() for name in competitors}
    for repeat in range(effort.repeats):
        for name, competitor in competitors.items():
            progress(f"{title}: {name} ({repeat + 1}/{effort.repeats})")
            torch.set_num_threads(threads)
            run = competitor(work, effort.rounds + 1)
            timings[name].wall += run.seconds
            timings[name].cpu += run.cpu_seconds
    torch.set_num_threads(threads)
    return timings


def compare(
    title: str, work: Work, competitors: Mapping[str, Competitor], goals: Mapping[str, float], effort: Effort
) -> Table:
    """Measure and set in relation to the first competitor."""
    timings = measure(title, work, competitors, effort)
    reference = next(iter(competitors))
    base = statistics.median(timings[reference].wall)
    rows = tuple(seconds_row(name, timing.wall, timing.cpu, base, goals.get(name)) for name, timing in timings.items())
    return Table(title, "s per round", reference, rows)


def progress(line: str) -> None:
    """Say what is being measured, on standard error."""
    print(f"  ... {line}", file=sys.stderr, flush=True)


def absent(name: str, remark: str) -> BenchmarkRow:
    """Row of something that could not be measured."""
    return BenchmarkRow(name, math.nan, math.nan, math.nan, math.nan, None, remark)
