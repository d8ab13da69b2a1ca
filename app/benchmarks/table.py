"""Tables of measurements, for people and as JSON."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class BenchmarkRow:
    """One competitor.

    Attributes:
        name: what was measured.
        value: the measurement in the table's unit, median of the repeats.
        least: smallest of the repeats.
        cpu: seconds of all cores per round, NaN where unknown.
        ratio: value as a multiple of the table's reference.
        goal: largest ratio allowed, None where there is no goal.
        remark: anything else worth saying.
    """

    name: str
    value: float
    least: float
    cpu: float
    ratio: float
    goal: float | None = None
    remark: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the goal is met, None without a goal."""
        return None if self.goal is None else self.ratio <= self.goal


@dataclass(frozen=True)
class Table:
    """The measurements of one scenario.

    Attributes:
        title: what was done.
        unit: unit of the values.
        reference: what a ratio of 1 is.
        rows: one per competitor.
        remarks: lines below the table.
    """

    title: str
    unit: str
    reference: str
    rows: tuple[BenchmarkRow, ...]
    remarks: tuple[str, ...] = ()

    def __str__(self) -> str:
        head = ("", self.unit, "least", "CPU s", f"x {self.reference}", "goal", "met", "")
        lines = [head, *(_coordinates(row) for row in self.rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
        text = ["  ".join(_pad(coordinate, width, i) for i, (coordinate, width) in enumerate(zip(line, widths,
                strict=True))) for line in lines]  # fmt: skip
        return "\n".join([self.title, *(line.rstrip() for line in text), *self.remarks])

    def as_json(self) -> dict[str, Any]:
        """The table as plain values; NaN becomes None."""
        rows = [{**asdict(row), "met": row.met} for row in self.rows]
        plain = [{key: None if _is_nan(value) else value for key, value in row.items()} for row in rows]
        return {**asdict(self), "rows": plain}


def seconds_row(
    name: str, seconds: Sequence[float], cpu: Sequence[float], reference: float, goal: float | None = None
) -> BenchmarkRow:
    """Row of repeated timings.

    Args:
        name: what was measured.
        seconds: wall-clock seconds of the repeats.
        cpu: seconds of all cores of the repeats, empty where unknown.
        reference: median seconds of the reference.
        goal: largest ratio allowed.
    """
    value = statistics.median(seconds)
    spent = statistics.median(cpu) if cpu else math.nan
    return BenchmarkRow(name, value, min(seconds), spent, value / reference, goal)


def _coordinates(row: BenchmarkRow) -> tuple[str, ...]:
    met = {None: "", True: "yes", False: "NO"}[row.met]
    cpu = "" if math.isnan(row.cpu) else f"{row.cpu:.3f}"
    goal = "" if row.goal is None else f"<= {row.goal:g}"
    ratio = "" if math.isnan(row.ratio) else f"{row.ratio:.2f}"
    return (row.name, f"{row.value:.3f}", f"{row.least:.3f}", cpu, ratio, goal, met, row.remark)


def _pad(coordinate: str, width: int, column: int) -> str:
    return coordinate.ljust(width) if column in (0, 7) else coordinate.rjust(width)


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)
