"""Files of membership inference: scores as arrays, everything else as JSON, one pair of files per result."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from app.attacks.findings import AttackConditions, CapacityRow, Finding, ReportedNumber
from app.metrics.intervals import Interval
from app.metrics.leakage import KnownThreshold, Leakage, TprAtFpr
from app.metrics.membership import MembershipScores, NotAvailable
from app.metrics.roc import Decision
from app.metrics.vulnerability import ClientRow
from app.results.run.files import ResultFiles

ARRAYS = ("scores", "members", "samples", "clients")


@dataclass(frozen=True)
class AttackRecord:
    """A finding without its scores: what a reader of the run folder gets back.

    Attributes:
        leakage: how well members were told apart, or why no number is given.
        no_scores: why there are no scores; None where they are kept in a file of their own.
        capacities: leakage by width, widest first.
        figures: numbers as the followed paper reports them.
        notes: warnings and remarks.
        failed: whether the attack failed with an error.
    """

    conditions: AttackConditions
    leakage: Leakage | NotAvailable
    no_scores: NotAvailable | None
    clients: tuple[ClientRow, ...]
    capacities: tuple[CapacityRow, ...]
    figures: tuple[ReportedNumber, ...]
    notes: tuple[str, ...]
    seconds: float
    failed: bool

    @classmethod
    def of(cls, finding: Finding) -> AttackRecord:
        same = {field.name: getattr(finding, field.name) for field in fields(cls) if field.name != "no_scores"}
        return cls(**same, no_scores=finding.scores if isinstance(finding.scores, NotAvailable) else None)

    @property
    def label(self) -> str:
        return self.conditions.label

    @property
    def worst_client(self) -> tuple[int, Leakage] | None:
        """Id and leakage of the client with the largest AUC; None where no client has one."""
        measured = [(row.client, row.leakage) for row in self.clients if isinstance(row.leakage, Leakage)]
        return max(measured, key=lambda row: row[1].auc.value, default=None)

    @property
    def numbers(self) -> dict[str, float]:
        """Every number that is available, by name; rates and areas are fractions, `paper/...` in the paper's unit."""
        numbers: dict[str, float] = {}
        if isinstance(self.leakage, Leakage):
            numbers |= dict(_leakage_numbers(self.leakage))
        if self.worst_client is not None:
            client, leakage = self.worst_client
            numbers |= {"worst_client": client, "worst_client_auc": leakage.auc.value}
        numbers |= {f"paper/{figure.name}": figure.value for figure in self.figures}
        numbers["seconds"] = self.seconds
        return {name: number for name, number in numbers.items() if math.isfinite(number)}


class AttackFiles(ResultFiles[AttackRecord]):
    """Results of membership inference: the folder `attacks` of a run, scores as arrays."""

    kind = AttackRecord
    prefix = "attacks"
    arrays_name = "scores"
    others = ("factors.json",)

    def write(self, finding: Finding) -> None:
        scores = finding.scores
        arrays = None if isinstance(scores, NotAvailable) else {name: getattr(scores, name) for name in ARRAYS}
        self.save(AttackRecord.of(finding), arrays)

    def scores(self, label: str) -> MembershipScores:
        return MembershipScores(**self.arrays(label, ARRAYS))

    def scores_by_label(self) -> dict[str, MembershipScores]:
        """Scores by label of all results that have some."""
        return {record.label: self.scores(record.label) for record in self.records() if record.no_scores is None}

    @staticmethod
    def mend(value: Any) -> Any:
        """Infinite thresholds, which JSON cannot hold, follow from who is called a member: nobody or everybody."""
        if not isinstance(value, Decision) or not math.isnan(value.threshold):
            return value
        nobody = value.true_positives + value.false_positives == 0
        return replace(value, threshold=math.inf if nobody else -math.inf)


def tpr_at(leakage: Leakage, target: float) -> TprAtFpr | None:
    """The share of members found at one target FPR, 0 to 1; None where it was refused."""
    entries = [entry for entry in leakage.tpr if isinstance(entry, TprAtFpr) and math.isclose(entry.target, target)]
    return entries[0] if entries else None


def rate_name(target: float) -> str:
    """Key of the TPR at a target FPR, 0 to 1: `tpr_at_0.1%` for 0.001."""
    return f"tpr_at_{100 * target:g}%"


def _leakage_numbers(leakage: Leakage) -> Iterator[tuple[str, float]]:
    yield from (("members", leakage.members), ("nonmembers", leakage.nonmembers))
    yield from _with_bounds("auc", leakage.auc.value, leakage.auc.interval)
    for entry in leakage.tpr:
        if isinstance(entry, TprAtFpr):
            yield from _with_bounds(rate_name(entry.target), entry.decision.tpr, entry.tpr_at_target)
    if isinstance(leakage.known, KnownThreshold):
        accuracy = leakage.known.decision.balanced_accuracy
        yield from _with_bounds("balanced_accuracy", accuracy, leakage.known.balanced_accuracy)
    yield "balanced_accuracy_optimistic", leakage.optimistic.balanced_accuracy


def _with_bounds(name: str, value: float, interval: Interval | NotAvailable) -> Iterator[tuple[str, float]]:
    yield name, value
    if isinstance(interval, Interval):
        yield from ((f"{name}_low", interval.low), (f"{name}_high", interval.high))
