"""The audit: random members and non-members, disjoint sets, controls, and an interval for every number."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from operator import attrgetter
from typing import Literal

import numpy as np

from app.attacks.adaptive.base import Adaptation, adapted_name
from app.attacks.adaptive.catalogue import RETRAINED, RETRAINED_WHAT, called_for, marks_models, unmatched
from app.attacks.audit_context import AuditContext
from app.attacks.context import AttackContext, ShadowSource, Uploads
from app.attacks.controls import attack_controls, blind_failures, metric_failures
from app.attacks.findings import AttackConditions, Finding, unavailable
from app.attacks.membership.base import MembershipAttack
from app.attacks.models import AttackedModel, TargetKind
from app.attacks.protocols.base import Protocol, few, guarded, measured
from app.attacks.protocols.target_selection import TargetSelection, adaptation_notes, seen_models
from app.attacks.shadows.federated import FederatedShadows
from app.attacks.shadows.shadow_store import DEFAULT_SHADOWS, CentralShadows, ShadowMode, ShadowSettings
from app.attacks.targets import Models, uploads_beside
from app.common.errors import UserError
from app.common.progress import Step, track
from app.common.ranges import Count
from app.common.wording import counted
from app.metrics.bootstrap import Bootstrap
from app.metrics.membership import NO_CLIENT, MembershipScores, NotAvailable
from app.metrics.paired_tests import PairedDifference, compare_auc
from app.metrics.roc import Decision, roc_curve, tpr_at_fpr
from app.metrics.thresholds import best_threshold, decide

ControlPolicy = Literal["withhold", "warn", "skip"]
"""Treatment of the numbers of an attack that fails a control."""


@dataclass(frozen=True)
class AuditSettings:
    """Settings of an audit.

    Attributes:
        targets: the model of the whole federation, each client's last upload, or both.
        rounds: further rounds to attack, counted from 1; attacks over several rounds use those and the last one.
        calibrate: whether attackers without a threshold of their own choose one on a shadow, which gives accuracies
            beside the ROC curves.
        adaptive: whether to add attackers who know the defenses.
    """

    targets: tuple[TargetKind, ...] = ("global", "uploads")
    rounds: tuple[Count, ...] = ()
    shadows: ShadowSettings = DEFAULT_SHADOWS
    calibrate: bool = True
    controls: ControlPolicy = "withhold"
    adaptive: bool = True


@dataclass(frozen=True)
class PlannedAttack:
    """One attack on one target, with one mode of shadows; `retrained` if these are an adaptation to the defense."""

    attack: MembershipAttack
    selection: TargetSelection
    mode: ShadowMode
    retrained: bool

    @property
    def title(self) -> str:
        """The attack and its target in words, for lines of progress."""
        adapted = f" ({self.adaptation})" if self.adaptation else ""
        return f"{self.attack.name} on {self.selection.kind}, round {self.selection.round}{adapted}"

    @property
    def adaptation(self) -> str:
        """Names of all adaptations to the defense; empty for none."""
        return "+".join(filter(None, [adapted_name(self.selection.adaptations), RETRAINED if self.retrained else ""]))


class Audit(Protocol):
    """Runs attacks on all targets, by attackers who do not know the defenses and by attackers who do."""

    name = "audit"

    def __init__(self, attacks: Sequence[MembershipAttack], settings: AuditSettings) -> None:
        self._attacks, self._settings = tuple(attacks), settings

    def findings(self, audit: AuditContext) -> Iterator[Finding]:
        audit.check_disjoint()
        sources, blind, last = self._sources(audit), self._blind(audit), audit.knowledge.rounds
        earlier = sorted({round_ for round_ in self._settings.rounds if round_ < last}, reverse=True)
        notes = {kind: self._unmatched(audit, kind) for kind in self._settings.targets}
        rounds = [(kind, round_) for kind in self._settings.targets for round_ in (last, *earlier)]
        attacks = [planned for kind, round_ in rounds for planned in self._planned(audit, kind, round_)]
        losses: dict[tuple[TargetKind, int, tuple[Adaptation, ...]], Finding] = {}
        for planned in track(attacks, "membership inference", "attacks", name=attrgetter("title")):
            selection = planned.selection
            done = audit.done.get(self._conditions(audit, planned).label)
            finding = done or self._controlled(audit, planned.attack, self._run(audit, sources, planned), blind)
            same = (selection.kind, selection.round, selection.adaptations)
            if planned.attack.name == "yeom":
                losses[same] = finding
            if done is None:
                finding = _compared(finding, losses.get(same))
                finding = finding if planned.adaptation else finding.with_notes(*notes[selection.kind])
            yield finding

    def _planned(self, audit: AuditContext, kind: TargetKind, round_: int) -> Iterator[PlannedAttack]:
        """By attack; first the attacker who does not know the defenses."""
        mode, knowledge = self._settings.shadows.mode, audit.knowledge
        adapted = called_for(knowledge.traits, kind) if self._settings.adaptive else []
        marked = mode == "both" or any(map(marks_models, knowledge.defenses))
        for attack in self._attacks:
            both: tuple[ShadowMode, ...] = ("central", "federated") if attack.shadows else ("central",)
            for made in both if mode == "both" else (mode,):
                retrained = made == "federated" and marked and attack.shadows is not None
                for adaptations in ((), *adapted):
                    selection = TargetSelection(kind, round_, attack.all_rounds, adaptations)
                    yield PlannedAttack(attack, selection, made, retrained)

    def _run(self, audit: AuditContext, sources: Mapping[ShadowMode, ShadowSource], planned: PlannedAttack) -> Finding:
        settings, attack, selection = self._settings, planned.attack, planned.selection
        conditions = self._conditions(audit, planned)
        evaluation = AttackEvaluation(audit, sources[planned.mode], attack, settings.calibrate)

        def finding() -> Finding:
            models = seen_models(audit, selection, settings.rounds)
            notes = [*adaptation_notes(models), *([RETRAINED_WHAT] if planned.retrained else [])]
            return evaluation.finding(models, conditions).with_notes(*notes)

        return guarded(conditions, finding)

    def _conditions(self, audit: AuditContext, planned: PlannedAttack) -> AttackConditions:
        attack = planned.attack
        shadows = f"{self._settings.shadows.count} {planned.mode}" if attack.shadows else "none"
        conditions = planned.selection.conditions(audit, attack.name, self.name, attack.threat, shadows)
        return replace(conditions, adaptation=planned.adaptation)

    def _unmatched(self, audit: AuditContext, kind: TargetKind) -> list[str]:
        """A note on defenses without an adaptive attacker."""
        planned = list(self._planned(audit, kind, audit.knowledge.rounds))
        used = {adaptation for one in planned for adaptation in one.selection.adaptations}
        left = unmatched(audit.knowledge.defenses, used, kind)
        if not left or any(one.retrained for one in planned):
            return []
        remedy = (
            "`rampart attack` with --shadows.mode both trains shadows of lira-online and the like through the defense"
        )
        return [f"no attacker who adapts to {' and '.join(left)} was tried: {remedy}"]

    def _sources(self, audit: AuditContext) -> Mapping[ShadowMode, ShadowSource]:
        settings = self._settings.shadows
        central = CentralShadows(audit.knowledge, audit.audited, settings.count, audit.cache)
        if settings.mode == "central":
            return {"central": central}
        if audit.federations is None:
            raise UserError.of(
                f"shadows.mode is {settings.mode}, but the federation cannot be repeated here",
                "there would be no shadow models",
                "start the attack with `rampart fit` or `rampart attack`, or use shadows.mode central",
            )
        federated = FederatedShadows(
            audit.knowledge, audit.audited, audit.kept_rounds, audit.federations, settings.count, audit.cache
        )
        return {"central": central, "federated": federated}

    def _blind(self, audit: AuditContext) -> list[str]:
        if self._settings.controls == "skip":
            return []
        members, outside = (np.concatenate(list(part)) for part in (audit.truth.members, audit.truth.nonmembers))
        with Step("blind baseline, which sees no model", delay=0):
            return blind_failures(audit.knowledge.store, members, outside, audit.knowledge.seed)

    def _controlled(self, audit: AuditContext, attack: MembershipAttack, finding: Finding, blind: list[str]) -> Finding:
        if self._settings.controls == "skip" or isinstance(finding.scores, NotAvailable):
            return finding
        tested = attack_controls().failures(attack, audit.cache)
        failures = [*tested, *metric_failures(finding.scores, audit.knowledge.seed), *blind]
        if not failures:
            return finding
        reason = f"a control failed: {'; '.join(failures)}"
        if self._settings.controls == "warn":
            return finding.with_notes(reason)
        return replace(finding, leakage=NotAvailable(f"withheld, {reason}"), clients=(), capacities=())


def _compared(finding: Finding, loss: Finding | None) -> Finding:
    """A note where an attack that is calibrated by shadows is worse than the plain loss, also at a low FPR."""
    if loss is None or not finding.conditions.attack.startswith(("lira", "rmia")):
        return finding
    plain, calibrated = loss.scores, finding.scores
    if not (isinstance(plain, MembershipScores) and isinstance(calibrated, MembershipScores)):
        return finding
    if plain.scores.size != calibrated.scores.size or _tpr(calibrated) > _tpr(plain):
        return finding
    gap = compare_auc(plain, calibrated)
    if isinstance(gap, PairedDifference) and gap.difference > 0 and gap.verdict != "indistinguishable":
        return finding.with_notes(
            f"uncalibrated: weaker than the plain loss by {gap.difference:.3f} of AUC, so the shadows probably "
            "do not match the target"
        )
    return finding


def _tpr(scores: MembershipScores) -> float:
    """TPR at 1 % FPR, 0 to 1; 0 with too few non-members."""
    point = tpr_at_fpr(roc_curve(scores), 0.01)
    return 0.0 if isinstance(point, NotAvailable) else point.tpr


@dataclass(frozen=True, eq=False)
class AttackEvaluation:
    """Attacks models with one attack, compares the scores with the truth, and calibrates a threshold on a shadow."""

    audit: AuditContext
    source: ShadowSource
    attack: MembershipAttack
    calibrate: bool

    def finding(self, models: Models, conditions: AttackConditions) -> Finding:
        """The rows of all models together; models that cannot be attacked are left out with a note."""
        parts: list[MembershipScores] = []
        decisions: list[Decision] = []
        notes: list[str] = []
        attacked: list[AttackedModel] = []
        uploads = cache(partial(self._uploads, models))
        for client, model in models.items():
            if isinstance(model, NotAvailable) or (obstacle := self._obstacle(client, model, uploads)):
                notes.append(model.reason if isinstance(model, NotAvailable) else obstacle)
            else:
                attacked.append(model)
        if self.attack.shadows:
            self.source.prepare(attacked, self.attack.shadows)
        for model in attacked:
            context = self._context(model, uploads)
            parts.append(self._scored(model, context))
            decisions.extend(self._decisions(parts[-1], context))
            notes.extend(context.notes)
        if not parts:
            return unavailable(conditions, "; ".join(few(notes)))
        # the rows of the whole federation share one model, so they are resampled one by one
        bootstrap = Bootstrap(unit="row" if conditions.target.startswith("global") else None)
        scores = MembershipScores.joined(parts)
        return measured(self.audit, conditions, scores, decisions, few(notes), bootstrap=bootstrap)

    def _context(self, model: AttackedModel, uploads: Callable[[], Uploads]) -> AttackContext:
        audit = self.audit
        return AttackContext(audit.knowledge, audit.query, self.source, model, audit.cache, uploads)

    def _uploads(self, models: Models) -> Uploads:
        """What all clients have uploaded, where the attacked models are uploads too."""
        seen = [model for model in models.values() if isinstance(model, AttackedModel)]
        if NO_CLIENT in models or not seen:
            return {}
        return uploads_beside(self.audit.transcript.server_view(), self.audit.knowledge, seen)

    def _scored(self, model: AttackedModel, context: AttackContext) -> MembershipScores:
        """Rows of the audited samples, each with the client that owns it."""
        samples, truth = self.audit.audited[model.client], self.audit.truth.members
        owners = self.audit.clients if model.client == NO_CLIENT else (model.client,)
        owner, inside = np.zeros(len(samples), dtype=np.int64), np.zeros(len(samples), dtype=bool)
        for client in owners:
            owner[np.isin(samples, self.audit.audited[client])] = client
            inside |= np.isin(samples, truth[client])
        return MembershipScores.of(self.attack.scores(model, samples, context), inside, samples, owner)

    def _decisions(self, rows: MembershipScores, context: AttackContext) -> list[Decision]:
        """Decision at the attack's own threshold or the best one on a shadow; none where there is no shadow."""
        if self.attack.threshold is not None:
            return [decide(rows, self.attack.threshold, "knowledge")]
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

    def _obstacle(self, client: int, model: AttackedModel, uploads: Callable[[], Uploads]) -> str:
        """Why the model cannot be attacked; empty where it can."""
        needed, truth = self.attack.needs_rounds, self.audit.truth
        if len(model.snapshots) < needed:
            return (
                f"{self.attack.name} needs {counted(needed, 'round')}, the transcript holds {len(model.snapshots)} of "
                "the target (--transcript.last or --transcript.rounds keeps more)"
            )
        chosen = self.audit.clients if client == NO_CLIENT else (client,)
        inside, outside = (sum(len(part[one]) for one in chosen) for part in (truth.members, truth.nonmembers))
        if min(inside, outside) >= 1 and inside + outside >= 4:
            return self.attack.obstacle(model, self._context(model, uploads))
        owner = "the federation" if client == NO_CLIENT else f"client {client}"
        return (
            f"{owner} has {counted(inside, 'member')} and {counted(outside, 'non-member')}, too few to compare "
            "(--data.holdout.clients keeps non-members)"
        )
