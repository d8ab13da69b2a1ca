"""Text for the terminal: tables whose columns are aligned, list items, counts."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Sequence

GAP = "  "


def text_table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    left: Collection[int] = (0,),
    gap: str = GAP,
    indent: str = "",
    rule: bool = True,
    limit: int | None = None,
) -> str:
    """Head, rule and rows, one per line; lines end without blanks.

    Args:
        head: a title per column, of one or more lines; empty for a table without a head.
        rows: the cells, one line each; every row has as many as the head.
        left: columns that are aligned on the left; all others are aligned on the right.
        gap: text between columns.
        indent: text in front of every line.
        rule: whether a line of dashes follows the head.
        limit: characters of a line at most; a first cell that is too long for it stands on a line above its row.
    """
    return "\n".join(table_lines(head, rows, left=left, gap=gap, indent=indent, rule=rule, limit=limit))


def table_lines(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    left: Collection[int] = (0,),
    gap: str = GAP,
    indent: str = "",
    rule: bool = True,
    limit: int | None = None,
) -> list[str]:
    """The parts of `text_table`: the lines of the head, the rule, and one text per row."""
    titles = _head_lines(head)
    widths = [max(map(len, column)) for column in zip(*titles, *rows, strict=True)]
    if limit is not None:
        room = limit - len(indent) - sum(widths[1:]) - len(gap) * (len(widths) - 1)
        widths[0] = max((len(row[0]) for row in (*titles, *rows) if len(row[0]) <= room), default=0)

    def line(cells: Sequence[str]) -> str:
        if len(cells[0]) > widths[0]:
            return f"{indent}{cells[0]}\n{line(['', *cells[1:]])}"
        aligned = [
            cell.ljust(width) if place in left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return (indent + gap.join(aligned)).rstrip()

    ruler = [indent + "-" * (sum(widths) + len(gap) * (len(widths) - 1))] if titles and rule else []
    return [*map(line, titles), *ruler, *map(line, rows)]


def _head_lines(head: Sequence[str]) -> list[list[str]]:
    """The titles line by line, all of them equally high."""
    parts = [title.split("\n") for title in head]
    height = max(map(len, parts), default=0)
    return [[part[place] if place < len(part) else "" for part in parts] for place in range(height)]


def bullet(text: str, width: int = 110) -> str:
    """A list item, wrapped at `width` characters; words are never broken."""
    return textwrap.fill(
        text, width, initial_indent="- ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
