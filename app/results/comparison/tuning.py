"""How rows were tuned: what was tried and chosen, whether all rows were tuned alike, and what epsilon leaves out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from app.common.progress import in_words
from app.common.wording import counted
from app.metrics.membership import NotAvailable
from app.results.comparison.table import Row, WordTable
from app.results.run.tuned import TunedRow

UNCOVERED = "without tuning"
"""Stands beside the epsilon of a tuned row."""

Tuned = Mapping[tuple[str, str, str], TunedRow]
"""Tuned rows by dataset, method and defense."""


def by_place(rows: Sequence[TunedRow]) -> Tuned:
    """Rows by dataset, method and defense."""
    return {(row.dataset, row.method, row.defense): row for row in rows}


def with_tuning(row: Row, tuned: Tuned) -> Row:
    """The row with remarks on its tuning, which epsilon does not cover."""
    own = tuned.get((row.dataset, row.method, row.defense))
    if own is None:
        return row
    epsilon = row.values.get("epsilon", NotAvailable("not measured"))
    if isinstance(epsilon, NotAvailable):
        return row
    note = (
        f"epsilon does not cover tuning: the settings were chosen among {counted(len(own.trials), 'trial')} that were "
        "trained on the members of one seed, by accuracy on a validation split that is private data, too"
    )
    values = {**row.values, "epsilon": replace(epsilon, marks=(*epsilon.marks, UNCOVERED))}
    return replace(row, values=values, notes=(*row.notes, note))


def tuning_tables(rows: Sequence[Row], tuned: Tuned) -> tuple[WordTable, ...]:
    """What was tried and chosen, a line per row; none where no row was tuned."""
    shown = [(row, tuned.get((row.dataset, row.method, row.defense))) for row in rows]
    if not any(own for _, own in shown):
        return ()
    several = len({row.dataset for row in rows}) > 1
    heads = (*(("dataset",) * several), "row", "trials", "searched", "chosen", "validation accuracy", "seconds")
    lines = tuple((*((row.dataset,) * several), row.name, *_line(own)) for row, own in shown)
    reading = (
        "Accuracy of received models on the validation split, which is neither trained nor tested on nor audited: of "
        "the recipe as it stands, then of the chosen trial, whose settings all seeds of the row have. Being chosen, it "
        "is optimistic. All rows that share an option tried it at the same points. Tuning used private data: members "
        "of one seed, and the validation split."
    )
    reading = " ".join([*_warnings(rows, tuned), reading])
    return (WordTable("How rows were tuned", heads, lines, reading, tuple(row for row, _ in shown)),)


def _warnings(rows: Sequence[Row], tuned: Tuned) -> Iterator[str]:
    """Warnings of rows that were not tuned like the others, by dataset."""
    for dataset in dict.fromkeys(row.dataset for row in rows):
        names = {row.name: tuned.get((dataset, row.method, row.defense)) for row in rows if row.dataset == dataset}
        known = {name: own for name, own in names.items() if own is not None}
        reasons = list(_differences(known)) if known else []
        if known and (without := [name for name in names if name not in known]):
            reasons.append(f"without tuning: {', '.join(without)}")
        if reasons:
            yield f"Warning: the rows of {dataset} were not tuned alike, which favours some: {'; '.join(reasons)}."


def _differences(rows: Mapping[str, TunedRow]) -> Iterator[str]:
    """What differs between tuned rows: completed trials, and what was searched besides options of defenses."""
    completed = {name: f"{row.completed} of {counted(len(row.trials), 'trial')}" for name, row in rows.items()}
    yield from _unlike("completed", completed)
    searched = {name: ", ".join(f"{each} {span}" for each, span in row.asked.items()) for name, row in rows.items()}
    yield from _unlike("searched", searched)


def _unlike(what: str, values: Mapping[str, str]) -> Iterator[str]:
    usual = max(values.values(), key=list(values.values()).count)
    others = [f"{name} {what} {value or 'nothing'}" for name, value in values.items() if value != usual]
    if others:
        yield f"most {what} {usual or 'nothing'}, {', '.join(others)}"


def _line(own: TunedRow | None) -> tuple[str, ...]:
    if own is None:
        return ("none", "", "", "", "")
    ended = {state: sum(trial.state == state for trial in own.trials) for state in ("stopped", "failed")}
    also = "".join(f", {number} {state}" for state, number in ended.items() if number)
    chosen = "; ".join(f"{_short(name)} {value}" for name, value in own.settings.items()) or "the recipe"
    searched = "; ".join(f"{_short(name)} {span}" for name, span in own.searched.items())
    accuracies = f"{_percent(own.trials[0].accuracy)} → {_percent(own.trials[own.chosen].accuracy)}"
    return (f"{len(own.trials)}{also}", searched, chosen, accuracies, in_words(own.seconds))


def _short(option: str) -> str:
    """The last part of an option's name, which distinguishes those that are searched."""
    return option.rpartition(".")[2]


def _percent(accuracy: float) -> str:
    return "N/A" if math.isnan(accuracy) else f"{100 * accuracy:.1f} %"
