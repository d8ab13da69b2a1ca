"""The table for a terminal: aligned, a block per group of measures, no wider than the terminal."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Sequence

from app.metrics.membership import NotAvailable
from app.results.comparison.entries import (
    LEGEND,
    Reasons,
    bounds_text,
    datasets_of,
    entry_of,
    groups_of,
    mean_text,
    row_notes,
    shown_measures,
    titled,
)
from app.results.comparison.table import ComparisonTable, Measure, Row, Value

BEST, LEVEL, GAP = "*", "~", "  "
SIGNS = {"best": BEST, "indistinguishable": LEVEL}
NARROWEST, USUAL = 40, 120
"""Columns of a terminal that is too narrow to be obeyed, and of one that does not tell."""


def as_text(table: ComparisonTable, width: int | None = None, every: bool = False) -> str:
    """The table for a terminal.

    Args:
        table: the table.
        width: columns of the terminal; without a number, those it tells.
        every: also show the columns of single attacks.
    """
    room = max(NARROWEST, width or shutil.get_terminal_size((USUAL, 24)).columns)
    reasons = Reasons()
    parts = [
        block
        for dataset in datasets_of(table)
        for group in groups_of(shown_measures(table, dataset, every))
        for block in _blocks(table.of(dataset), group, room, reasons)
    ]
    parts.append(_filled(LEGEND.format(best=BEST, level=LEVEL), room, ""))
    listed = {
        "N/A:": [f"({number}) {text}" for number, text in reasons.numbered()],
        "rows:": row_notes(table.rows, len(datasets_of(table)) > 1),
        "how to read it:": list(table.notes),
    }
    parts += ["\n".join([title, *(_filled(text, room) for text in texts)]) for title, texts in listed.items() if texts]
    return "\n\n".join(parts) + "\n"


def _blocks(rows: Sequence[Row], measures: Sequence[Measure], room: int, reasons: Reasons) -> Iterator[str]:
    """Tables of the columns that fit beside each other."""
    head = [f"{rows[0].dataset}: {measures[0].group}", *(row.name for row in rows)]
    first = [text.ljust(max(map(len, head))) for text in head]
    seeds = _column(["seeds", *(str(len(row.seeds)) for row in rows)])
    columns = [_column([titled(one), *_cells(rows, one, reasons)]) for one in measures]
    start = [first, seeds]
    block: list[list[str]] = []
    for column in columns:
        if block and sum(len(part[0]) + len(GAP) for part in (*start, *block, column)) - len(GAP) > room:
            yield _joined([*start, *block])
            block = []
        block.append(column)
    yield _joined([*start, *block])


def _cells(rows: Sequence[Row], measure: Measure, reasons: Reasons) -> list[str]:
    """One column, numbers under each other."""
    entries = [entry_of(row, measure) for row in rows]
    signed = any(isinstance(entry, Value) and entry.standing in SIGNS for entry in entries)
    parts = [_parts(measure, entry, signed) if isinstance(entry, Value) else None for entry in entries]
    widths = [max((len(part[place]) for part in parts if part), default=0) for place in range(3)]
    lines = []
    for entry, part in zip(entries, parts, strict=True):
        if part is None:
            lines.append(f"N/A ({reasons.number(entry)})" if isinstance(entry, NotAvailable) else "")
            continue
        mean, bounds, tail = part
        told = (f"{mean:>{widths[0]}}", f"{bounds:>{widths[1]}}", f"{tail:<{widths[2]}}")
        lines.append(" ".join(piece for piece, wide in zip(told, widths, strict=True) if wide).rstrip())
    return lines


def _parts(measure: Measure, value: Value, signed: bool) -> tuple[str, str, str]:
    """Mean, interval, and standing with marks."""
    sign = f"{SIGNS.get(value.standing, ' ')} " if signed else ""
    return mean_text(measure, value), bounds_text(measure, value), f"{sign}{', '.join(value.marks)}".rstrip()


def _column(texts: list[str]) -> list[str]:
    wide = max(map(len, texts))
    return [text.ljust(wide) for text in texts]


def _joined(columns: Sequence[Sequence[str]]) -> str:
    """Columns beside each other, a ruler under the head."""
    lines = [GAP.join(cells) for cells in zip(*columns, strict=True)]
    return "\n".join(line.rstrip() for line in (lines[0], "-" * len(lines[0]), *lines[1:]))


def _filled(text: str, room: int, front: str = "- ") -> str:
    return textwrap.fill(
        text,
        room,
        initial_indent=front,
        subsequent_indent=" " * len(front),
        break_long_words=False,
        break_on_hyphens=False,
    )
