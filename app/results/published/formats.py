"""Published results beside ours: as text, as Markdown, and as cells of the page."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from app.common.wording import LOCAL_TEST, RECEIVED
from app.metrics.intervals import Interval
from app.metrics.membership import NotAvailable
from app.results.comparison.formats import markdown_rows
from app.results.published.side_by_side import PublishedComparison, PublishedRow
from app.results.published.values import CORRELATION, LEAD, PAPER, RECONSTRUCTION, PublishedFigure, correlated
from app.results.text_table import table_lines

TITLES = {
    "server_accuracy": "server",
    "clients_accuracy": RECEIVED,
    "everyone_accuracy": LOCAL_TEST,
    "everyone_majority": f"{LOCAL_TEST}, majority",
    "everyone_minority": f"{LOCAL_TEST}, minority",
    "everyone_gap": f"{LOCAL_TEST}, gap",
    "everyone_variance": f"{LOCAL_TEST}, variance",
}
"""Accuracies by the names that the program has for them everywhere."""

HEADS = ("where", "cell", "measure", "theirs", "ours", "difference", "verdict")
WIDTH = 120
SIGNS = {"is": "", "about": "about ", "above": "> ", "below": "< "}
DIGITS = {"images": 1}
"""Decimal places of units that need others than two."""


@dataclass(frozen=True)
class PublishedCells:
    """A row as text."""

    where: str  # table and row of the paper
    cell: str  # dataset, method and defense
    measure: str  # what is compared
    theirs: str  # the printed value with its spread and unit
    ours: str  # our result with half of its interval, or a dash
    difference: str  # ours minus theirs with its sign, or a dash
    verdict: str  # `within`, `outside`, `holds`, `does not hold`, or what is missing
    remark: str  # remark on the row; may be empty

    @property
    def shown(self) -> tuple[str, ...]:
        """The cells under HEADS."""
        return tuple(getattr(self, head) for head in HEADS)


def as_cells(compared: PublishedComparison, only_measured: bool = False) -> tuple[PublishedCells, ...]:
    """All rows as text, or only those with a result of ours."""
    return tuple(map(_cells, compared.measured if only_measured else compared.rows))


def as_text(compared: PublishedComparison, only_measured: bool = True) -> str:
    """A table for the terminal, caveats first, remarks last."""
    cells = as_cells(compared, only_measured)
    before = [compared.summary, *(f"note: {caveat}" for caveat in compared.caveats)]
    table = table_lines(HEADS, [each.shown for each in cells], left=range(len(HEADS))) if cells else []
    parts = [_wrapped(before), table, _wrapped([f"remark: {text}" for text in _remarks(cells)])]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def as_markdown(compared: PublishedComparison, only_measured: bool = True) -> str:
    """A Markdown table, caveats before it, remarks after it."""
    cells = as_cells(compared, only_measured)
    rows = [[text.replace("|", "\\|") for text in each.shown] for each in cells]
    before = [f"{compared.summary}.", *(f"*{caveat}.*" for caveat in compared.caveats)]
    table = markdown_rows([HEADS, ["---"] * len(HEADS), *rows]) if cells else ""
    remarks = "\n".join(f"- {text}" for text in _remarks(cells))
    return "\n\n".join(part for part in (*before, table, remarks) if part) + "\n"


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
    """A measure without the prefix that says where it is read from."""
    if measure.startswith(PAPER):
        result, _, name = measure.removeprefix(PAPER).partition("/")
        return f"{name} ({result})"
    if measure.startswith(LEAD):
        method, _, name = measure.removeprefix(LEAD).partition("/")
        return f"{_titled(name)} less that of {method}"
    if measure.startswith(CORRELATION):
        first, second, name = correlated(measure)
        return f"pooled correlation of {first} and {second}, {name}"
    return TITLES.get(measure) or measure.removeprefix(RECONSTRUCTION).removeprefix("details/")


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


def _wrapped(texts: list[str]) -> list[str]:
    return [line for text in texts for line in textwrap.wrap(text, WIDTH, subsequent_indent="  ")]
