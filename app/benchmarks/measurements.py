"""Competitors measured in turn, so that a disturbance of the machine meets all of them, and the tables of results."""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from app.benchmarks.processes import Contender, new_processes
from app.benchmarks.work import Competitor, Run, Work
from app.common.files import finite
from app.results.text_table import text_table

Clock = Literal["wall", "cpu"]

_TIMES: Mapping[Clock, Callable[[Run], Sequence[float]]] = {
    "wall": lambda run: run.seconds,
    "cpu": lambda run: run.cpu_seconds,
}


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
    interval: tuple[float, float] | None = None  # smallest and largest ratio of the repeats, None for a single one

    @property
    def met(self) -> bool | None:
        """Whether the goal is met, None without a goal."""
        return None if self.goal is None else self.ratio <= self.goal

    @property
    def cells(self) -> tuple[str, ...]:
        met = {None: "", True: "yes", False: "NO"}[self.met]
        cpu = "" if math.isnan(self.cpu) else f"{self.cpu:.3f}"
        goal = "" if self.goal is None else f"<= {self.goal:g}"
        interval = "" if self.interval is None else "[{:.2f}, {:.2f}]".format(*self.interval)
        times = (f"{self.value:.3f}", f"{self.least:.3f}", cpu)
        return (self.name, *times, f"{self.ratio:.2f}", interval, goal, met, self.remark)


@dataclass(frozen=True)
class Table:
    """The measurements of one scenario."""

    title: str
    unit: str
    reference: str  # name of what a ratio of 1 is
    rows: tuple[BenchmarkRow, ...]
    remarks: tuple[str, ...] = ()  # lines below the table

    def __str__(self) -> str:
        head = ("", self.unit, "least", "CPU s", f"x {self.reference}", "repeats", "goal", "met", "")
        table = text_table(head, [row.cells for row in self.rows], left=(0, 8), rule=False)
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
    title: str,
    work: Work,
    competitors: Mapping[str, Competitor | Mapping[str, Competitor]],
    goals: Mapping[str, float],
    effort: Effort,
    clock: Clock = "wall",
) -> Table:
    """Time every competitor in a process of its own; ratios refer to the first one, in the same turn.

    Of a competitor that is given with several settings, such as thread counts, the fastest one is found first and named
    in its row. `clock` is what ratios are of: wall-clock seconds, or seconds of all cores.
    """
    with ExitStack() as processes:
        chosen = {
            name: _fastest(f"{title}: {name}", work, _settings(competitor), processes)
            for name, competitor in competitors.items()
        }
        runs: dict[str, list[Run]] = {name: [] for name in competitors}
        for repeat in range(effort.repeats):
            for name, contender in chosen.items():
                progress(f"{title}: {name} ({repeat + 1}/{effort.repeats})")
                runs[name].append(contender.run(work, effort.rounds + 1))
    reference = next(iter(competitors))
    rows = (
        _compared(name, runs[name], runs[reference], clock, goals.get(name), chosen[name].remark)
        for name in competitors
    )
    return Table(title, "s per round", reference if clock == "wall" else f"{reference}, CPU", tuple(rows))


def _fastest(title: str, work: Work, settings: Mapping[str, Competitor], processes: ExitStack) -> Contender:
    """The fastest setting of a competitor by one timed round each; its process ends with `processes`."""
    tried: dict[str, Contender] = {}
    seconds: dict[str, float] = {}
    for setting, competitor in settings.items():
        tried[setting] = Contender(competitor, new_processes(1))
        processes.enter_context(tried[setting].process)
        if len(settings) > 1:
            progress(f"{title}, {setting}")
            seconds[setting] = min(tried[setting].run(work, 2).seconds)
    best = min(seconds, key=lambda setting: seconds[setting], default=next(iter(settings)))
    for setting, contender in tried.items():
        if setting != best:
            contender.process.shutdown()
    others = [setting for setting in settings if setting != best]
    remark = f"{best}, faster than {', '.join(others)}" if others else best
    return Contender(tried[best].competitor, tried[best].process, remark)


def _settings(competitor: Competitor | Mapping[str, Competitor]) -> Mapping[str, Competitor]:
    return competitor if isinstance(competitor, Mapping) else {"": competitor}


def _compared(
    name: str, runs: Sequence[Run], reference: Sequence[Run], clock: Clock, goal: float | None, remark: str
) -> BenchmarkRow:
    ratios = [_median(own, clock) / _median(other, clock) for own, other in zip(runs, reference, strict=True)]
    wall, cpu = ([value for run in runs for value in times(run)] for times in _TIMES.values())
    row = measured_row(name, wall, statistics.median(wall), goal, cpu, remark)
    interval = (min(ratios), max(ratios)) if len(ratios) > 1 else None
    return replace(row, ratio=statistics.median(ratios), interval=interval)


def _median(run: Run, clock: Clock) -> float:
    return statistics.median(_TIMES[clock](run))


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


def cpu_seconds_of(action: Callable[[], object]) -> float:
    """Seconds of all cores of this process during a call."""
    started = time.process_time()
    action()
    return time.process_time() - started


def progress(line: str) -> None:
    """Print what is being measured to standard error."""
    print(f"  ... {line}", file=sys.stderr, flush=True)
