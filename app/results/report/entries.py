"""Entries of the table as text: in the unit of their column, with half of their interval."""

from __future__ import annotations

import math

from app.results.comparison.table import Measure, Value


def number(measure: Measure, value: float) -> str:
    """A number in the unit of its column, without the unit."""
    if not math.isfinite(value):
        return "∞" if value == math.inf else "–"
    shown = f"{value * measure.scale:.{measure.digits}f}"
    return shown.removeprefix("-") if float(shown) == 0 else shown


def half_width(measure: Measure, value: Value) -> str | None:
    """Half of the 95 % interval in the unit of the column; None where there is none."""
    half = (value.high - value.low) / 2
    return number(measure, half) if math.isfinite(half) else None


def with_interval(measure: Measure, value: Value) -> str:
    """As in `91.2 ± 0.4 %`."""
    half = half_width(measure, value)
    unit = f" {measure.unit}" if measure.unit else ""
    return f"{number(measure, value.mean)}{f' ± {half}' if half else ''}{unit}"
