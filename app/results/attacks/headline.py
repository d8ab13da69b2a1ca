"""The strongest attack on every kind of target, which is the one that counts for a defense."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.metrics.leakage import Leakage
from app.metrics.roc import FPR_TARGETS
from app.results.attacks.wording import rate_name

if TYPE_CHECKING:
    from app.results.attacks.membership import AttackRecord

NUMBERS = ("auc", "auc_low", "auc_high", *map(rate_name, FPR_TARGETS))
"""Numbers of a result that its headline repeats."""


@dataclass(frozen=True)
class Headline:
    """The strongest of all results on one kind of target, `global` or `uploads`.

    `rivals` says whether results of attackers who know the defense are among those compared.
    """

    kind: str
    record: AttackRecord
    leakage: Leakage
    rivals: bool

    @property
    def informed(self) -> bool:
        return bool(self.record.conditions.adaptation)

    @property
    def summary(self) -> dict[str, str | float]:
        """Its label, how its attacker adapts, and its numbers, for a JSON file."""
        conditions, numbers = self.record.conditions, self.record.numbers
        words = {"label": conditions.label, "attack": conditions.attack, "adaptation": conditions.adaptation}
        return words | {name: numbers[name] for name in NUMBERS if name in numbers}


def headlines(records: Iterable[AttackRecord]) -> list[Headline]:
    """One per kind of target that some number was measured on, by name.

    The largest AUC counts, and of equal ones the first label. Audits come before papers' evaluations, which know more
    than an attacker would, and the last models before those of earlier rounds.
    """
    kinds: dict[str, list[tuple[AttackRecord, Leakage]]] = {}
    for record in records:
        if isinstance(record.leakage, Leakage):
            kinds.setdefault(target_kind(record), []).append((record, record.leakage))
    return [_headline(kind, results) for kind, results in sorted(kinds.items())]


def headline_summary(records: Iterable[AttackRecord]) -> dict[str, Mapping[str, str | float]]:
    """Headlines by kind of target, for a JSON file."""
    return {headline.kind: headline.summary for headline in headlines(records)}


def _headline(kind: str, results: list[tuple[AttackRecord, Leakage]]) -> Headline:
    best = min(headline_rank(record) for record, _ in results)
    compared = [(record, leakage) for record, leakage in results if headline_rank(record) == best]
    record, leakage = min(compared, key=lambda pair: (-pair[1].auc.value, pair[0].label))
    return Headline(kind, record, leakage, any(other.conditions.adaptation for other, _ in compared))


def target_kind(record: AttackRecord) -> str:
    """Kind of target that was attacked: `global` or `uploads`."""
    return record.conditions.target.partition("@")[0]


def headline_rank(record: AttackRecord) -> tuple[bool, bool, bool]:
    """Results of the lowest rank are compared with each other; adversaries whom participants join come last."""
    conditions = record.conditions
    return conditions.protocol != "audit", "@" in conditions.target, conditions.colluding > 0
