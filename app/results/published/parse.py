"""Published numbers from a comparison's file: one by one, or row by row as the paper prints them.

A block with `columns` and `rows` stands for a table; what the block says holds for all its rows:

    - unit: "%"
      dataset: mnist
      columns: [everyone_majority, everyone_minority]
      rows:
        - {method: fedavg, where: "Table 2, FedAvg", values: [96.63, 67.40], spreads: [0.70, 11.26]}

A value or spread of `null` is one that the paper does not print.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from difflib import get_close_matches
from typing import Any

from app.common.errors import Problem, raise_all
from app.results.published.values import (
    ALL_METHODS,
    ALL_UNITS,
    CORRELATION,
    RELATIONS,
    STATISTICS,
    PublishedFigure,
    is_measure,
    nearest_measures,
)

NAMES = tuple(field.name for field in fields(PublishedFigure))
REQUIRED = tuple(field.name for field in fields(PublishedFigure) if field.default is MISSING)
TEXTS = ("dataset", "method", "defense", "measure", "unit", "where", "remark")
COUNTS = {"client": 0, "rounds": 1}
"""Whole numbers and the smallest that makes sense."""

LOST = "this number cannot be shown beside ours"


def parse_published(entries: Any) -> tuple[PublishedFigure, ...]:
    """The numbers that a list of entries stands for, in its order.

    Args:
        entries: the `published` list of a comparison's file, as plain data; None where there is none.

    Raises:
        UserError: with everything that is wrong.
    """
    problems: list[Problem] = []
    if entries is None:
        return ()
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        raise_all([Problem("`published` is no list", "nothing can be compared with it", "write one entry per number")])
    figures = []
    for number, entry in enumerate(entries, 1):
        for name, data in _single(entry, f"published entry {number}", problems):
            wrong = list(_problems(data, name))
            problems += wrong
            if not wrong:
                figures.append(PublishedFigure(**data))
    raise_all(problems)
    return tuple(figures)


def _single(entry: Any, name: str, problems: list[Problem]) -> Iterator[tuple[str, dict[str, Any]]]:
    """One mapping per number, each with a name for messages."""
    if not isinstance(entry, Mapping):
        problems.append(Problem(f"{name} is no mapping: {entry!r}", LOST, "write {dataset: ..., method: ..., ...}"))
    elif "columns" not in entry and "rows" not in entry:
        yield name, dict(entry)
    else:
        shared = {key: value for key, value in entry.items() if key not in ("columns", "rows")}
        columns, rows = entry.get("columns"), entry.get("rows")
        if isinstance(columns, list) and isinstance(rows, list) and all(isinstance(row, Mapping) for row in rows):
            for number, row in enumerate(rows, 1):
                yield from _of_row({**shared, **row}, columns, f"{name}, row {number}", problems)
        else:
            problems.append(Problem(f"{name} needs a list of columns and a list of rows", LOST, "give it both"))


def _of_row(
    row: dict[str, Any], columns: list[Any], name: str, problems: list[Problem]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The numbers of one printed row; `remarks` are remarks by column."""
    values, spreads, remarks = row.pop("values", None), row.pop("spreads", None), row.pop("remarks", None) or {}
    for kind, listed in (("values", values), ("spreads", spreads if spreads is not None else columns)):
        if not isinstance(listed, list) or len(listed) != len(columns):
            count = len(listed) if isinstance(listed, list) else "no"
            problems.append(
                Problem(f"{name} has {count} {kind} for {len(columns)} columns", LOST, "write null for what is missing")
            )
            return
    for unknown in [key for key in remarks if key not in columns]:
        problems.append(Problem(f"{name} has a remark on {unknown!r}, which is no column", "", f"one of {columns}"))
    for column, value, spread in zip(columns, values, spreads or [None] * len(columns), strict=True):
        if value is not None:
            own = {"remark": remarks[column]} if column in remarks else {}
            yield f"{name}, {column}", {**row, "measure": column, "value": value, "spread": spread, **own}


def _problems(data: Mapping[str, Any], name: str) -> Iterator[Problem]:
    """Everything that is wrong with one number."""
    for key in data:
        if key not in NAMES:
            near = get_close_matches(str(key), NAMES, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            yield Problem(f"{name} has an unknown key {key!r}", LOST, f"{hint}known are {', '.join(NAMES)}")
    missing = [key for key in REQUIRED if key not in data]
    if missing:
        yield Problem(f"{name} lacks {', '.join(missing)}", LOST, "add what the paper prints")
    for key in TEXTS:
        if key in data and not isinstance(data[key], str):
            yield Problem(f"{name}: {key} is {data[key]!r}, no text", LOST, f"write {key} in quotation marks")
    yield from _meaning_problems(data, name)
    yield from _number_problems(data, name)


def _meaning_problems(data: Mapping[str, Any], name: str) -> Iterator[Problem]:
    """Words that stand for nothing."""
    measure, unit = data.get("measure"), data.get("unit")
    if isinstance(measure, str) and not is_measure(measure):
        near = nearest_measures(measure)
        hint = f"did you mean {' or '.join(near)}?" if near else "`rampart report` shows the measures of a comparison"
        yield Problem(f"{name} names an unknown measure {measure!r}", LOST, hint)
    if data.get("method") == ALL_METHODS and not str(measure).startswith(CORRELATION):
        yield Problem(f"{name} is of {ALL_METHODS}", LOST, f"name one method; only `{CORRELATION}` pools the methods")
    if isinstance(unit, str) and unit not in ALL_UNITS:
        yield Problem(f"{name} has an unknown unit {unit!r}", LOST, f"one of {', '.join(map(repr, ALL_UNITS))}")
    for key, known in (("relation", RELATIONS), ("statistic", STATISTICS)):
        if key in data and data[key] not in known:
            yield Problem(f"{name}: {key} is {data[key]!r}", LOST, f"one of {', '.join(known)}")


def _number_problems(data: Mapping[str, Any], name: str) -> Iterator[Problem]:
    """Numbers that are none, or out of range."""
    if "value" in data and not _finite(data["value"]):
        yield Problem(f"{name}: the value is {data['value']!r}, no finite number", LOST, "write it as it is printed")
    spread = data.get("spread")
    if spread is not None and not (_finite(spread) and spread >= 0):
        yield Problem(f"{name}: the spread is {spread!r}", LOST, "write what stands after the plus-minus sign")
    for key, least in COUNTS.items():
        count = data.get(key)
        if count is not None and not (isinstance(count, int) and not isinstance(count, bool) and count >= least):
            yield Problem(f"{name}: {key} is {count!r}", LOST, f"write a whole number of {least} or more")


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
