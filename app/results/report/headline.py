"""The headline table: accuracy, leakage, budget, cost and verdict of every row, in cells of the whole table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from app.results.comparison.effects import RELEASED, UPLOADS, utility_of
from app.results.comparison.table import ComparisonTable, Row
from app.results.comparison.verdict_tables import REASON, VERDICT, WordTable
from app.results.report.table import PageCell, PageColumn, PageRow, PageTable
from app.results.run.labels import NO_DEFENSE

TITLES = {
    RELEASED: "AUC, released",
    UPLOADS: "AUC, uploads",
    "recovered_share": "Recovered images",
    "epsilon": "Epsilon",
    "seconds_ratio": "Slowdown",
    "seconds": "Time per round",
    "megabytes_up": "Upload",
}
"""Heads of the columns by key; that of accuracy depends on what was measured."""


@dataclass(frozen=True)
class RowVerdict:
    """The class of a defense and its reason in words; the reason is empty for rows without a verdict."""

    verdict: str
    reason: str = ""


@dataclass(frozen=True)
class HeadlineRow:
    """A line: the row, some of its cells, and its verdict, None where the comparison has none."""

    line: PageRow
    cells: tuple[PageCell, ...]
    verdict: RowVerdict | None


@dataclass(frozen=True)
class Headline:
    """The headline table."""

    columns: tuple[PageColumn, ...]
    rows: tuple[HeadlineRow, ...]
    several_datasets: bool  # whether rows name their dataset
    has_verdicts: bool  # whether there is a column of verdicts


def headline(table: ComparisonTable, whole: PageTable, words: Sequence[WordTable]) -> Headline:
    """The columns that a reader looks at first.

    Args:
        table: the table.
        whole: all its cells.
        words: its tables in words, which have the verdicts.
    """
    keys = [column.key for column in whole.columns]
    places = [keys.index(key) for key in _keys(table) if key in keys]
    columns = tuple(replace(whole.columns[place], head=_head(whole.columns[place])) for place in places)
    verdicts = _verdicts(words)
    rows = tuple(
        HeadlineRow(line, tuple(line.cells[place] for place in places), _verdict(line.row, verdicts))
        for line in whole.rows
    )
    return Headline(columns, rows, whole.several_datasets, bool(verdicts))


def _keys(table: ComparisonTable) -> Iterator[str]:
    """Keys of the columns in their order; seconds only where there is no slowdown."""
    known = {measure.key for measure in table.measures}
    yield utility_of(table.rows)
    yield from (RELEASED, UPLOADS)
    if not known & {RELEASED, UPLOADS}:
        yield "recovered_share"
    yield from (measure.key for measure in table.measures if measure.group == "formal")
    yield "seconds_ratio" if "seconds_ratio" in known else "seconds"
    yield "megabytes_up"


def _head(column: PageColumn) -> str:
    """A short head with the unit of the column."""
    _, bracket, unit = column.head.rpartition(" (")
    if column.key in TITLES:
        return f"{TITLES[column.key]}{bracket}{unit}" if bracket else TITLES[column.key]
    named = "accuracy" in column.head.lower() or column.group != "utility"
    return f"{column.head[:1].upper()}{column.head[1:]}" if named else f"Accuracy, {column.head}"


def _verdicts(words: Sequence[WordTable]) -> Mapping[tuple[str, str], RowVerdict]:
    """Verdicts by dataset and name of the row."""
    return {
        (row.dataset, row.name): RowVerdict(line[each.heads.index(VERDICT)], line[each.heads.index(REASON)])
        for each in words
        if VERDICT in each.heads
        for row, line in zip(each.about, each.rows, strict=True)
        if row is not None
    }


def _verdict(row: Row, verdicts: Mapping[tuple[str, str], RowVerdict]) -> RowVerdict | None:
    if not verdicts:
        return None
    missing = "no defense" if row.defense == NO_DEFENSE else "not compared: its method was not run without a defense"
    return verdicts.get((row.dataset, row.name), RowVerdict(missing))
