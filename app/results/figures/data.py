"""Data of all figures: the runs, the table, and one style per row that is the same in every figure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from matplotlib.figure import Figure

from app.results.comparison.rows import RowRuns
from app.results.comparison.table import ComparisonTable, Row, Value
from app.results.figures.marks import in_words
from app.results.figures.style import COLOURS, MARKERS, ReportFigure
from app.results.run.labels import NO_DEFENSE, without_strength
from app.results.run.store import RunRecord, Store

LINES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)))
"""Line styles: rows beyond the number of colours get the next one."""

Line = str | tuple[int, tuple[float, ...]]


@dataclass(frozen=True)
class RowStyle:
    """Name, label, colour, marker and line of a row in every figure; the label is as short as the table allows."""

    name: str
    label: str
    colour: str
    marker: str
    line: Line


def family_of(row: Row) -> tuple[str, str]:
    """Method and defense of a row, without the strength of the defense."""
    return row.method, without_strength(row.defense)


def row_styles(table: ComparisonTable) -> Mapping[str, RowStyle]:
    """Styles by `Row.name`; the same method and defense have the same style on every dataset.

    Strengths of one defense share a colour and a line, and differ in their markers.

    Args:
        table: all rows; parts that all names share are left out of the labels.
    """
    rows = {row.name: row for row in table.rows}
    methods, defenses = ({getattr(row, part) for row in rows.values()} for part in ("method", "defense"))
    styles = {}
    families: dict[tuple[str, str], list[str]] = {}
    for row in rows.values():
        families.setdefault(family_of(row), []).append(row.name)
    for name, row in rows.items():
        family = family_of(row)
        turn, place = divmod(list(families).index(family), len(COLOURS))
        marker = MARKERS[(place + 3 * turn + families[family].index(name)) % len(MARKERS)]
        label = _label(row, len(methods) > 1, len(defenses) > 1)
        styles[name] = RowStyle(name, label, COLOURS[place], marker, LINES[turn % len(LINES)])
    return styles


def _label(row: Row, by_method: bool, by_defense: bool) -> str:
    if by_method and by_defense:
        return row.name
    defense = "no defense" if row.defense == NO_DEFENSE else row.defense
    return row.method if by_method else defense


@dataclass(frozen=True, eq=False)
class FigureData:
    """A collection of runs and its table."""

    store: Store
    table: ComparisonTable

    @cached_property
    def styles(self) -> Mapping[str, RowStyle]:
        """Styles by `Row.name`."""
        return row_styles(self.table)

    @property
    def datasets(self) -> tuple[str, ...]:
        """Datasets of the table, in its order."""
        return self.table.datasets

    def style(self, row: Row) -> RowStyle:
        """Style of a row."""
        return self.styles[row.name]

    def row_runs(self, row: Row) -> RowRuns:
        """Runs of a row, by seed."""
        place = (row.dataset, row.method, row.defense)
        runs = [run for run in self.store.runs if (run.labels.dataset, run.labels.method, run.labels.defense) == place]
        return RowRuns(*place, tuple(sorted(runs, key=lambda run: run.labels.seed)))

    def runs(self, row: Row) -> tuple[RunRecord, ...]:
        """The same runs as a plain tuple."""
        return self.row_runs(row).runs

    def report_figure(
        self, stem: str, title: str, dataset: str, plot: Figure, shows: str, reading: str
    ) -> ReportFigure:
        """A figure of one dataset; key and title name the dataset where there are several.

        Args:
            stem: name of the kind of figure, fit for a file.
            title: heading.
            dataset: dataset that is drawn.
            plot: the drawing.
            shows: caption, see `ReportFigure`.
            reading: how to read it, see `ReportFigure`.
        """
        if len(self.datasets) > 1:
            number = self.datasets.index(dataset) + 1
            stem = f"{stem}-{number}-{re.sub(r'[^a-z0-9]+', '-', dataset.lower()).strip('-')}"
            title = f"{title}: {dataset}"
        numbers = {row.name: place for place, row in enumerate(self.table.rows) if row.dataset == dataset}
        return ReportFigure(stem, title, shows, reading, plot, numbers)

    def in_words(self, row: Row, *keys: str) -> str:
        """Entries of a row as the table shows them, with their intervals."""
        return in_words(row, self.table.measures, *keys)

    def baseline_first(self, dataset: str) -> list[Row]:
        """Rows of a dataset: the baseline first, then others without a defense, then the rest in the table's order."""

        def rank(row: Row) -> tuple[bool, bool]:
            return (row.method, row.defense) != self.store.baseline, row.defense != NO_DEFENSE

        return sorted(self.table.of(dataset), key=rank)

    def most_complete(self, dataset: str, keys: Iterable[str]) -> str | None:
        """Of some columns the one that most rows of a dataset have a number in, and of equal ones the first."""

        def count(key: str) -> int:
            return sum(isinstance(row.values.get(key), Value) for row in self.table.of(dataset))

        best = max(keys, key=count)
        return best if count(best) else None
