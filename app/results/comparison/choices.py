"""Which row to choose: the least leakage at a given loss of accuracy, and the best accuracy at a given leakage."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from app.results.comparison.effects import RELEASED, UPLOADS, mean_of, strongest, utility_of
from app.results.comparison.table import ComparisonTable, Row
from app.results.run.labels import NO_DEFENSE

LOSSES = (0.01, 0.02, 0.05)
"""Largest losses of accuracy that are asked about: 1, 2 and 5 points."""

LEAKAGES = (("AUC", 0.55, {RELEASED, UPLOADS}), ("TPR@1 %", 0.02, {"global_tpr1", "uploads_tpr1"}))
"""Largest leakages that are asked about: name, value, and the keys of its measures."""

NEGLIGIBLE = 0.001
"""Difference of accuracy, and of AUC, below which no row is better than another: encryption rounds, say."""


@dataclass(frozen=True)
class Choice:
    """The best row under a condition."""

    dataset: str
    question: str  # the condition, in words
    row: Row | None  # None where no row meets it
    accuracy: float  # of the row, 0 to 1; NaN without one
    loss: float  # of accuracy against the most accurate undefended row
    leakage: float  # AUC of the strongest visible attack


def choices(table: ComparisonTable) -> tuple[Choice, ...]:
    """Answers for every dataset with an undefended row and a measured leakage; undefended rows compete as well."""
    return tuple(choice for dataset in table.datasets for choice in _of_dataset(table, dataset))


def dominated(table: ComparisonTable) -> dict[str, Row]:
    """For every row that another one beats, by dataset and name: that row, which leaks no more and is as accurate.

    It is better in one of the two by more than is negligible.
    """
    beaten = {}
    for dataset in table.datasets:
        utility = utility_of(table.of(dataset))
        places = [(row, mean_of(row, utility), strongest(row)) for row in table.of(dataset)]
        known = [place for place in places if not math.isnan(place[1] + place[2])]
        for row, accuracy, leakage in known:
            better = [
                (mean, other)
                for other, mean, auc in known
                if mean >= accuracy and auc <= leakage and max(mean - accuracy, leakage - auc) >= NEGLIGIBLE
            ]
            if better:
                beaten[f"{dataset}: {row.name}"] = max(better, key=lambda pair: pair[0])[1]
    return beaten


def _of_dataset(table: ComparisonTable, dataset: str) -> Iterator[Choice]:
    rows = table.of(dataset)
    utility = utility_of(rows)
    plain = [mean_of(row, utility) for row in rows if row.defense == NO_DEFENSE]
    candidates = [row for row in rows if not math.isnan(mean_of(row, utility)) and not math.isnan(strongest(row))]
    if not candidates or all(map(math.isnan, plain)):
        return
    base = max(mean for mean in plain if not math.isnan(mean))

    def choice(question: str, allowed: Sequence[Row], order: Callable[[Row], float]) -> Choice:
        if not allowed:
            return Choice(dataset, question, None, math.nan, math.nan, math.nan)
        best = min(allowed, key=order)
        accuracy = mean_of(best, utility)
        return Choice(dataset, question, best, accuracy, base - accuracy, strongest(best))

    for loss in LOSSES:
        points = f"{100 * loss:g} {'point' if loss == LOSSES[0] else 'points'}"
        within = [row for row in candidates if base - mean_of(row, utility) <= loss]
        yield choice(f"least leakage at a loss of at most {points}", within, strongest)
    for name, most, keys in LEAKAGES:
        below = [row for row in candidates if _largest(row, keys) <= most]
        shown = f"{100 * most:g} %" if most < 0.5 else f"{most:g}"
        yield choice(f"best accuracy at {name} of at most {shown}", below, lambda row: -mean_of(row, utility))


def _largest(row: Row, keys: set[str]) -> float:
    """The largest of the measures that the row has; infinite where it has none."""
    return max((mean for key in keys if not math.isnan(mean := mean_of(row, key))), default=math.inf)
