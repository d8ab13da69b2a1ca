"""The table in Markdown: one table per dataset, bold only where a row is best beyond chance."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from app.metrics.membership import NotAvailable
from app.results.comparison.entries import (
    LEGEND,
    Reasons,
    bounds_text,
    datasets_of,
    entry_of,
    mean_text,
    row_notes,
    shown_measures,
    titled,
)
from app.results.comparison.table import ComparisonTable, Measure, Row

SPECIAL = re.compile(r"([\\`*_\[\]<>|~])")


def as_markdown(table: ComparisonTable, every: bool = False) -> str:
    """The table in Markdown.

    Args:
        table: the table.
        every: also show the columns of single attacks.
    """
    reasons = Reasons()
    parts = [
        _of_dataset(dataset, table.of(dataset), shown_measures(table, dataset, every), reasons)
        for dataset in datasets_of(table)
    ]
    parts.append(escaped(LEGEND).format(best="**bold**:", level=r"\~"))
    if reasons.texts:
        parts.append("\n".join(f"{number}. {escaped(text)}" for number, text in reasons.numbered()))
    told = [*row_notes(table.rows, len(datasets_of(table)) > 1), *table.notes]
    if told:
        parts.append("\n".join(f"- {escaped(text)}" for text in told))
    return "\n\n".join(parts) + "\n"


def escaped(text: str) -> str:
    """Text that Markdown shows as it is, in one line and within a cell of a table."""
    return SPECIAL.sub(r"\\\1", " ".join(text.split()))


def _of_dataset(dataset: str, rows: Sequence[Row], measures: Sequence[Measure], reasons: Reasons) -> str:
    head = ["method", "defense", "seeds", *(escaped(titled(measure)) for measure in measures)]
    ruler = [":--", ":--", "--:", *["--:"] * len(measures)]
    lines = [head, ruler, *(list(_cells(row, measures, reasons)) for row in rows)]
    return "\n".join([f"**{escaped(dataset)}**", "", *(f"| {' | '.join(line)} |" for line in lines)])


def _cells(row: Row, measures: Sequence[Measure], reasons: Reasons) -> Iterator[str]:
    yield from (escaped(row.method), escaped(row.defense), str(len(row.seeds)))
    for measure in measures:
        entry = entry_of(row, measure)
        if isinstance(entry, NotAvailable):
            yield f"N/A ({reasons.number(entry)})"
            continue
        mean = mean_text(measure, entry)
        shown = {"best": f"**{mean}**", "indistinguishable": rf"{mean}\~"}.get(entry.standing, mean)
        marks = f"({escaped(', '.join(entry.marks))})" if entry.marks else ""
        yield " ".join(part for part in (shown, escaped(bounds_text(measure, entry)), marks) if part)
