"""Marks: which rows of the table the parts of a figure stand for, and their values in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.artist import Artist
from matplotlib.figure import Figure

from app.results.comparison.display import TableCell
from app.results.comparison.table import Measure, Row, Value


@dataclass(frozen=True)
class Mark:
    """What a part of a figure stands for.

    Attributes:
        rows: names of its rows: one, or those that a curve joins.
        says: value and interval; empty for parts that only belong to their row, such as a label.
        each: the same for every point of a curve with markers, in the order in which they are drawn.
    """

    rows: tuple[str, ...]
    says: str = ""
    each: tuple[str, ...] = ()


class MarkedPlot(Figure):
    """A drawing that knows its marks, by the ids that they have in the SVG file."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.marks: dict[str, Mark] = {}


def marks_of(plot: Figure) -> dict[str, Mark]:
    """Marks of a drawing by id; none where it knows none."""
    return plot.marks if isinstance(plot, MarkedPlot) else {}


def mark(artist: Artist, *rows: str, kind: str = "point", says: str = "", each: Sequence[str] = ()) -> None:
    """Name a part of a drawing.

    Args:
        artist: the part, already in its drawing.
        rows: names of its rows, see `Mark`.
        kind: first part of its id.
        says: see `Mark`.
        each: see `Mark`.
    """
    plot = artist.get_figure()
    assert isinstance(plot, MarkedPlot)
    name = f"{kind}-{len(plot.marks) + 1}"
    artist.set_gid(name)
    plot.marks[name] = Mark(rows, says, tuple(each))


def in_words(row: Row, measures: Sequence[Measure], *keys: str) -> str:
    """Entries of a row as the table shows them, with their intervals; what is not available is left out.

    Args:
        row: the row.
        measures: columns of the table.
        keys: columns that are told, in this order.
    """
    columns = {measure.key: measure for measure in measures}
    entries = [(columns[key], row.values.get(key)) for key in keys if key in columns]
    return ", ".join(_entry(measure, value) for measure, value in entries if isinstance(value, Value))


def _entry(measure: Measure, value: Value) -> str:
    cell = TableCell.of(measure, value)
    return " ".join(part for part in (measure.title, cell.mean, measure.unit, cell.interval) if part)
