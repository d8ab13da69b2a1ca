"""The sound protocol: audited samples dealt by a coin, disjoint sets, controls, intervals on every number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from app.attacks.controls import blind_failures, control_room, metric_failures
from app.attacks.findings import Conditions, Finding
from app.attacks.lab import ShadowSource
from app.attacks.membership.base import MembershipAttack
from app.attacks.protocols.base import Protocol, guarded
from app.attacks.protocols.choices import Choice, TargetKind, rounds_to_attack, seen_models
from app.attacks.protocols.examination import Examination
from app.attacks.shadows.book import DEFAULT_SHADOWS, CentralShadows, ShadowSettings
from app.attacks.shadows.federated import FederatedShadows
from app.attacks.world import World
from app.errors import UserError
from app.metrics.comparison import Comparison, compare_auc
from app.metrics.membership import MembershipScores, NotAvailable
from app.metrics.roc import roc_curve, tpr_at_fpr

Controls = Literal["withhold", "warn", "skip"]
"""What happens to the numbers of an attack that fails a control."""


@dataclass(frozen=True)
class AuditSettings:
    """What is attacked, and how.

    Attributes:
        targets: the model of the whole federation, each client's last upload, or both.
        rounds: further rounds to attack, counted from 1; attacks over several rounds use those and the last one.
        shadows: how shadow models are made.
        calibrate: whether attackers choose a threshold on a shadow, which gives accuracies beside the curves.
        controls: what happens to the numbers of an attack that fails a control.
    """

    targets: tuple[TargetKind, ...] = ("global", "uploads")
    rounds: tuple[int, ...] = ()
    shadows: ShadowSettings = DEFAULT_SHADOWS
    calibrate: bool = True
    controls: Controls = "withhold"


class Audit(Protocol):
    """Runs attacks on targets under the rules of an audit."""

    name = "audit"

    def __init__(self, attacks: Sequence[MembershipAttack], settings: AuditSettings) -> None:
        """Run nothing yet.

        Args:
            attacks: what to run, in that order.
            settings: on what, and how.
        """
        self._attacks, self._settings = tuple(attacks), settings

    def findings(self, world: World) -> Iterator[Finding]:
        """Every attack on every target."""
        world.check_disjoint()
        source, blind = self._source(world), self._blind(world)
        for kind in self._settings.targets:
            for round_ in rounds_to_attack(world, self._settings.rounds):
                loss: Finding | None = None
                for attack in self._attacks:
                    finding = self._attempt(world, source, attack, kind, round_)
                    finding = self._gated(world, attack, finding, blind)
                    loss = finding if attack.name == "yeom" else loss
                    yield _compared(finding, loss)

    def _attempt(
        self, world: World, source: ShadowSource, attack: MembershipAttack, kind: TargetKind, round_: int
    ) -> Finding:
        settings = self._settings
        choice = Choice(kind, round_, attack.all_rounds)
        shadows = f"{settings.shadows.count} {settings.shadows.mode}" if attack.shadows else "none"
        name, adversary = choice.name(world), choice.adversary(world)
        conditions = Conditions(attack.name, name, self.name, adversary, attack.threat, shadows)
        examination = Examination(world, source, attack, settings.calibrate)
        return guarded(conditions, lambda: examination.finding(seen_models(world, choice, settings.rounds), conditions))

    def _source(self, world: World) -> ShadowSource:
        settings = self._settings.shadows
        if settings.mode == "central":
            return CentralShadows(world.public, world.audited, settings.count, world.cache)
        if world.federations is None:
            raise UserError.of(
                "shadows.mode is federated, but the federation cannot be repeated here",
                "there would be no shadow models",
                "start the attack with `rampart fit` or `rampart attack`, or use shadows.mode central",
            )
        return FederatedShadows(
            world.public, world.audited, world.kept_rounds, world.federations, settings.count, world.cache
        )

    def _blind(self, world: World) -> list[str]:
        if self._settings.controls == "skip":
            return []
        members, outside = (np.concatenate(list(part)) for part in (world.truth.members, world.truth.nonmembers))
        return blind_failures(world.public.store, members, outside, world.public.seed)

    def _gated(self, world: World, attack: MembershipAttack, finding: Finding, blind: list[str]) -> Finding:
        """The finding, without its numbers where a control has failed."""
        if self._settings.controls == "skip" or isinstance(finding.scores, NotAvailable):
            return finding
        failures = [*control_room().failures(attack), *metric_failures(finding.scores, world.public.seed), *blind]
        if not failures:
            return finding
        reason = f"a control failed: {'; '.join(failures)}"
        if self._settings.controls == "warn":
            return finding.noting(reason)
        return replace(finding, leakage=NotAvailable(f"withheld, {reason}"), clients=(), capacities=())


def _compared(finding: Finding, loss: Finding | None) -> Finding:
    """A remark where an attack that is calibrated by shadows does worse than the plain loss, also at a low FPR."""
    if loss is None or not finding.conditions.attack.startswith(("lira", "rmia")):
        return finding
    plain, calibrated = loss.scores, finding.scores
    if not (isinstance(plain, MembershipScores) and isinstance(calibrated, MembershipScores)):
        return finding
    if plain.scores.size != calibrated.scores.size or _tpr(calibrated) > _tpr(plain):
        return finding
    difference = compare_auc(plain, calibrated)
    if isinstance(difference, Comparison) and difference.difference > 0 and difference.verdict != "indistinguishable":
        return finding.noting(
            f"uncalibrated: weaker than the plain loss by {difference.difference:.3f} of AUC, so the shadows probably "
            "do not match the target"
        )
    return finding


def _tpr(scores: MembershipScores) -> float:
    """Share of the members found at 1 % FPR, 0 to 1; 0 where non-members are too few to tell."""
    found = tpr_at_fpr(roc_curve(scores), 0.01)
    return 0.0 if isinstance(found, NotAvailable) else found.tpr
