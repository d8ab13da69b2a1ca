"""The table as HTML: sortable and filterable where scripts run, complete and printable where they do not."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby

from app.metrics.membership import NotAvailable
from app.results.comparison.entries import SINGLE, titled
from app.results.comparison.table import ComparisonTable, Measure, Row, Value
from app.results.report.details import remarks_id
from app.results.report.entries import half_width, number
from app.results.report.findings import GROUPS, STANDINGS
from app.results.report.footnotes import Footnotes
from app.results.report.markup import Html, joined, tag

EACH = "attack"
"""Group on the page of single attacks, of which there may be many: they are shown on demand."""

INTERVALS = {"seeds": "over seeds", "samples": "over samples of one run"}
MOST_NOTES = 3
"""Notes of a row that it has links to."""

LABELS = ("dataset", "method", "defense")


def table_section(table: ComparisonTable, baseline: tuple[str, str] | None) -> Html:
    """Controls, the table, its footnotes, and what the columns mean.

    Args:
        table: all rows.
        baseline: method and defense that others are compared with.
    """
    notes = Footnotes("note")
    datasets = {row.dataset for row in table.rows}
    body = tag(
        "tbody",
        *(_row(table, row, notes, len(datasets) > 1, (row.method, row.defense) == baseline) for row in table.rows),
    )
    caption = "Means over seeds ± half of the 95 % interval. Bold: best of its dataset beyond chance. "
    caption += "~ cannot be told from the best. N/A: not available, with the reason in the note."
    grid = tag("table", tag("caption", caption), _head(table, len(datasets) > 1), body, id="comparison")
    return joined(
        (
            _controls(table),
            tag("p", tag("output", id="shown", aria_live="polite"), class_="status"),
            tag("div", grid, class_="scroll wide", tabindex="0", role="region", aria_label="Table of the comparison"),
            tag("p", "No row matches the filters.", id="nothing", class_="empty", hidden=True),
            notes.listed(),
            _meanings(table),
        )
    )


def _group(measure: Measure) -> tuple[str, str]:
    """Short name and title of the group that a column belongs to on the page."""
    if measure.key.startswith(SINGLE):
        return EACH, "Each attack"
    return measure.group, GROUPS[measure.group]


def _controls(table: ComparisonTable) -> Html:
    search = tag("label", "Search", tag("input", type="search", id="search", autocomplete="off"))
    chosen = [_choice(label, table.rows) for label in LABELS]
    groups = [
        tag("label", tag("input", type="checkbox", checked=group != EACH, data_group=group), title)
        for group, title in dict(map(_group, table.measures)).items()
    ]
    return tag(
        "form",
        search,
        *chosen,
        tag("fieldset", tag("legend", "Columns"), *groups),
        tag("button", "Show all", type="reset"),
        id="controls",
        class_="controls",
        hidden=True,  # scripts show it
        aria_label="Filters of the table",
    )


def _choice(label: str, rows: Sequence[Row]) -> Html:
    """A filter by one label, where there is something to choose."""
    names = list(dict.fromkeys(getattr(row, label) for row in rows))
    if len(names) < 2:
        return Html("")
    options = [tag("option", "all", value=""), *(tag("option", name, value=name) for name in names)]
    return tag("label", label.capitalize(), tag("select", *options, data_label=label))


def _head(table: ComparisonTable, many: bool) -> Html:
    """Groups of columns, and below them one button per column."""
    first = [_sorter("Method / defense", "row", "text"), *([_sorter("Dataset", "dataset", "text")] if many else [])]
    first.append(_sorter("Seeds", "seeds", "number", tip="how many seeds the row has been trained with"))
    groups = [
        tag("th", title, colspan=len(list(measures)), scope="colgroup", class_=f"group g-{group}")
        for (group, title), measures in groupby(table.measures, key=_group)
    ]
    corner = tag("td", colspan=len(first), class_="corner")
    columns = [
        _sorter(
            titled(measure), measure.key, "number", _direction(measure), tip=_meaning(measure), group=_group(measure)[0]
        )
        for measure in table.measures
    ]
    return tag("thead", tag("tr", corner, *groups), tag("tr", *first, *columns))


def _sorter(title: str, key: str, kind: str, more: object = "", tip: str | None = None, group: str = "") -> Html:
    button = tag("button", title, more, tag("span", class_="order", aria_hidden="true"), type="button", data_tip=tip)
    classes = f"g-{group}" if group else None
    return tag(
        "th", button, scope="col", data_key=key, data_title=title, data_kind=kind, aria_sort="none", class_=classes
    )


def _direction(measure: Measure) -> Html:
    """An arrow towards what is better."""
    if measure.lower_is_better is None:
        return Html("")
    arrow, words = ("↓", "lower is better") if measure.lower_is_better else ("↑", "higher is better")
    return tag("span", tag("span", arrow, aria_hidden="true"), tag("span", f", {words}", class_="unseen"), class_="way")


def _meaning(measure: Measure) -> str:
    ways = {True: " Lower is better.", False: " Higher is better.", None: ""}
    return measure.meaning + ways[measure.lower_is_better]


def _row(table: ComparisonTable, row: Row, notes: Footnotes, many: bool, baseline: bool) -> Html:
    remarks = joined(_remarks(table, row, notes), " ")
    mark = tag("small", "baseline", class_="mark") if baseline else ""
    cells = [tag("th", tag("span", row.name, class_="name"), remarks, mark, scope="row", data_value=row.name)]
    if many:
        cells.append(tag("td", row.dataset, data_value=row.dataset))
    seeds = f"seeds {', '.join(map(str, row.seeds))}"
    cells.append(tag("td", len(row.seeds), data_value=len(row.seeds), data_tip=seeds, class_="number"))
    cells += [_cell(measure, row.values.get(measure.key), notes) for measure in table.measures]
    return tag("tr", *cells, data_dataset=row.dataset, data_method=row.method, data_defense=row.defense)


def _remarks(table: ComparisonTable, row: Row, notes: Footnotes) -> Iterator[Html]:
    """Links to the notes of a row, or to its details where there are many."""
    if len(row.notes) <= MOST_NOTES:
        yield from map(notes.link, row.notes)
        return
    told = f"{len(row.notes)} remarks, listed with the runs of the row"
    target = f"#{remarks_id(table.rows.index(row))}"
    yield tag("a", tag("sup", f"{len(row.notes)} remarks"), href=target, class_="note", data_tip=told)


def _cell(measure: Measure, value: Value | NotAvailable | None, notes: Footnotes) -> Html:
    group = f"g-{_group(measure)[0]}"
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


def _meanings(table: ComparisonTable) -> Html:
    entries = joined(joined((tag("dt", titled(one)), tag("dd", _meaning(one)))) for one in table.measures)
    return tag("details", tag("summary", "What the columns mean"), tag("dl", entries, class_="meanings"))
