"""What every defense changes: differences from the same method, seeds and data without a defense."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from app.metrics.membership import NotAvailable
from app.metrics.moderated import Effect, moderated_effects
from app.results.comparison.rows import NOT_RUN
from app.results.comparison.table import NOT_MEASURED, ComparisonTable, Row, Value
from app.results.run.labels import NO_DEFENSE, TRAIN_LESS

UTILITY = ("clients_accuracy", "everyone_accuracy", "clients_own", "server_accuracy")
"""Measures of accuracy; the one that most rows of a dataset have is used, of equal ones the first."""

RELEASED, UPLOADS = "global_auc", "uploads_auc"
"""Measures of leakage: AUC of the strongest attack on the released model, and on uploads."""

TARGETS = {RELEASED: "the released model", UPLOADS: "uploads"}
"""Measures of leakage, in words."""

CHANCE = 0.5
LEVEL = 0.02
"""Level of tests that a verdict rests on: two measures of leakage are tested, and neither may decide by chance."""

SMALLEST = 0.01
"""Smallest difference of AUC, and of accuracy, that a verdict speaks of."""

Verdict = Literal[
    "protects",
    "protects by learning less",
    "hides on the way only",
    "costs more than it protects",
    "no measurable effect",
]


@dataclass(frozen=True)
class DefenseEffect:
    """What a row changes against the same method without a defense."""

    row: Row
    plain: Row  # the same method without a defense
    utility: str  # key of the measure of accuracy
    accuracy: Effect | None  # None where the rows have no common seed with a number
    leakage: Mapping[str, Effect]  # by key of the measure, where both rows have a number
    hidden: bool  # whether uploads are hidden from the server
    verdict: Verdict
    reason: str  # which numbers led to the verdict, in words


def utility_of(rows: Sequence[Row]) -> str:
    """Key of the measure of accuracy that most rows have."""
    return max(UTILITY, key=lambda key: sum(isinstance(row.values.get(key), Value) for row in rows))


def defense_effects(table: ComparisonTable) -> tuple[DefenseEffect, ...]:
    """Effects of all defended rows whose method was also run without a defense."""
    return tuple(effect for dataset in table.datasets for effect in _of_dataset(table, dataset))


def mean_of(row: Row, key: str) -> float:
    """Mean of a measure; NaN where the row has none."""
    entry = row.values.get(key)
    return entry.mean if isinstance(entry, Value) else math.nan


def strongest(row: Row) -> float:
    """The larger AUC of released model and uploads, as far as they are visible; NaN where no attack ran."""
    seen = [mean for key in (RELEASED, UPLOADS) if not math.isnan(mean := mean_of(row, key))]
    return max(seen, default=math.nan)


def is_hidden(row: Row, plain: Row) -> bool:
    """Whether attacks on uploads, which find something to read without the defense, find nothing with it."""
    entry = row.values.get(UPLOADS)
    absent = isinstance(entry, NotAvailable) and entry not in (NOT_RUN, NOT_MEASURED)
    return absent and isinstance(plain.values.get(UPLOADS), Value)


def _of_dataset(table: ComparisonTable, dataset: str) -> Iterator[DefenseEffect]:
    rows = table.of(dataset)
    utility = utility_of(rows)
    plain = {row.method: row for row in rows if row.defense == NO_DEFENSE}
    defended = [row for row in rows if row.method in plain and row.defense != NO_DEFENSE]
    effects = {key: _effects(rows, defended, plain, key) for key in (utility, RELEASED, UPLOADS)}
    for row in defended:
        accuracy = effects[utility].get(row.name)
        leakage = {key: effects[key][row.name] for key in (RELEASED, UPLOADS) if row.name in effects[key]}
        hidden = is_hidden(row, plain[row.method])
        less = [one for one in rows if one.method == row.method and one.defense.startswith(TRAIN_LESS)]
        decided = _verdict(row, plain[row.method], utility, accuracy, leakage, hidden, less)
        yield DefenseEffect(row, plain[row.method], utility, accuracy, leakage, hidden, *decided)


def _effects(rows: Sequence[Row], defended: Sequence[Row], plain: Mapping[str, Row], key: str) -> Mapping[str, Effect]:
    values = {row.name: entry.by_seed for row in rows if isinstance(entry := row.values.get(key), Value)}
    against = {row.name: plain[row.method].name for row in defended}
    both = {name: other for name, other in against.items() if name in values and other in values}
    return moderated_effects(values, both, -1.0, 1.0)


def _verdict(
    row: Row,
    plain: Row,
    utility: str,
    accuracy: Effect | None,
    leakage: Mapping[str, Effect],
    hidden: bool,
    less: Sequence[Row],
) -> tuple[Verdict, str]:
    """The class of a defense, by the first rule that applies, and the reason in words."""
    lowered = [key for key, effect in leakage.items() if _changed(effect, -1)]
    loses = accuracy is not None and _changed(accuracy, -1)
    if not lowered and hidden:
        return "hides on the way only", "single uploads are hidden; the released model leaks as before"
    if not lowered and loses:
        return "costs more than it protects", "accuracy falls, and no measured leakage does"
    if not lowered:
        return "no measurable effect", "no measured leakage falls beyond chance"
    if row in less:
        return "protects by learning less", "it does nothing but train for fewer rounds"
    if trained := next((one for one in less if _as_good(one, row, utility)), None):
        about = f"{trained.defense} has as little leakage ({strongest(trained):.3f}) at no lower accuracy"
        return "protects by learning less", about
    removed, lost = max(_share_removed(plain, row, key) for key in lowered), _share_lost(plain, row, utility)
    changes = [f"AUC on {TARGETS[key]} from {mean_of(plain, key):.2f} to {mean_of(row, key):.2f}" for key in lowered]
    changes += [f"on {TARGETS[key]} as before" for key in leakage if key not in lowered]
    reason = f"{', '.join(changes)}, {_cost(accuracy)}"
    return ("costs more than it protects" if loses and lost > removed else "protects"), reason


def _cost(accuracy: Effect | None) -> str:
    """What a defense costs, in words."""
    if accuracy is None or accuracy.mean > -SMALLEST:
        return "at no measurable loss"
    doubt = "" if accuracy.p_value < LEVEL else ", which may be chance"
    return f"for {-100 * accuracy.mean:.1f} points of accuracy{doubt}"


def _changed(effect: Effect, sign: int) -> bool:
    """Whether a difference has this sign, beyond chance, and is worth speaking of."""
    return effect.p_value < LEVEL and sign * effect.mean >= SMALLEST


def _as_good(one: Row, row: Row, utility: str) -> bool:
    """Whether a row has no more leakage than another and no lower accuracy, within what is worth speaking of."""
    accurate = mean_of(one, utility) >= mean_of(row, utility) - SMALLEST
    return accurate and strongest(one) <= strongest(row) + SMALLEST


def _share_removed(plain: Row, row: Row, key: str) -> float:
    """Share of the AUC above chance that is gone, at most 1."""
    before, after = mean_of(plain, key), mean_of(row, key)
    return min(1.0, (before - after) / (before - CHANCE)) if before > CHANCE else 0.0


def _share_lost(plain: Row, row: Row, utility: str) -> float:
    """Share of the accuracy that is gone."""
    before = mean_of(plain, utility)
    return (before - mean_of(row, utility)) / before if before > 0 else 0.0
