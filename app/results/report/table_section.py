"""The table as HTML: sortable and filterable where scripts run, complete and printable where they do not."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from app.results.comparison.entries import titled
from app.results.comparison.table import ComparisonTable, Row
from app.results.report.footnotes import Footnotes
from app.results.report.markup import Html, joined, tag
from app.results.report.paper_table import paper_tables
from app.results.report.table_cells import EACH, cell, direction, general_measures, group_of, meaning, row_head

LABELS = ("dataset", "method", "defense")
LEGEND = (
    "Means over seeds ± half of the 95 % interval. Bold: best of its dataset beyond chance. ~: cannot be told from the "
    "best. N/A: not available, with the reason in the note. ↑ higher is better, ↓ lower is better."
)


def table_section(table: ComparisonTable, baseline: tuple[str, str] | None) -> Html:
    """Controls, the table, its footnotes, and what the columns mean.

    Args:
        table: all rows.
        baseline: method and defense that others are compared with.
    """
    notes = Footnotes("note")
    many = len({row.dataset for row in table.rows}) > 1
    body = tag("tbody", *(_row(table, row, notes, many, (row.method, row.defense) == baseline) for row in table.rows))
    caption = tag("caption", "All rows of the comparison", class_="unseen")
    grid = tag("table", caption, _head(table, many), body, id="comparison", aria_describedby="legend")
    return joined(
        (
            _controls(table),
            tag("p", LEGEND, id="legend", class_="legend"),
            tag("div", grid, class_="scroll wide", tabindex="0", role="region", aria_label="Table of the comparison"),
            paper_tables(table, baseline, notes),
            tag("p", tag("output", id="shown", aria_live="polite"), class_="status"),
            tag("p", "No row matches the filters.", id="nothing", class_="empty", hidden=True),
            notes.listed(),
            _meanings(table),
        )
    )


def _controls(table: ComparisonTable) -> Html:
    search = tag("label", "Search", tag("input", type="search", id="search", autocomplete="off"))
    chosen = [_choice(label, table.rows) for label in LABELS]
    groups = [
        tag("label", tag("input", type="checkbox", checked=group != EACH, data_group=group), title)
        for group, title in dict(map(group_of, table.measures)).items()
    ]
    return tag(
        "form",
        search,
        *chosen,
        tag("fieldset", tag("legend", "Columns"), *groups),
        tag("button", "Reset", type="reset"),
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
        tag("th", tag("span", title), colspan=len(list(measures)), scope="colgroup", class_=f"group g-{group}")
        for (group, title), measures in groupby(table.measures, key=group_of)
    ]
    corner = (tag("td", class_="corner"), tag("td", colspan=len(first) - 1, class_="beside"))
    columns = [
        _sorter(
            titled(measure), measure.key, "number", direction(measure), tip=meaning(measure), group=group_of(measure)[0]
        )
        for measure in table.measures
    ]
    return tag("thead", tag("tr", *corner, *groups), tag("tr", *first, *columns))


def _sorter(title: str, key: str, kind: str, more: object = "", tip: str | None = None, group: str = "") -> Html:
    button = tag("button", title, more, tag("span", class_="order", aria_hidden="true"), type="button", data_tip=tip)
    classes = f"g-{group}" if group else None
    return tag(
        "th", button, scope="col", data_key=key, data_title=title, data_kind=kind, aria_sort="none", class_=classes
    )


def _row(table: ComparisonTable, row: Row, notes: Footnotes, many: bool, baseline: bool) -> Html:
    cells = [row_head(table, row, notes, baseline)]
    if many:
        cells.append(tag("td", row.dataset, data_value=row.dataset))
    seeds = f"seeds {', '.join(map(str, row.seeds))}"
    cells.append(tag("td", len(row.seeds), data_value=len(row.seeds), data_tip=seeds, class_="number"))
    cells += [cell(measure, row.values.get(measure.key), notes) for measure in table.measures]
    return tag("tr", *cells, data_dataset=row.dataset, data_method=row.method, data_defense=row.defense)


def _meanings(table: ComparisonTable) -> Html:
    entries = joined(joined((tag("dt", titled(one)), tag("dd", meaning(one)))) for one in general_measures(table))
    return tag("details", tag("summary", "What the columns mean"), tag("dl", entries, class_="meanings"))
