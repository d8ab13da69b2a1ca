"""Published figures beside ours, as a part of the page."""

from __future__ import annotations

from app.results.published.formats import HEADS, PublishedCells, as_cells
from app.results.published.side_by_side import PublishedComparison
from app.results.report.footnotes import Footnotes
from app.results.report.markup import Html, items, joined, plain_table, tag


def published_section(compared: PublishedComparison) -> Html:
    """How many agree, what stands before any difference, and every published number with ours.

    Args:
        compared: ours beside theirs.
    """
    notes = Footnotes("published-note")
    rows = [_row(cells, notes) for cells in as_cells(compared)]
    return joined(
        (
            tag("p", f"{compared.summary}."),
            items(compared.caveats),
            plain_table([head.capitalize() for head in HEADS], rows, "What papers print, and ours"),
            notes.listed(),
        )
    )


def _row(cells: PublishedCells, notes: Footnotes) -> tuple[object, ...]:
    where, *others = cells.shown
    return (joined((where, notes.link(cells.remark) if cells.remark else "")), *others)
