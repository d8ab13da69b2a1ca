"""The table on paper: one table per group of columns, since a page is not as wide as a screen scrolls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from app.results.comparison.entries import titled
from app.results.comparison.table import ComparisonTable, Measure
from app.results.report.footnotes import Footnotes
from app.results.report.markup import Html, tag
from app.results.report.table_cells import cell, direction, general_measures, group_of, row_head

WIDEST = 11
"""Columns that a page is wide enough for."""


def paper_tables(table: ComparisonTable, baseline: tuple[str, str] | None, notes: Footnotes) -> Html:
    """All rows with all measures but those of single attacks, which the details of the runs list.

    Args:
        table: all rows.
        baseline: method and defense that others are compared with.
        notes: of the table.
    """
    tables = (_table(table, title, measures, baseline, notes) for title, measures in _pages(table))
    return tag("div", *tables, class_="paper")


def _pages(table: ComparisonTable) -> Iterator[tuple[str, Sequence[Measure]]]:
    """Title and measures of every table: groups of columns, several together where they fit."""
    titles: list[str] = []
    measures: list[Measure] = []
    for (_, title), group in groupby(general_measures(table), key=group_of):
        found = list(group)
        if measures and len(measures) + len(found) > WIDEST:
            yield ", ".join(titles), measures
            titles, measures = [], []
        titles.append(title)
        measures = [*measures, *found]
    if measures:
        yield ", ".join(titles), measures


def _table(
    table: ComparisonTable,
    title: str,
    measures: Sequence[Measure],
    baseline: tuple[str, str] | None,
    notes: Footnotes,
) -> Html:
    heads = [tag("th", titled(measure), direction(measure), scope="col", class_="number") for measure in measures]
    first = [tag("th", name, scope="col") for name in ("Method / defense", "Dataset", "Seeds")]
    rows = [
        tag(
            "tr",
            row_head(table, row, notes, (row.method, row.defense) == baseline),
            tag("td", row.dataset),
            tag("td", len(row.seeds)),
            *(cell(measure, row.values.get(measure.key), notes) for measure in measures),
        )
        for row in table.rows
    ]
    return tag(
        "table", tag("caption", title), tag("thead", tag("tr", *first, *heads)), tag("tbody", *rows), class_="plain"
    )
