"""Base class and common functions of evaluation protocols."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

from app.attacks.audit_context import AuditContext
from app.attacks.findings import AttackConditions, CapacityRow, Finding, explained, unavailable
from app.described import Described
from app.errors import UserError
from app.metrics.bootstrap import BOOTSTRAP, Bootstrap
from app.metrics.leakage import measure_leakage
from app.metrics.membership import MembershipScores, NotAvailable
from app.metrics.roc import Decision


class Protocol(Described, ABC):
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


def capacity_rows(
    audit: AuditContext, scores: MembershipScores, bootstrap: Bootstrap = BOOTSTRAP
) -> tuple[CapacityRow, ...]:
    """Leakage by width, widest first; empty where all clients train one width."""
    rates = audit.rates
    if len(set(rates)) < 2:
        return ()
    capacities = []
    for rate in sorted(set(rates), reverse=True):
        clients = [client for client, own in enumerate(rates) if own == rate]
        rows = scores.select_clients(clients)
        leakage = rows if isinstance(rows, NotAvailable) else measure_leakage(rows, bootstrap=bootstrap)
        capacities.append(CapacityRow(rate, len(clients), leakage))
    return tuple(capacities)


def total_decision(decisions: Sequence[Decision]) -> Decision:
    """Sum of the decisions on all targets; the threshold is NaN where each target had its own."""
    threshold = decisions[0].threshold if len(decisions) == 1 else math.nan
    return Decision(
        threshold,
        true_positives=sum(decision.true_positives for decision in decisions),
        members=sum(decision.members for decision in decisions),
        false_positives=sum(decision.false_positives for decision in decisions),
        nonmembers=sum(decision.nonmembers for decision in decisions),
        chosen_on=decisions[0].chosen_on,
    )


def few(texts: Sequence[str], most: int = 4) -> list[str]:
    """The first distinct texts, and how many more there are."""
    distinct = list(dict.fromkeys(texts))
    more = len(distinct) - most
    return distinct if more <= 0 else [*distinct[:most], f"and {more} more like these"]
