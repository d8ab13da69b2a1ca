"""Which models are attacked, and through which adversary's eyes."""

from __future__ import annotations

from dataclasses import dataclass

from app.attacks.adaptive.base import Adaptation, ReadingStrategy
from app.attacks.audit_context import AuditContext
from app.attacks.membership.base import Adversary
from app.attacks.models import AttackedModel, TargetKind
from app.attacks.targets import Models, aggregated_models, released_model, uploaded_models
from app.metrics.membership import NotAvailable


@dataclass(frozen=True)
class TargetSelection:
    """One kind of target at one time.

    Attributes:
        kind: of the target.
        round: the attacker acts at the end of this round, counted from 1.
        all_rounds: whether it uses the rounds before, too.
        adaptations: what it does to the models before it attacks them, knowing the defense.
    """

    kind: TargetKind
    round: int
    all_rounds: bool
    adaptations: tuple[Adaptation, ...] = ()

    def name(self, audit: AuditContext) -> str:
        """`global` or `uploads`, with `@round` for models that are not the run's last ones."""
        return self.kind if self._released(audit) else f"{self.kind}@{self.round}"

    def adversary(self, audit: AuditContext) -> Adversary:
        """Who sees such a target: only the last global model leaves the federation."""
        if self.kind == "uploads":
            return "server"
        before = self.all_rounds or any(adaptation.needs_rounds > 1 for adaptation in self.adaptations)
        return "external" if self._released(audit) and not before else "client"

    def reading(self, audit: AuditContext, rounds: tuple[int, ...]) -> ReadingStrategy | None:
        """How the attacker reads models of the run that it has seen in some rounds; None for as they were seen."""
        if not self.adaptations:
            return None
        return ReadingStrategy(tuple(one.fitted(audit.knowledge.prototype) for one in self.adaptations), rounds)

    def _released(self, audit: AuditContext) -> bool:
        return audit.final and self.round == audit.knowledge.rounds


def rounds_to_attack(audit: AuditContext, further: tuple[int, ...]) -> list[int]:
    """The last round, then the further ones that were asked for, latest first."""
    asked = sorted({round_ for round_ in further if round_ < audit.knowledge.rounds}, reverse=True)
    return [audit.knowledge.rounds, *asked]


def seen_models(audit: AuditContext, selection: TargetSelection, further: tuple[int, ...]) -> Models:
    """The models that the adversary has seen by the end of the round.

    Args:
        audit: the run under attack.
        choice: what is attacked.
        further: rounds that attacks over several rounds use beside the last; empty for all that were kept.
    """
    kept = tuple(round_ for round_ in audit.kept_rounds if round_ <= selection.round)
    several = tuple(round_ for round_ in kept if round_ in further or round_ == kept[-1]) if further else kept
    prefix = f"target-{selection.round}-{'all' if selection.all_rounds else 'last'}"
    adversary, knowledge = selection.adversary(audit), audit.knowledge
    reading = selection.reading(audit, kept)
    if adversary == "server":
        recent = kept if selection.round == knowledge.rounds else (selection.round,)
        looked_at = several if selection.all_rounds else recent
        view = audit.transcript.server_view()
        return resolved(uploaded_models(view, knowledge, looked_at, prefix, not selection.all_rounds, reading))
    if adversary == "client":
        looked_at = several if selection.all_rounds else (selection.round,)
        model = aggregated_models(audit.transcript.client_view(), knowledge, looked_at, prefix, reading)
    else:
        model = released_model(audit.transcript.external_view(), knowledge, prefix)
    return resolved({model.client: model})


def resolved(models: Models) -> Models:
    """The same models; where an adaptation has changed none of them for want of rounds, why there are none."""
    readings = _readings(models)
    if not readings or any(reading.obstacle is None for reading in readings):
        return models
    reason = NotAvailable(readings[0].obstacle or "")
    return {client: model if isinstance(model, NotAvailable) else reason for client, model in models.items()}


def adaptation_notes(models: Models) -> list[str]:
    """What the attacker did to the models, and how many of them gave it nothing to do it with."""
    readings = _readings(models)
    alone = sum(reading.obstacle is not None for reading in readings)
    notes = [adaptation.what for adaptation in readings[0].adaptations] if readings else []
    if alone:
        notes.append(
            f"{alone} of {len(readings)} clients were heard in one of the kept rounds only: what they sent is attacked "
            "as it is (--transcript.last keeps more)"
        )
    return notes


def _readings(models: Models) -> list[ReadingStrategy]:
    found = (model.reading for model in models.values() if isinstance(model, AttackedModel))
    return [reading for reading in found if reading is not None]
