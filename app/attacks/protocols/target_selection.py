"""Selection of attacked models, and the adversary who observes them."""

from __future__ import annotations

from dataclasses import dataclass

from app.attacks.adaptive.base import Adaptation, ReadingStrategy, adapted_name
from app.attacks.audit_context import AuditContext
from app.attacks.findings import AttackConditions
from app.attacks.membership.base import Adversary, Threat
from app.attacks.models import AttackedModel, TargetKind
from app.attacks.targets import Models, aggregated_models, released_model, uploaded_models
from app.metrics.membership import NotAvailable


@dataclass(frozen=True)
class TargetSelection:
    """One kind of target after one round.

    Attributes:
        round: counted from 1.
        all_rounds: whether the attacker uses the rounds before, too.
        adaptations: of an attacker who knows the defense.
    """

    kind: TargetKind
    round: int
    all_rounds: bool
    adaptations: tuple[Adaptation, ...] = ()

    def name(self, audit: AuditContext) -> str:
        """`global` or `uploads`, with `@round` for models before the last of the run."""
        return self.kind if self._released(audit) else f"{self.kind}@{self.round}"

    def adversary(self, audit: AuditContext) -> Adversary:
        """Who attacks such a target: the one who observes it, or a server that participants have joined."""
        return "colluding-clients" if audit.colluders else self.observer(audit)

    def observer(self, audit: AuditContext) -> Adversary:
        """Who observes such a target: only the last global model leaves the federation."""
        if self.kind == "uploads":
            return "collusion" if audit.transcript.opened(self.round) else "server"
        before = self.all_rounds or any(adaptation.needs_rounds > 1 for adaptation in self.adaptations)
        return "external" if self._released(audit) and not before else "client"

    def reading(self, audit: AuditContext, rounds: tuple[int, ...]) -> ReadingStrategy | None:
        """The attacker's reading of models observed in some rounds; None without adaptations."""
        if not self.adaptations:
            return None
        return ReadingStrategy(tuple(one.fitted(audit.knowledge.prototype) for one in self.adaptations), rounds)

    def conditions(
        self, audit: AuditContext, attack: str, protocol: str, threat: Threat, shadows: str = "none"
    ) -> AttackConditions:
        """Conditions of an attack on the target."""
        adapted = adapted_name(self.adaptations)
        adversary, colluding = self.adversary(audit), len(audit.colluders)
        return AttackConditions(attack, self.name(audit), protocol, adversary, threat, shadows, adapted, colluding)

    def _released(self, audit: AuditContext) -> bool:
        return audit.final and self.round == audit.knowledge.rounds


def seen_models(audit: AuditContext, selection: TargetSelection, further: tuple[int, ...]) -> Models:
    """The models that the adversary has observed by the end of the round.

    Attacks over several rounds use the further rounds beside the last one, or all kept rounds where there are none.
    """
    kept = tuple(round_ for round_ in audit.kept_rounds if round_ <= selection.round)
    several = tuple(round_ for round_ in kept if round_ in further or round_ == kept[-1]) if further else kept
    prefix = f"target-{selection.round}-{'all' if selection.all_rounds else 'last'}"
    knowledge = audit.knowledge
    reading = selection.reading(audit, kept)
    if selection.kind == "uploads":
        recent = kept if selection.round == knowledge.rounds else (selection.round,)
        rounds = several if selection.all_rounds else recent
        view = audit.transcript.server_view()
        models = uploaded_models(view, knowledge, rounds, prefix, not selection.all_rounds, reading)
        return resolved({client: model for client, model in models.items() if client not in audit.colluders})
    if selection.observer(audit) == "client":
        rounds = several if selection.all_rounds else (selection.round,)
        model = aggregated_models(audit.transcript.client_view(), knowledge, rounds, prefix, reading)
    else:
        model = released_model(audit.transcript.external_view(), knowledge, prefix)
    return resolved({model.client: model})


def resolved(models: Models) -> Models:
    """The models, or the reason where no model has enough rounds for the adaptations."""
    readings = _readings(models)
    if not readings or any(reading.obstacle is None for reading in readings):
        return models
    reason = NotAvailable(readings[0].obstacle or "")
    return {client: model if isinstance(model, NotAvailable) else reason for client, model in models.items()}


def adaptation_notes(models: Models) -> list[str]:
    """Notes on the adaptations of the models, and on models that were observed in too few rounds for them."""
    readings = _readings(models)
    alone = sum(reading.obstacle is not None for reading in readings)
    notes = [adaptation.what for adaptation in readings[0].adaptations] if readings else []
    if alone:
        notes.append(
            f"{alone} of {len(readings)} clients uploaded in one of the kept rounds only: their uploads are attacked "
            "as they are (--transcript.last keeps more)"
        )
    return notes


def _readings(models: Models) -> list[ReadingStrategy]:
    readings = (model.reading for model in models.values() if isinstance(model, AttackedModel))
    return [reading for reading in readings if reading is not None]
