"""Base class and common functions of evaluation protocols."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

from app.attacks.audit_context import AuditContext
from app.attacks.findings import AttackConditions, CapacityRow, Finding, ReportedNumber, explained, unavailable
from app.common.errors import UserError
from app.common.ranges import Checked
from app.metrics.bootstrap import BOOTSTRAP, Bootstrap
from app.metrics.leakage import known_threshold, measure_leakage
from app.metrics.membership import MembershipScores, NotAvailable
from app.metrics.roc import Decision
from app.metrics.vulnerability import client_table


class Protocol(Checked, ABC):
    """A way to evaluate attacks: samples, the attacker's knowledge, and reported numbers."""

    name: ClassVar[str]

    rounds_to_keep: ClassVar[frozenset[int]] = frozenset()
    """Rounds (counted from 1) that it attacks beside the last ones."""

    @abstractmethod
    def findings(self, audit: AuditContext) -> Iterator[Finding]:
        """Run the attacks one after the other, and yield each result at once."""


def guarded(conditions: AttackConditions, attempt: Callable[[], Finding]) -> Finding:
    """The finding with its duration; where the attack is refused or breaks down, a finding with the reason."""
    started = time.perf_counter()
    try:
        return replace(attempt(), seconds=time.perf_counter() - started)
    except Exception as error:  # the results of the other attacks must not be lost
        failed = not isinstance(error, UserError)
        return unavailable(conditions, explained(error), time.perf_counter() - started, failed=failed)


def measured(
    audit: AuditContext,
    conditions: AttackConditions,
    scores: MembershipScores,
    decisions: Sequence[Decision],
    notes: Sequence[str],
    figures: Sequence[ReportedNumber] = (),
    bootstrap: Bootstrap = BOOTSTRAP,
) -> Finding:
    """The finding of all rows together, of every client and of every width; decisions are those on all targets."""
    leakage = measure_leakage(scores, bootstrap=bootstrap)
    if decisions:
        leakage = replace(leakage, known=known_threshold(total_decision(decisions)))
    sizes = {client: len(audit.truth.members[client]) for client in audit.clients}
    capacities = _capacity_rows(audit.rates, scores, bootstrap)
    clients, told = client_table(scores, sizes), (*audit.notes, *notes)
    return Finding(conditions, scores, leakage, clients, capacities, tuple(figures), told)


def _capacity_rows(rates: Sequence[float], scores: MembershipScores, bootstrap: Bootstrap) -> tuple[CapacityRow, ...]:
    """Leakage by width, widest first; empty where all clients train one width."""
    capacities = []
    for rate in sorted(set(rates), reverse=True) if len(set(rates)) > 1 else ():
        clients = [client for client, own in enumerate(rates) if own == rate]
        rows = scores.select_clients(clients)
        leakage = rows if isinstance(rows, NotAvailable) else measure_leakage(rows, bootstrap=bootstrap)
        capacities.append(CapacityRow(rate, len(clients), leakage))
    return tuple(capacities)


def total_decision(decisions: Sequence[Decision]) -> Decision:
    """Sum of the decisions on all targets; the threshold is NaN where each target had its own."""
    threshold = decisions[0].threshold if len(decisions) == 1 else math.nan
    counts = ("true_positives", "members", "false_positives", "nonmembers")
    totals = {name: sum(getattr(decision, name) for decision in decisions) for name in counts}
    return Decision(threshold, **totals, chosen_on=decisions[0].chosen_on)


def few(texts: Sequence[str], most: int = 4) -> list[str]:
    """The first distinct texts, and how many more there are."""
    distinct = list(dict.fromkeys(texts))
    more = len(distinct) - most
    return distinct if more <= 0 else [*distinct[:most], f"and {more} more like these"]
