"""Results of membership inference: scores as arrays, everything else as JSON, tables, figures, ROC curves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from app.attacks.findings import AttackConditions, CapacityRow, Finding, ReportedNumber
from app.metrics.intervals import Interval
from app.metrics.leakage import KnownThreshold, Leakage, TprAtFpr
from app.metrics.membership import MembershipScores, NotAvailable
from app.metrics.roc import Decision, log_log_roc, roc_curve
from app.metrics.vulnerability import ClientRow
from app.result import IN_MEMORY, Curves, PlainTable, Result
from app.results.attacks.headline import headline_summary
from app.results.attacks.membership_figures import draw_clients, draw_leakage, draw_roc
from app.results.attacks.membership_report import clients_csv, rows, samples_csv, table
from app.results.attacks.wording import rate_name

ARRAYS = ("scores", "members", "samples", "clients")

CURVE_POINTS = 100
"""Points of a ROC curve in a tracker, equally far apart on a logarithmic axis."""


@dataclass(frozen=True, eq=False, repr=False)
class AttackRecord(Result):
    """Result of one membership attack on one kind of target."""

    kind = "membership inference"
    redrawn = True
    folder = "attacks"
    part = "attacks"

    conditions: AttackConditions
    leakage: Leakage | NotAvailable  # how well members were told apart, or why no number is given
    no_scores: NotAvailable | None  # why there are no scores; None where they are kept in a file of their own
    clients: tuple[ClientRow, ...]
    capacities: tuple[CapacityRow, ...]  # leakage by width, widest first
    figures: tuple[ReportedNumber, ...]  # numbers as the followed paper reports them
    notes: tuple[str, ...]  # warnings and remarks
    seconds: float
    failed: bool  # whether the attack failed with an error
    # the scores of a result that was not loaded
    new_scores: MembershipScores | None = field(default=None, metadata=IN_MEMORY)
    # last hidden layer of the attack network, by the rows of the scores; not kept in a file
    hidden: NDArray[np.float32] | None = field(default=None, metadata=IN_MEMORY)
    # width of each client, for the figures; unknown for a result that was loaded
    rates: Sequence[float] = field(default=(), metadata=IN_MEMORY)

    @classmethod
    def of(cls, finding: Finding, rates: Sequence[float] = ()) -> AttackRecord:
        """The result of an attack on clients of these widths."""
        given = {each.name for each in fields(finding)}
        same = {each.name: getattr(finding, each.name) for each in fields(cls) if each.name in given}
        scores = finding.scores
        if isinstance(scores, NotAvailable):
            return cls(**same, no_scores=scores, rates=rates)
        return cls(**same, no_scores=None, new_scores=scores, rates=rates)

    def finding(self) -> Finding:
        """The finding that it was made of."""
        same = {each.name: getattr(self, each.name) for each in fields(Finding) if each.name != "scores"}
        return Finding(**same, scores=self.no_scores or self.scores)

    @property
    def scores(self) -> MembershipScores:
        """One row per audited pair of sample and client, read from the file where it is not at hand."""
        return self.new_scores or MembershipScores(**self.stored_arrays(ARRAYS))

    def arrays(self) -> Mapping[str, Any] | None:
        return None if self.no_scores is not None else {name: getattr(self.scores, name) for name in ARRAYS}

    def draw(self, title: str) -> Iterator[tuple[str, Figure]]:
        if self.clients:
            yield f"{self.label}.clients.png", draw_clients(self, dict(enumerate(self.rates)))

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

    @classmethod
    def text(cls, results: Sequence[Self]) -> str:
        return table(results)

    @classmethod
    def table(cls, results: Sequence[Self]) -> PlainTable:
        return rows(results)

    @classmethod
    def summary(cls, results: Sequence[Self]) -> dict[str, Any]:
        """All numbers, and the strongest attack on each kind of target as `headline`."""
        strongest = headline_summary(results)
        return {**super().summary(results), **({"headline": strongest} if strongest else {})}

    @classmethod
    def curves(cls, results: Sequence[Self]) -> Curves:
        """FPR and TPR of the points that a logarithmic axis can show."""
        lines = {}
        for label, scores in scores_by_label(results).items():
            points = zip(*log_log_roc(roc_curve(scores), CURVE_POINTS), strict=True)
            lines[label] = [(float(fpr), float(tpr)) for fpr, tpr in points if tpr > 0]
        return lines

    @classmethod
    def files(cls, results: Sequence[Self]) -> Iterator[tuple[str, str]]:
        yield "attacks/clients.csv", clients_csv(results)
        yield "attacks/vulnerable.csv", samples_csv(scores_by_label(results))

    @classmethod
    def overview(cls, results: Sequence[Self], title: str) -> Iterator[tuple[str, Figure]]:
        if scores := scores_by_label(results):
            yield "attacks/roc.png", draw_roc(scores, title)
        yield "attacks/leakage.png", draw_leakage(results, title)

    @classmethod
    def paths(cls, run: Path) -> list[Path]:
        return [path for path in super().paths(run) if path.name != "factors.json"]

    @classmethod
    def mend(cls, value: Any) -> Any:
        """Infinite thresholds, which JSON cannot hold, follow from who is called a member: nobody or everybody."""
        if not isinstance(value, Decision) or not math.isnan(value.threshold):
            return value
        nobody = value.true_positives + value.false_positives == 0
        return replace(value, threshold=math.inf if nobody else -math.inf)


def scores_by_label(results: Sequence[AttackRecord]) -> dict[str, MembershipScores]:
    """Scores of all results that have some."""
    return {result.label: result.scores for result in results if result.no_scores is None}


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
