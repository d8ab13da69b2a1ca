"""The table for programs: one line per row, or one per row, measure and seed; numbers are not scaled."""

from __future__ import annotations

import math
from collections.abc import Iterable

from app.files import csv_text
from app.metrics.membership import NotAvailable
from app.results.comparison.entries import entry_of
from app.results.comparison.table import ComparisonTable, Measure, Row, Value

PLACE = ("dataset", "method", "defense")
FURTHER = ("low", "high", "interval", "standing", "marks", "reason")
"""Columns beside a measure's mean, as `server_accuracy/low`; the reason tells why there is no number."""

SEED_COLUMNS = (*PLACE, "seed", "run", "measure", "value", "reason")
"""Columns of `as_csv_seeds`."""

Cell = str | int | float


def as_csv(table: ComparisonTable) -> str:
    """One line per row with mean, interval, standing and remarks of every measure; fractions stay fractions."""
    head = [f"{measure.key}{part}" for measure in table.measures for part in ("", *(f"/{each}" for each in FURTHER))]
    lines = [
        [row.dataset, row.method, row.defense, " ".join(map(str, row.seeds))]
        + [cell for measure in table.measures for cell in _cells(entry_of(row, measure))]
        + ["\n".join(row.notes)]
        for row in table.rows
    ]
    return csv_text([[*PLACE, "seeds", *head, "notes"], *lines], line_end="\n")


def as_csv_seeds(table: ComparisonTable) -> str:
    """One line per row, measure and seed; without a value where a seed has none."""
    lines = [line for row in table.rows for measure in table.measures for line in _seed_lines(row, measure)]
    return csv_text([SEED_COLUMNS, *lines], line_end="\n")


def _cells(entry: Value | NotAvailable) -> list[Cell]:
    """The cells of one measure."""
    if isinstance(entry, NotAvailable):
        return ["", "", "", "", "", "", entry.reason]
    ends = [_plain(end) for end in (entry.mean, entry.low, entry.high)]
    return [*ends, entry.interval, entry.standing, "; ".join(entry.marks), ""]


def _seed_lines(row: Row, measure: Measure) -> Iterable[list[Cell]]:
    entry = entry_of(row, measure)
    for seed, run in zip(row.seeds, row.runs, strict=True):
        place: list[Cell] = [row.dataset, row.method, row.defense, seed, run, measure.key]
        if isinstance(entry, NotAvailable):
            yield [*place, "", entry.reason]
        elif seed in entry.by_seed:
            yield [*place, _plain(entry.by_seed[seed]), ""]
        else:
            yield [*place, "", "no number for this seed"]


def _plain(value: float) -> Cell:
    return value if math.isfinite(value) else ""
