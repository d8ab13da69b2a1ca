"""Entries of a table in plain words, shared by all formats."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from app.metrics.membership import NotAvailable
from app.results.comparison.rows import NO_PROMISE, NOT_MEASURED, NOT_RUN
from app.results.comparison.table import ComparisonTable, Measure, Row, Value

SINGLE = ("auc:", "recovered:")
"""Beginnings of the keys of measures that tell about one attack each; tables for reading leave them out."""

NOTHING = (NOT_RUN.reason, NOT_MEASURED.reason, NO_PROMISE.reason)
"""Reasons that are not worth a column where all rows have them."""

LEGEND = (
    "{best} best of its dataset beyond chance, {level} cannot be told from the best; [low, high] is the 95 % interval"
)


@dataclass
class Reasons:
    """Why numbers are missing, each once and numbered from 1."""

    texts: list[str] = field(default_factory=list)

    def number(self, missing: NotAvailable) -> int:
        """Number of a reason."""
        if missing.reason not in self.texts:
            self.texts.append(missing.reason)
        return self.texts.index(missing.reason) + 1

    def numbered(self) -> Iterator[tuple[int, str]]:
        """All reasons with their numbers."""
        return enumerate(self.texts, start=1)


def shown_measures(table: ComparisonTable, dataset: str, every: bool = False) -> tuple[Measure, ...]:
    """The columns of a dataset's table for reading; without those in which no row has anything to tell.

    Args:
        table: the table.
        dataset: whose rows are shown.
        every: also the columns of single attacks.
    """
    rows = table.of(dataset)
    read = [measure for measure in table.measures if every or not measure.key.startswith(SINGLE)]
    return tuple(measure for measure in read if any(_tells(entry_of(row, measure)) for row in rows))


def groups_of(measures: Sequence[Measure]) -> tuple[tuple[Measure, ...], ...]:
    """The columns, those of one group together."""
    groups = dict.fromkeys(measure.group for measure in measures)
    return tuple(tuple(measure for measure in measures if measure.group == group) for group in groups)


def titled(measure: Measure) -> str:
    """Head of a column with its unit."""
    return f"{measure.title} ({measure.unit})" if measure.unit else measure.title


def entry_of(row: Row, measure: Measure) -> Value | NotAvailable:
    """What a row has in a column."""
    return row.values.get(measure.key, NOT_MEASURED)


def mean_text(measure: Measure, value: Value) -> str:
    """The mean as it is shown, such as `90.0`."""
    return _number(measure, value.mean)


def bounds_text(measure: Measure, value: Value) -> str:
    """The interval as it is shown, such as `[89.2, 90.8]`; empty where there is none."""
    if math.isnan(value.low) or math.isnan(value.high):
        return ""
    return f"[{_number(measure, value.low)}, {_number(measure, value.high)}]"


def datasets_of(table: ComparisonTable) -> tuple[str, ...]:
    """Datasets in the order of the rows."""
    return tuple(dict.fromkeys(row.dataset for row in table.rows))


def row_notes(rows: Sequence[Row], several: bool) -> list[str]:
    """Every distinct note of the rows once, after the names of the rows it concerns.

    Args:
        rows: the rows.
        several: whether there are several datasets, so that rows must be told apart by them.
    """
    concerned: dict[str, list[str]] = {}
    for row in rows:
        for note in row.notes:
            concerned.setdefault(note, []).append(f"{row.dataset}: {row.name}" if several else row.name)
    return [f"{', '.join(names)}: {note}" for note, names in concerned.items()]


def _tells(entry: Value | NotAvailable) -> bool:
    return isinstance(entry, Value) or entry.reason not in NOTHING


def _number(measure: Measure, value: float) -> str:
    shown = f"{measure.scale * value:.{measure.digits}f}"
    return shown.removeprefix("-") if float(shown) == 0 else shown
