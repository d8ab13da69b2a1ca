"""The whole table of the page, as data for its template: on the screen one table, on paper one per group of columns."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from app.common.wording import counted
from app.metrics.membership import NotAvailable
from app.results.comparison.display import SINGLE, TableCell
from app.results.comparison.table import ComparisonTable, Group, Measure, Row, Standing, Value
from app.results.report.notes import NoteLink, PageNotes

GROUPS: dict[Group, str] = {"utility": "Utility", "leakage": "Leakage", "formal": "Formal privacy", "cost": "Cost"}
EACH = "attack"
"""Group of single attacks, of which there may be many: they are shown on demand."""

STANDINGS: dict[Standing, str] = {
    "best": "significantly best of its dataset",
    "indistinguishable": "not significantly different from the best of its dataset",
    "worse": "significantly worse than the best of its dataset",
    "unknown": "too few seeds to test whether it is best",
}
INTERVALS = {"seeds": "over seeds", "samples": "over samples of one run"}
LABELS = ("dataset", "method", "defense")
MOST_NOTES = 3
"""Notes of a row that it links; of more, only their number is shown, with a link to the details of the row."""

WIDEST = 11
"""Columns of a table on paper."""


@dataclass(frozen=True)
class PageColumn:
    """A column: its key, its head with the unit, its group, its meaning in sentences, and what is better."""

    key: str
    head: str
    group: str
    group_title: str
    meaning: str
    lower_is_better: bool | None

    @classmethod
    def of(cls, measure: Measure) -> PageColumn:
        """The column of a measure."""
        single = measure.key.startswith(SINGLE)
        group, title = (EACH, "Each attack") if single else (measure.group, GROUPS[measure.group])
        meaning = f"{_capital(measure.meaning.rstrip('.'))}."
        better = {True: " Lower is better.", False: " Higher is better.", None: ""}[measure.lower_is_better]
        return cls(measure.key, measure.head, group, title, meaning + better, measure.lower_is_better)


@dataclass(frozen=True)
class PageCell:
    """A cell."""

    column: PageColumn  # column that it belongs to
    shown: TableCell  # the formatted entry
    value: float | None = None  # for sorting; None where there is no finite number
    tip: str = ""  # the entry in sentences
    note: NoteLink | None = None  # link to the reason where there is no number


@dataclass(frozen=True)
class PageRow:
    """A row with links to its notes and its cells."""

    row: Row
    place: int  # of the row in the table, from 0
    is_baseline: bool
    links: tuple[NoteLink, ...]
    cells: tuple[PageCell, ...]


@dataclass(frozen=True)
class PageTable:
    """The table of the page."""

    columns: tuple[PageColumn, ...]  # all columns
    rows: tuple[PageRow, ...]  # all rows
    several_datasets: bool  # whether rows name their dataset
    choices: dict[str, list[str]]  # names to filter by, for every label that has more than one
    paper: tuple[tuple[str, tuple[int, ...]], ...]  # title and places of the columns of every table on paper
    notes: PageNotes  # footnotes of the table

    @property
    def groups(self) -> list[tuple[str, str, int]]:
        """Name, title and number of columns of every group."""
        grouped = groupby(self.columns, key=lambda column: (column.group, column.group_title))
        return [(name, title, len(list(columns))) for (name, title), columns in grouped]

    @property
    def group_titles(self) -> dict[str, str]:
        """Titles of all groups by name."""
        return {column.group: column.group_title for column in self.columns}

    @property
    def general(self) -> list[PageColumn]:
        """Columns without those of single attacks."""
        return [column for column in self.columns if column.group != EACH]


def page_table(table: ComparisonTable, baseline: tuple[str, str] | None) -> PageTable:
    """Prepare a table for its template.

    Args:
        table: the table.
        baseline: method and defense that others are compared with.
    """
    notes = PageNotes(prefix="note")
    columns = tuple(map(PageColumn.of, table.measures))
    rows = tuple(_row(table, number, columns, notes, baseline) for number in range(len(table.rows)))
    choices = {name: list(dict.fromkeys(getattr(row, name) for row in table.rows)) for name in LABELS}
    choices = {name: names for name, names in choices.items() if len(names) > 1}
    return PageTable(columns, rows, len(table.datasets) > 1, choices, tuple(_paper_tables(columns)), notes)


def remarks_id(number: int) -> str:
    """Id of the remarks on a row in the details of the runs, by its place in the table."""
    return f"remarks-{number}"


def _row(
    table: ComparisonTable,
    number: int,
    columns: Sequence[PageColumn],
    notes: PageNotes,
    baseline: tuple[str, str] | None,
) -> PageRow:
    row = table.rows[number]
    if len(row.notes) <= MOST_NOTES:
        links = tuple(map(notes.link, row.notes))
    else:
        count = counted(len(row.notes), "remark")
        links = (NoteLink(remarks_id(number), count, f"{count}, listed with the runs of the row"),)
    pairs = zip(columns, table.measures, strict=True)
    cells = tuple(_cell(column, measure, row.entry(measure), notes) for column, measure in pairs)
    return PageRow(row, number, (row.method, row.defense) == baseline, links, cells)


def _cell(column: PageColumn, measure: Measure, entry: Value | NotAvailable, notes: PageNotes) -> PageCell:
    shown = TableCell.of(measure, entry)
    if isinstance(entry, NotAvailable):
        return PageCell(column, shown, note=notes.link(entry.reason, "N/A"))
    return PageCell(
        column, shown, entry.mean if math.isfinite(entry.mean) else None, " ".join(_sentences(measure, entry))
    )


def _sentences(measure: Measure, value: Value) -> Iterator[str]:
    """Number, interval, seeds and marks of an entry."""
    unit = f" {measure.unit}" if measure.unit else ""
    yield f"{measure.title}: {measure.number(value.mean)}{unit}, {STANDINGS[value.standing]}."
    if value.interval != "none" and math.isfinite(value.low) and math.isfinite(value.high):
        ends = f"{measure.number(value.low)} to {measure.number(value.high)}{unit}"
        yield f"95 % interval {INTERVALS[value.interval]}: {ends}."
    if len(value.by_seed) > 1:
        seeds = ", ".join(f"{measure.number(one)} (seed {seed})" for seed, one in sorted(value.by_seed.items()))
        yield f"By seed: {seeds}."
    if value.marks:
        yield f"{', '.join(value.marks).capitalize()}."


def _paper_tables(columns: Sequence[PageColumn]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Title and places of columns: groups without single attacks, several in one table where they fit."""
    titles: list[str] = []
    places: list[int] = []
    numbered = [(place, column) for place, column in enumerate(columns) if column.group != EACH]
    for title, group in groupby(numbered, key=lambda pair: pair[1].group_title):
        added = [place for place, _ in group]
        if places and len(places) + len(added) > WIDEST:
            yield ", ".join(titles), tuple(places)
            titles, places = [], []
        titles, places = [*titles, title], [*places, *added]
    if places:
        yield ", ".join(titles), tuple(places)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
