"""Verdicts and choices in words: one line per defense, and the answer to every question about a choice."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from app.metrics.moderated import Effect
from app.results.comparison.choices import Choice, choices, dominated
from app.results.comparison.effects import RELEASED, UPLOADS, DefenseEffect, defense_effects
from app.results.comparison.table import ComparisonTable, Row, WordTable
from app.results.comparison.tuning import by_place, tuning_tables

HIDDEN, VERDICT, REASON = "hidden", "verdict", "because"


def word_tables(table: ComparisonTable) -> tuple[WordTable, ...]:
    """What every defense does, which row to choose, and how rows were tuned; those that say nothing are left out."""
    return (*_verdict_tables(table), *tuning_tables(table.rows, by_place(table.tuned)))


def _verdict_tables(table: ComparisonTable) -> tuple[WordTable, ...]:
    """Verdicts and choices; none where no defense was attacked beside the same method."""
    several = len(table.datasets) > 1
    effects, beaten = defense_effects(table), dominated(table)
    hidden = [each.row for each in effects if each.hidden]
    if not any(each.leakage or each.hidden for each in effects):
        return ()
    chosen = choices(table)
    return (
        WordTable(
            "What each defense does",
            (*(("dataset",) * several), "row", "accuracy", "AUC, released", "AUC, uploads", VERDICT, REASON),
            tuple((*((each.row.dataset,) * several), *_cells(each, beaten, hidden)) for each in effects),
            "Differences from the same method, seeds and data without a defense: accuracy in points, AUC of the "
            "strongest attack; [low, high] is the 95 % interval over seeds, whose variance is moderated by those of "
            "all rows. A verdict speaks of differences of at least a point or .01 that are significant at 2 %; "
            "strengths that another row beats in both are named.",
            tuple(each.row for each in effects),
        ),
        WordTable(
            "Which row to choose",
            (*(("dataset",) * several), "asked for", "row", "accuracy", "loss", "AUC"),
            tuple((*((each.dataset,) * several), *_answer(each)) for each in chosen),
            "By means over seeds; the loss is against the most accurate row without a defense, the AUC that of the "
            "strongest attack on what is visible of the row. Rows without a defense compete as well.",
            tuple(each.row for each in chosen),
        ),
    )


def _cells(each: DefenseEffect, beaten: Mapping[str, Row], hidden: Sequence[Row]) -> Iterator[str]:
    yield each.row.name
    yield _difference(each.accuracy, 100, 1)
    yield _difference(each.leakage.get(RELEASED), 1, 3)
    yield HIDDEN if each.hidden else _difference(each.leakage.get(UPLOADS), 1, 3)
    yield each.verdict
    better = beaten.get(f"{each.row.dataset}: {each.row.name}")
    if better is None:
        yield each.reason
        return
    while_hidden = " while its uploads are hidden" if better in hidden and not each.hidden else ""
    yield f"{each.reason}; {better.name} is better in both{while_hidden}"


def _difference(effect: Effect | None, scale: float, digits: int) -> str:
    """A difference with its sign and interval, such as `-12.3 [-15.0, -9.6]`."""
    if effect is None:
        return "N/A"
    ends = effect.interval.low, effect.interval.high
    shown = f"{scale * effect.mean:+.{digits}f}"
    if not all(map(math.isfinite, ends)) or math.isnan(effect.p_value):
        return shown
    return f"{shown} [{', '.join(f'{scale * end:+.{digits}f}' for end in ends)}]"


def _answer(each: Choice) -> Iterator[str]:
    yield each.question
    if each.row is None:
        yield from ("none of these rows", "", "", "")
        return
    yield each.row.name
    yield f"{100 * each.accuracy:.1f} %"
    yield f"{100 * each.loss:+.1f}"
    yield f"{each.leakage:.3f}"
