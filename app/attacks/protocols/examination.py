"""One attack on one kind of target: the scores of all audited samples, and what they amount to."""

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
from app.metrics.leakage import known_threshold, measure_leakage
from app.metrics.membership import NO_CLIENT, Array, MembershipScores, NotAvailable
from app.metrics.resampling import Bootstrap
from app.metrics.roc import Decision, roc_curve
from app.metrics.thresholds import best_threshold, decide
from app.metrics.vulnerability import client_table


@dataclass(frozen=True, eq=False)
class Examination:
    """Attacks models with one attack. Only here do scores meet the truth.

    Attributes:
        world: the run under attack.
        source: of shadows.
        attack: the attack.
        calibrate: whether a threshold is chosen on a shadow.
    """

    world: AuditContext
    source: ShadowSource
    attack: MembershipAttack
    calibrate: bool

    def finding(self, models: Models, conditions: AttackConditions) -> Finding:
        """The rows of all models together; models that cannot be attacked are left out with a remark."""
        parts: list[MembershipScores] = []
        decisions: list[Decision] = []
        notes: list[str] = []
        for client, model in models.items():
            if isinstance(model, NotAvailable) or (reason := self._obstacle(client, model)) is not None:
                notes.append(model.reason if isinstance(model, NotAvailable) else reason or "")
                continue
            lab = AttackContext(self.world.public, self.world.oracle, self.source, model)
            parts.append(self._scored(model, lab))
            decisions.extend(self._decisions(parts[-1], lab))
            notes.extend(lab.notes)
        if not parts:
            return unavailable(conditions, "; ".join(few(notes)))
        told = (*self.world.notes, *few(notes))
        return self._measured(conditions, MembershipScores.joined(parts), decisions, told)

    def _measured(
        self, conditions: AttackConditions, scores: MembershipScores, decisions: list[Decision], notes: tuple[str, ...]
    ) -> Finding:
        # the rows of the whole federation share one model, so they are drawn one by one
        bootstrap = Bootstrap(unit="row" if conditions.target.startswith("global") else None)
        leakage = measure_leakage(scores, bootstrap=bootstrap)
        if decisions:
            leakage = replace(leakage, known=known_threshold(total_decision(decisions)))
        sizes = {client: len(self.world.truth.members[client]) for client in self.world.clients}
        return Finding(
            conditions=conditions,
            scores=scores,
            leakage=leakage,
            clients=client_table(scores, sizes),
            capacities=capacity_rows(self.world, scores, bootstrap),
            notes=notes,
        )

    def _scored(self, model: AttackedModel, lab: AttackContext) -> MembershipScores:
        samples = self.world.audited[model.client]
        scores = self.attack.scores(model, samples, lab)
        if model.is_global:
            return _by_owner(self.world, scores)
        truth = np.isin(samples, self.world.truth.members[model.client])
        return MembershipScores.of(scores, truth, samples, np.full(len(samples), model.client))

    def _decisions(self, rows: MembershipScores, lab: AttackContext) -> list[Decision]:
        """Decision at the threshold that would have been best against a shadow; none where there is no shadow."""
        if not self.calibrate:
            return []
        try:
            return [decide(rows, self._threshold(rows, lab), "knowledge")]
        except UserError as error:  # the scores stand all the same
            lab.note(f"no threshold: {error.problems[0].cause}")
            return []

    def _threshold(self, rows: MembershipScores, lab: AttackContext) -> float:
        kind = self.attack.shadows or "out"
        shadow = lab.shadows(kind, None if self.attack.shadows else 1)[0]
        # of in-out shadows, only audited samples are in some and out of others
        samples = np.intersect1d(shadow.samples, rows.samples) if kind == "in-out" else shadow.samples
        scores = self.attack.scores(shadow.model, samples, lab.playing(shadow))
        return best_threshold(roc_curve(MembershipScores.of(scores, shadow.trained_on(samples), samples)))

    def _obstacle(self, client: int, model: AttackedModel) -> str | None:
        """Why a model cannot be audited, if it cannot."""
        needed, truth = self.attack.needs_rounds, self.world.truth
        if len(model.snapshots) < needed:
            return (
                f"{self.attack.name} needs {needed} rounds, the transcript holds {len(model.snapshots)} of the target "
                "(--transcript.last or --transcript.rounds keeps more)"
            )
        chosen = self.world.clients if client == NO_CLIENT else (client,)
        inside = sum(len(truth.members[one]) for one in chosen)
        outside = sum(len(truth.nonmembers[one]) for one in chosen)
        if min(inside, outside) < 1 or inside + outside < 4:
            who = "the federation" if client == NO_CLIENT else f"client {client}"
            return (
                f"{who} has {inside} members and {outside} non-members, too few to compare "
                "(--data.holdout.clients keeps non-members)"
            )
        return None


def _by_owner(world: AuditContext, scores: Array) -> MembershipScores:
    """Rows of the whole federation's audited samples, each with the client that owns the sample."""
    samples = world.audited[NO_CLIENT]
    owner, truth = np.zeros(len(samples), dtype=np.int64), np.zeros(len(samples), dtype=bool)
    for client in world.clients:
        owner[np.isin(samples, world.audited[client])] = client
        truth |= np.isin(samples, world.truth.members[client])
    return MembershipScores.of(scores, truth, samples, owner)
