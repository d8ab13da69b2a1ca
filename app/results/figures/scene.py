"""What all pictures draw from: the runs, the table, and one look per row that is the same in every picture."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from app.results.comparison.rows import RowRuns
from app.results.comparison.table import ComparisonTable, Row, Value
from app.results.figures.style import COLOURS, MARKERS
from app.results.run.labels import NO_DEFENSE
from app.results.run.store import RunRecord, Store

LINES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)))
"""Line styles: rows beyond the number of colours get the next one."""

Line = str | tuple[int, tuple[float, ...]]


@dataclass(frozen=True)
class RowStyle:
    """How a row looks in every picture.

    Attributes:
        label: its name, as short as the table allows.
        colour: of its marks and lines.
        marker: of its points.
        line: style of its lines.
    """

    label: str
    colour: str
    marker: str
    line: Line


def series_of(table: ComparisonTable) -> Mapping[str, RowStyle]:
    """Looks by `Row.name`; the same method and defense looks the same on every dataset.

    Args:
        table: all rows; parts that all names share are left out of the labels.
    """
    rows = {row.name: row for row in table.rows}
    methods, defenses = ({getattr(row, part) for row in rows.values()} for part in ("method", "defense"))
    found = {}
    for number, (name, row) in enumerate(rows.items()):
        turn, place = divmod(number, len(COLOURS))
        look = (COLOURS[place], MARKERS[(place + 3 * turn) % len(MARKERS)], LINES[turn % len(LINES)])
        found[name] = RowStyle(_label(row, len(methods) > 1, len(defenses) > 1), *look)
    return found


def _label(row: Row, by_method: bool, by_defense: bool) -> str:
    if by_method and by_defense:
        return row.name
    defense = "no defense" if row.defense == NO_DEFENSE else row.defense
    return row.method if by_method else defense


@dataclass(frozen=True, eq=False)
class FigureData:
    """A collection of runs and its table, as pictures see them.

    Attributes:
        store: the runs.
        table: means over seeds.
    """

    store: Store
    table: ComparisonTable

    @cached_property
    def series(self) -> Mapping[str, RowStyle]:
        """Looks by `Row.name`."""
        return series_of(self.table)

    @cached_property
    def datasets(self) -> tuple[str, ...]:
        """Datasets of the table, in its order."""
        return tuple(dict.fromkeys(row.dataset for row in self.table.rows))

    def look(self, row: Row) -> RowStyle:
        """How a row looks."""
        return self.series[row.name]

    def cell(self, row: Row) -> RowRuns:
        """Runs behind a row, by seed."""
        place = (row.dataset, row.method, row.defense)
        found = [run for run in self.store.runs if (run.labels.dataset, run.labels.method, run.labels.defense) == place]
        return RowRuns(*place, tuple(sorted(found, key=lambda run: run.labels.seed)))

    def runs(self, row: Row) -> tuple[RunRecord, ...]:
        """The same runs by themselves."""
        return self.cell(row).runs

    def key(self, stem: str, dataset: str) -> str:
        """Unique name of a picture, fit for a file."""
        if len(self.datasets) == 1:
            return stem
        number = self.datasets.index(dataset) + 1
        return f"{stem}-{number}-{re.sub(r'[^a-z0-9]+', '-', dataset.lower()).strip('-')}"

    def title(self, text: str, dataset: str) -> str:
        """Heading of a picture; it names the dataset where there are several."""
        return text if len(self.datasets) == 1 else f"{text}: {dataset}"

    def ordered(self, dataset: str) -> list[Row]:
        """Rows of a dataset: the baseline first, then others without a defense, then the rest in the table's order."""

        def rank(row: Row) -> tuple[bool, bool]:
            return (row.method, row.defense) != self.store.baseline, row.defense != NO_DEFENSE

        return sorted(self.table.of(dataset), key=rank)

    def fullest(self, dataset: str, keys: Iterable[str]) -> str | None:
        """Of some columns the one that most rows of a dataset have a number in, and of equal ones the first."""

        def numbers(key: str) -> int:
            return sum(isinstance(row.values.get(key), Value) for row in self.table.of(dataset))

        best = max(keys, key=numbers)
        return best if numbers(best) else None
