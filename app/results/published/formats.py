"""Ours beside theirs as text, as Markdown, and as cells for a page."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from app.metrics.intervals import Interval
from app.metrics.membership import NotAvailable
from app.results.published.side_by_side import PublishedComparison, PublishedRow
from app.results.published.values import PAPER, RECONSTRUCTION, PublishedFigure

HEADS = ("where", "cell", "measure", "theirs", "ours", "difference", "verdict")
WIDTH = 120
SIGNS = {"is": "", "about": "about ", "above": "> ", "below": "< "}
DIGITS = {"images": 1}
"""Decimal places of units that need others than two."""


@dataclass(frozen=True)
class PublishedCells:
    """One row in words.

    Attributes:
        where: table and row of the paper.
        cell: dataset, method and defense.
        measure: what is compared.
        theirs: the printed value with its spread and unit.
        ours: our result with half of its interval, or a dash.
        difference: ours less theirs with its sign, or a dash.
        verdict: `within`, `outside`, `holds`, `does not hold`, or what is missing.
        remark: what must be known to read the row; may be empty.
    """

    where: str
    cell: str
    measure: str
    theirs: str
    ours: str
    difference: str
    verdict: str
    remark: str

    @property
    def shown(self) -> tuple[str, ...]:
        """The cells under HEADS."""
        return (self.where, self.cell, self.measure, self.theirs, self.ours, self.difference, self.verdict)


def as_cells(compared: PublishedComparison, only_measured: bool = False) -> tuple[PublishedCells, ...]:
    """All rows in words.

    Args:
        compared: ours beside theirs.
        only_measured: leave out published numbers without a result of ours.
    """
    return tuple(map(_cells, compared.measured if only_measured else compared.rows))


def as_text(compared: PublishedComparison, only_measured: bool = True) -> str:
    """A table for the terminal, caveats first, remarks last."""
    cells = as_cells(compared, only_measured)
    widths = [max(map(len, column)) for column in zip(HEADS, *(each.shown for each in cells), strict=True)]
    rows = [HEADS, tuple("-" * width for width in widths), *(each.shown for each in cells)]
    table = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    told = [compared.summary, *(f"note: {caveat}" for caveat in compared.caveats)]
    remarks = [f"remark: {text}" for text in _remarks(cells)]
    before, after = ([line for text in texts for line in _wrapped(text)] for texts in (told, remarks))
    return (
        "\n".join([*before, *([""] if cells else []), *(table if cells else []), *([""] if after else []), *after])
        + "\n"
    )


def as_markdown(compared: PublishedComparison, only_measured: bool = True) -> str:
    """A Markdown table, caveats before it, remarks after it."""
    cells = as_cells(compared, only_measured)
    table = [_line(HEADS), _line(["---"] * len(HEADS)), *(_line(each.shown) for each in cells)] if cells else []
    before = [compared.summary + ".", *(f"*{caveat}.*" for caveat in compared.caveats)]
    remarks = [f"- {text}" for text in _remarks(cells)]
    parts = ["\n\n".join(before), "\n".join(table), "\n".join(remarks)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _cells(row: PublishedRow) -> PublishedCells:
    figure, ours = row.figure, row.ours
    client = "" if figure.client is None else f", client {figure.client}"
    statistic = "" if figure.statistic == "mean" else f", {figure.statistic} of the runs"
    reason = ours.reason if isinstance(ours, NotAvailable) else ""
    remarks = [text for text in (figure.remark, _rounds(row)) if text]
    return PublishedCells(
        where=figure.where,
        cell=" / ".join(figure.place),
        measure=f"{_titled(figure.measure)}{client}{statistic}",
        theirs=f"{SIGNS[figure.relation]}{_with_spread(figure, figure.value, figure.spread)}",
        ours="-" if isinstance(ours, NotAvailable) else _with_spread(figure, ours.value, _half(ours.interval)),
        difference="-" if row.difference is None else f"{row.difference:+.{_digits(figure)}f}",
        verdict=reason or _verdict(row),
        remark="; ".join(remarks),
    )


def _titled(measure: str) -> str:
    """A measure without the beginnings that tell where it is read from."""
    if measure.startswith(PAPER):
        result, _, name = measure.removeprefix(PAPER).partition("/")
        return f"{name} ({result})"
    return measure.removeprefix(RECONSTRUCTION).removeprefix("details/")


def _verdict(row: PublishedRow) -> str:
    if row.agrees is None:
        return "no interval"
    if row.figure.relation in ("above", "below"):
        return "holds" if row.agrees else "does not hold"
    return "within" if row.agrees else "outside"


def _rounds(row: PublishedRow) -> str:
    return f"ours after {row.shorter[0]} of {row.shorter[1]} rounds" if row.shorter else ""


def _half(interval: Interval | NotAvailable) -> float | None:
    return interval.half_width if isinstance(interval, Interval) else None


def _with_spread(figure: PublishedFigure, value: float, spread: float | None) -> str:
    digits, unit = _digits(figure), f" {figure.unit}" if figure.unit else ""
    return f"{value:.{digits}f}{'' if spread is None else f' ± {spread:.{digits}f}'}{unit}"


def _digits(figure: PublishedFigure) -> int:
    return DIGITS.get(figure.unit, 2)


def _remarks(cells: tuple[PublishedCells, ...]) -> list[str]:
    """Every remark once, with the first row that it belongs to and how many more."""
    places: dict[str, list[str]] = {}
    for each in cells:
        if each.remark:
            places.setdefault(each.remark, []).append(f"{each.where}, {each.measure}")
    return [f"{at[0]}{f' and {len(at) - 1} more' if len(at) > 1 else ''}: {text}" for text, at in places.items()]


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent="  ")


def _line(cells: tuple[str, ...] | list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
