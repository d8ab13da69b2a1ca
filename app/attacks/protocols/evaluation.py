"""Evaluation of one attack on one kind of target: scores of all audited samples, and the measured leakage."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from app.attacks.audit_context import AuditContext
from app.attacks.context import AttackContext, ShadowSource
from app.attacks.findings import AttackConditions, Finding, unavailable
from app.attacks.membership.base import MembershipAttack
from app.attacks.models import AttackedModel
from app.attacks.protocols.base import capacity_rows, few, total_decision
from app.attacks.targets import Models
from app.errors import UserError
from app.metrics.bootstrap import Bootstrap
from app.metrics.leakage import known_threshold, measure_leakage
from app.metrics.membership import NO_CLIENT, Array, MembershipScores, NotAvailable
from app.metrics.roc import Decision, roc_curve
from app.metrics.thresholds import best_threshold, decide
from app.metrics.vulnerability import client_table


@dataclass(frozen=True, eq=False)
class AttackEvaluation:
    """Attacks models with one attack, and compares the scores with the truth.

    Attributes:
        source: of shadows.
        calibrate: whether a threshold is chosen on a shadow.
    """

    audit: AuditContext
    source: ShadowSource
    attack: MembershipAttack
    calibrate: bool

    def finding(self, models: Models, conditions: AttackConditions) -> Finding:
        """The rows of all models together; models that cannot be attacked are left out with a note."""
        parts: list[MembershipScores] = []
        decisions: list[Decision] = []
        notes: list[str] = []
        for client, model in models.items():
            if isinstance(model, NotAvailable) or (reason := self._obstacle(client, model)) is not None:
                notes.append(model.reason if isinstance(model, NotAvailable) else reason or "")
                continue
            context = AttackContext(self.audit.knowledge, self.audit.query, self.source, model)
            parts.append(self._scored(model, context))
            decisions.extend(self._decisions(parts[-1], context))
            notes.extend(context.notes)
        if not parts:
            return unavailable(conditions, "; ".join(few(notes)))
        return self._measured(conditions, MembershipScores.joined(parts), decisions, (*self.audit.notes, *few(notes)))

    def _measured(
        self, conditions: AttackConditions, scores: MembershipScores, decisions: list[Decision], notes: tuple[str, ...]
    ) -> Finding:
        # the rows of the whole federation share one model, so they are resampled one by one
        bootstrap = Bootstrap(unit="row" if conditions.target.startswith("global") else None)
        leakage = measure_leakage(scores, bootstrap=bootstrap)
        if decisions:
            leakage = replace(leakage, known=known_threshold(total_decision(decisions)))
        sizes = {client: len(self.audit.truth.members[client]) for client in self.audit.clients}
        return Finding(
            conditions=conditions,
            scores=scores,
            leakage=leakage,
            clients=client_table(scores, sizes),
            capacities=capacity_rows(self.audit, scores, bootstrap),
            notes=notes,
        )

    def _scored(self, model: AttackedModel, context: AttackContext) -> MembershipScores:
        samples = self.audit.audited[model.client]
        scores = self.attack.scores(model, samples, context)
        if model.is_global:
            return _by_owner(self.audit, scores)
        truth = np.isin(samples, self.audit.truth.members[model.client])
        return MembershipScores.of(scores, truth, samples, np.full(len(samples), model.client))

    def _decisions(self, rows: MembershipScores, context: AttackContext) -> list[Decision]:
        """Decision at the best threshold of an attack on a shadow; none where there is no shadow."""
        if not self.calibrate:
            return []
        try:
            return [decide(rows, self._threshold(rows, context), "knowledge")]
        except UserError as error:  # the scores are valid without a threshold
            context.note(f"no threshold: {error.problems[0].cause}")
            return []

    def _threshold(self, rows: MembershipScores, context: AttackContext) -> float:
        kind = self.attack.shadows or "out"
        shadow = context.shadows(kind, None if self.attack.shadows else 1)[0]
        # of in-out shadows, only audited samples are in some and out of others
        samples = np.intersect1d(shadow.samples, rows.samples) if kind == "in-out" else shadow.samples
        scores = self.attack.scores(shadow.model, samples, context.attacking(shadow))
        return best_threshold(roc_curve(MembershipScores.of(scores, shadow.trained_on(samples), samples)))

    def _obstacle(self, client: int, model: AttackedModel) -> str | None:
        """Why a model cannot be audited, if it cannot."""
        needed, truth = self.attack.needs_rounds, self.audit.truth
        if len(model.snapshots) < needed:
            return (
                f"{self.attack.name} needs {needed} rounds, the transcript holds {len(model.snapshots)} of the target "
                "(--transcript.last or --transcript.rounds keeps more)"
            )
        chosen = self.audit.clients if client == NO_CLIENT else (client,)
        inside = sum(len(truth.members[one]) for one in chosen)
        outside = sum(len(truth.nonmembers[one]) for one in chosen)
        if min(inside, outside) < 1 or inside + outside < 4:
            owner = "the federation" if client == NO_CLIENT else f"client {client}"
            return (
                f"{owner} has {inside} members and {outside} non-members, too few to compare "
                "(--data.holdout.clients keeps non-members)"
            )
        return None


def _by_owner(audit: AuditContext, scores: Array) -> MembershipScores:
    """Rows of the whole federation's audited samples, each with the client that owns the sample."""
    samples = audit.audited[NO_CLIENT]
    owner, truth = np.zeros(len(samples), dtype=np.int64), np.zeros(len(samples), dtype=bool)
    for client in audit.clients:
        owner[np.isin(samples, audit.audited[client])] = client
        truth |= np.isin(samples, audit.truth.members[client])
    return MembershipScores.of(scores, truth, samples, owner)
