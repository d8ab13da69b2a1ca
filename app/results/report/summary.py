"""The table for a tracker: numbers by name, and rows of plain cells."""

from __future__ import annotations

import math

from app.results.comparison.table import ComparisonTable, Row, Value

Cell = str | int | float | None


def numbers(table: ComparisonTable) -> dict[str, float]:
    """Every mean as `report/<dataset>/<method>/<defense>/<measure>`, in the unit that the table shows it in."""
    return {
        f"report/{row.dataset}/{row.method}/{row.defense}/{measure.key}": mean
        for row in table.rows
        for measure in table.measures
        if (mean := _mean(row, measure.key, measure.scale)) is not None
    }


def columns(table: ComparisonTable) -> list[str]:
    """Titles of the columns of `rows`."""
    return ["dataset", "method", "defense", "seeds", *(measure.key for measure in table.measures)]


def rows(table: ComparisonTable) -> list[list[Cell]]:
    """Labels, number of seeds and means of every row, None where there is no number."""
    return [_cells(table, row) for row in table.rows]


def _cells(table: ComparisonTable, row: Row) -> list[Cell]:
    means = (_mean(row, measure.key, measure.scale) for measure in table.measures)
    return [row.dataset, row.method, row.defense, len(row.seeds), *means]


def _mean(row: Row, key: str, scale: float) -> float | None:
    value = row.values.get(key)
    return value.mean * scale if isinstance(value, Value) and math.isfinite(value.mean) else None
