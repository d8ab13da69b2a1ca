"""Heads and cells of the table, on the screen and on paper."""

from __future__ import annotations

import math
from collections.abc import Iterator

from app.metrics.membership import NotAvailable
from app.results.comparison.entries import SINGLE
from app.results.comparison.table import ComparisonTable, Measure, Row, Value
from app.results.report.conclusions import GROUPS, STANDINGS
from app.results.report.details import remarks_id
from app.results.report.entries import half_width, number
from app.results.report.footnotes import Footnotes
from app.results.report.markup import Html, joined, tag

EACH = "attack"
"""Group on the page of single attacks, of which there may be many: they are shown on demand."""

INTERVALS = {"seeds": "over seeds", "samples": "over samples of one run"}
MOST_NOTES = 3
"""Notes of a row that it has links to."""


def group_of(measure: Measure) -> tuple[str, str]:
    """Short name and title of the group that a column belongs to on the page."""
    if measure.key.startswith(SINGLE):
        return EACH, "Each attack"
    return measure.group, GROUPS[measure.group]


def general_measures(table: ComparisonTable) -> tuple[Measure, ...]:
    """The columns without those of single attacks."""
    return tuple(measure for measure in table.measures if group_of(measure)[0] != EACH)


def direction(measure: Measure) -> Html:
    """An arrow towards what is better."""
    if measure.lower_is_better is None:
        return Html("")
    arrow, words = ("↓", "lower is better") if measure.lower_is_better else ("↑", "higher is better")
    return tag("span", tag("span", arrow, aria_hidden="true"), tag("span", f", {words}", class_="unseen"), class_="way")


def meaning(measure: Measure) -> str:
    """What a column means, and what is better, in sentences."""
    told = measure.meaning.rstrip(".")
    ways = {True: " Lower is better.", False: " Higher is better.", None: ""}
    return f"{told[:1].upper()}{told[1:]}.{ways[measure.lower_is_better]}"


def row_head(table: ComparisonTable, row: Row, notes: Footnotes, baseline: bool) -> Html:
    """Method and defense of a row with its notes.

    Args:
        table: to which the row belongs.
        row: the row.
        notes: of the table.
        baseline: whether others are compared with it.
    """
    remarks = joined(_remarks(table, row, notes), " ")
    mark = tag("small", "baseline", class_="mark") if baseline else ""
    return tag("th", tag("span", row.name, class_="name"), remarks, mark, scope="row", data_value=row.name)


def _remarks(table: ComparisonTable, row: Row, notes: Footnotes) -> Iterator[Html]:
    """Links to the notes of a row, or to its details where there are many."""
    if len(row.notes) <= MOST_NOTES:
        yield from map(notes.link, row.notes)
        return
    told = f"{len(row.notes)} remarks, listed with the runs of the row"
    target = f"#{remarks_id(table.rows.index(row))}"
    yield tag("a", tag("sup", f"{len(row.notes)} remarks"), href=target, class_="note", data_tip=told)


def cell(measure: Measure, value: Value | NotAvailable | None, notes: Footnotes) -> Html:
    """An entry: number, half of its interval, signs and marks, or why there is no number.

    Args:
        measure: the column.
        value: the entry, None where the row has none.
        notes: of the table.
    """
    group = f"g-{group_of(measure)[0]}"
    if value is None:
        return tag("td", "–", class_=f"number {group}", data_tip="not measured in this row")
    if isinstance(value, NotAvailable):
        return tag("td", notes.link(value.reason, "N/A"), class_=f"number {group}")
    shown = tag("span", number(measure, value.mean), class_="mean")
    if value.standing == "best":
        shown = tag("strong", shown, tag("span", " best", class_="unseen"))
    half = half_width(measure, value)
    return tag(
        "td",
        shown,
        tag("span", f" ± {half}", class_="half") if half else "",
        tag(
            "span",
            tag("span", "~", aria_hidden="true"),
            tag("span", " indistinguishable", class_="unseen"),
            class_="level",
        )
        if value.standing == "indistinguishable"
        else "",
        *(tag("small", mark, class_="mark") for mark in value.marks),
        class_=f"number {group}",
        data_value=value.mean if math.isfinite(value.mean) else None,
        data_tip=" ".join(_told(measure, value)),
    )


def _told(measure: Measure, value: Value) -> Iterator[str]:
    """Everything about an entry in sentences."""
    unit = f" {measure.unit}" if measure.unit else ""
    yield f"{measure.title}: {number(measure, value.mean)}{unit}, {STANDINGS[value.standing]}."
    if value.interval != "none" and math.isfinite(value.low) and math.isfinite(value.high):
        ends = f"{number(measure, value.low)} to {number(measure, value.high)}{unit}"
        yield f"95 % interval {INTERVALS[value.interval]}: {ends}."
    if len(value.by_seed) > 1:
        seeds = ", ".join(f"{number(measure, one)} (seed {seed})" for seed, one in sorted(value.by_seed.items()))
        yield f"By seed: {seeds}."
    if value.marks:
        yield f"{', '.join(value.marks).capitalize()}."
