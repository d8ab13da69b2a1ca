"""The table as it is shown: blocks of formatted cells, from which every format for reading is rendered."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby

from app.metrics.membership import NotAvailable
from app.results.comparison.rows import NO_GUARANTEE, NOT_RUN
from app.results.comparison.table import NOT_MEASURED, ComparisonTable, Measure, Row, Standing, Value

SINGLE = ("auc:", "recovered:")
"""Beginnings of the keys of measures of one attack each; tables for reading leave them out."""

NO_INFORMATION = (NOT_RUN.reason, NOT_MEASURED.reason, NO_GUARANTEE.reason)
"""A column in which all rows have one of these reasons is left out."""

LEGEND = (
    "{best} significantly best of its dataset, {level} not significantly different from the best; [low, high] is the "
    "95 % interval"
)


@dataclass(frozen=True)
class TableCell:
    """A formatted entry, in the unit of its column."""

    mean: str = ""  # such as `90.0`; empty where there is no number
    interval: str = ""  # 95 % interval, such as `[89.2, 90.8]`; empty where there is none
    half_width: str = ""  # half of the interval, such as `0.8`; empty where there is none
    standing: Standing = "unknown"  # against the best of the same dataset
    marks: tuple[str, ...] = ()  # short remarks beside the number
    reason: str = ""  # why there is no number; empty where there is one

    @classmethod
    def of(cls, measure: Measure, entry: Value | NotAvailable) -> TableCell:
        """Format an entry of a column."""
        if isinstance(entry, NotAvailable):
            return cls(reason=entry.reason)
        interval = half_width = ""
        if math.isfinite(entry.low) and math.isfinite(entry.high):
            interval = f"[{measure.number(entry.low)}, {measure.number(entry.high)}]"
            half_width = measure.number((entry.high - entry.low) / 2)
        return cls(measure.number(entry.mean), interval, half_width, entry.standing, entry.marks)


@dataclass(frozen=True)
class TableBlock:
    """Columns that are shown together for the rows of one dataset."""

    dataset: str  # dataset and partition
    group: str  # group of the columns; that of the first one where groups are not separated
    heads: tuple[str, ...]  # heads of the columns
    rows: tuple[Row, ...]  # rows of the dataset
    cells: tuple[tuple[TableCell, ...], ...]  # one line per row, one cell per column
    continued: bool = False  # whether it continues a block that would have been too wide


@dataclass
class Footnotes:
    """Remarks that cells refer to by number: each once, numbered from 1 in the order of their first use."""

    texts: list[str] = field(default_factory=list)

    def number(self, text: str) -> int:
        """Number of a remark."""
        if text not in self.texts:
            self.texts.append(text)
        return self.texts.index(text) + 1

    def numbered(self) -> Iterator[tuple[int, str]]:
        """All remarks with their numbers."""
        return enumerate(self.texts, start=1)


def table_blocks(
    table: ComparisonTable, every: bool = False, by_group: bool = True, widest: int | None = None
) -> Iterator[TableBlock]:
    """The blocks of a table, dataset by dataset.

    Args:
        table: the table.
        every: whether columns of single attacks are shown.
        by_group: whether every group of columns is a block of its own; else all columns of a dataset are one.
        widest: columns of a block at most.
    """
    for dataset in table.datasets:
        rows, measures = table.of(dataset), _shown_measures(table, dataset, every)
        grouped = groupby(measures, key=lambda measure: measure.group if by_group else None)
        for group in ([*each] for _, each in grouped):
            step = widest or len(group)
            for start in range(0, len(group), step):
                chosen = group[start : start + step]
                yield TableBlock(
                    dataset,
                    chosen[0].group,
                    tuple(measure.head for measure in chosen),
                    rows,
                    tuple(tuple(TableCell.of(measure, row.entry(measure)) for measure in chosen) for row in rows),
                    continued=start > 0,
                )


def row_notes(table: ComparisonTable) -> list[str]:
    """Every distinct note of the rows once, after the names of the rows that it concerns."""
    concerned: dict[str, list[str]] = {}
    for row in table.rows:
        name = f"{row.dataset}: {row.name}" if len(table.datasets) > 1 else row.name
        for note in row.notes:
            concerned.setdefault(note, []).append(name)
    return [f"{', '.join(names)}: {note}" for note, names in concerned.items()]


def _shown_measures(table: ComparisonTable, dataset: str, every: bool) -> list[Measure]:
    """Columns in which some row of the dataset has a number, or a reason that says more than that it was not run."""
    entries = {
        measure: [row.entry(measure) for row in table.of(dataset)]
        for measure in table.measures
        if every or not measure.key.startswith(SINGLE)
    }
    return [
        measure
        for measure, column in entries.items()
        if any(isinstance(entry, Value) or entry.reason not in NO_INFORMATION for entry in column)
    ]
