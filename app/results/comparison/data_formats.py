"""The table for programs: CSV with unscaled numbers, and numbers and rows for a tracker."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from app.common.files import csv_text
from app.metrics.membership import NotAvailable
from app.results.comparison.table import ComparisonTable, Measure, Row, Value

LABELS = ("dataset", "method", "defense")
FURTHER = ("low", "high", "interval", "standing", "marks", "reason")
"""Columns beside the mean of a measure, as `server_accuracy/low`; the reason says why there is no number."""

SEED_COLUMNS = (*LABELS, "seed", "run", "measure", "value", "reason")
"""Columns of `as_csv_seeds`."""

Field = str | int | float


def as_csv(table: ComparisonTable) -> str:
    """One line per row with mean, interval, standing and remarks of every measure; fractions stay fractions."""
    head = [f"{measure.key}{part}" for measure in table.measures for part in ("", *(f"/{each}" for each in FURTHER))]
    lines = [
        [row.dataset, row.method, row.defense, " ".join(map(str, row.seeds))]
        + [field for measure in table.measures for field in _fields(row.entry(measure))]
        + ["\n".join(row.notes)]
        for row in table.rows
    ]
    return _written([[*LABELS, "seeds", *head, "notes"], *lines])


def as_csv_seeds(table: ComparisonTable) -> str:
    """One line per row, measure and seed; without a value where a seed has none."""
    lines = [line for row in table.rows for measure in table.measures for line in _seed_lines(row, measure)]
    return _written([SEED_COLUMNS, *lines])


def tracked_numbers(table: ComparisonTable) -> dict[str, float]:
    """Every mean as `report/<dataset>/<method>/<defense>/<measure>`, in the unit of its column."""
    return {
        f"report/{row.dataset}/{row.method}/{row.defense}/{measure.key}": mean
        for row in table.rows
        for measure in table.measures
        if (mean := _scaled_mean(row, measure)) is not None
    }


def tracked_columns(table: ComparisonTable) -> list[str]:
    """Titles of the columns of `tracked_rows`."""
    return [*LABELS, "seeds", *(measure.key for measure in table.measures)]


def tracked_rows(table: ComparisonTable) -> list[list[Field | None]]:
    """Labels, number of seeds and means of every row, None where there is no number."""
    return [
        [row.dataset, row.method, row.defense, len(row.seeds), *(_scaled_mean(row, each) for each in table.measures)]
        for row in table.rows
    ]


def _fields(entry: Value | NotAvailable) -> list[Field]:
    """The fields of one measure."""
    if isinstance(entry, NotAvailable):
        return ["", "", "", "", "", "", entry.reason]
    numbers = [_finite(number) for number in (entry.mean, entry.low, entry.high)]
    return [*numbers, entry.interval, entry.standing, "; ".join(entry.marks), ""]


def _seed_lines(row: Row, measure: Measure) -> Iterable[list[Field]]:
    entry = row.entry(measure)
    for seed, run in zip(row.seeds, row.runs, strict=True):
        labels: list[Field] = [row.dataset, row.method, row.defense, seed, run, measure.key]
        if isinstance(entry, NotAvailable):
            yield [*labels, "", entry.reason]
        elif seed in entry.by_seed:
            yield [*labels, _finite(entry.by_seed[seed]), ""]
        else:
            yield [*labels, "", "no number for this seed"]


def _finite(value: float) -> Field:
    return value if math.isfinite(value) else ""


def _scaled_mean(row: Row, measure: Measure) -> float | None:
    value = row.entry(measure)
    return value.mean * measure.scale if isinstance(value, Value) and math.isfinite(value.mean) else None


def _written(lines: Iterable[Sequence[Field]]) -> str:
    return csv_text(lines, line_end="\n")
