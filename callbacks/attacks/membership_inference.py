"""Membership inference on the federation, during training or when it is over."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from app.attacks.audit_context import AuditContext
from app.attacks.membership.base import MembershipAttack
from app.attacks.membership.catalogue import make_attack
from app.attacks.models import TargetKind
from app.attacks.protocols.audit import Audit, AuditSettings, ControlPolicy
from app.attacks.protocols.base import Protocol
from app.attacks.protocols.catalogue import PAPERS, ProtocolName
from app.attacks.protocols.memdefense import MemDefensePaper
from app.attacks.protocols.waffle import WafflePaper
from app.attacks.public_knowledge import PublicKnowledge
from app.attacks.shadows.shadow_store import DEFAULT_SHADOWS, ShadowSettings
from app.common.described import described
from app.common.errors import Problem, raise_all
from app.common.ranges import Count, Whole
from app.federation.execution.distributed import autocast_of
from app.federation.hooks import FederatedCallback, federated_callbacks
from app.federation.module import FederatedModule
from app.federation.transcript import Transcript
from app.privacy.traits import Component
from app.results.attacks.membership import AttackRecord
from callbacks.attacks.shadow_federations import ShadowFederations
from callbacks.attacks.shared_shadows import shared_training

USUAL = ("yeom", "modified-entropy", "lira-offline", "lira-online", "rmia-offline")
"""Attacks where none are named: cheap ones that differ, sharing their shadows."""


class MembershipInference(FederatedCallback):
    """Tells members from non-members as an adversary would, with controls and confidence intervals.

    The adversary sees the released model (`global`) or, as an honest-but-curious server, each client's upload
    (`uploads`). Runs when training is over and every so many rounds if asked, or later from the transcript.

    Example::

        rampart fit --attacks.mia MembershipInference --attacks.mia.attacks "[yeom, lira-offline]"
        rampart attack RUN --attacks shokri,nasr --targets uploads

    Args:
        attacks: names (`rampart list attacks` shows them), dotted classes of yours, or class_path with init_args.
        targets: `global` (the released model, seen from outside) and `uploads` (each client's last upload, seen by the
            server); both without a choice.
        rounds: further rounds to attack, counted from 1, such as [40, 60, 80]; they are kept in the transcript.
        every: attack also after every so many rounds of training; 0 for the end only.
        shadows: how shadow models are made.
        protocol: `audit` for a sound evaluation, or the paper whose evaluation is to be repeated as it was; a paper's
            class_path with init_args where its options matter.
        calibrate: whether attackers choose a threshold on a shadow model, for accuracies beside the ROC curves.
        controls: `withhold` the numbers of an attack that fails a control, `warn` beside them, or `skip` controls.
        adaptive: beside every attack, the same attack by an adversary who knows the run's defenses: refilling what they
            zero, averaging what they noise, guessing what they hide. Shadows through the defense are a matter of
            `shadows.mode`.
        colluding: participants, drawn at random, that join the adversary with their data, models and secrets.
    """

    kind = "attack"
    vectorisable = True

    def __init__(
        self,
        attacks: list[str | MembershipAttack] | None = None,
        targets: list[TargetKind] | None = None,
        rounds: list[Count] | None = None,
        every: Whole = 0,
        shadows: ShadowSettings = DEFAULT_SHADOWS,
        protocol: ProtocolName | Protocol = "audit",
        calibrate: bool = True,
        controls: ControlPolicy = "withhold",
        adaptive: bool = True,
        colluding: Whole = 0,
    ) -> None:
        self.joined_by = colluding
        self.every, self.rounds = every, tuple(sorted(rounds or ()))
        raise_all(choice_problems({"attacks": attacks, "targets": targets}))
        settings = AuditSettings(
            targets=tuple(targets or ("global", "uploads")),
            rounds=self.rounds,
            shadows=shadows,
            calibrate=calibrate,
            controls=controls,
            adaptive=adaptive,
        )
        self.protocol = _protocol(protocol, attacks, settings)

    def problems(self, federation: FederatedModule) -> Iterator[Problem]:
        if late := [round_ for round_ in (*self.rounds, self.every) if round_ > federation.rounds]:
            cause = f"round {late[0]} is to be attacked, of {federation.rounds}"
            remedy = "lower --attacks.NAME.rounds or --attacks.NAME.every, or train longer: --trainer.max_epochs"
            yield Problem(cause, "it would never be", remedy)

    def rounds_to_keep(self, rounds: int) -> set[int]:
        regular = range(self.every, rounds + 1, self.every) if self.every else ()
        return {*self.rounds, *regular, *self.protocol.rounds_to_keep}

    def on_round_kept(
        self, federation: FederatedModule, transcript: Transcript, round_: int
    ) -> Iterator[AttackRecord] | None:
        due = self.every and round_ % self.every == 0 and round_ < federation.rounds
        return self.run(federation, transcript, round_, final=False) if due else None

    def on_transcript(self, federation: FederatedModule, transcript: Transcript) -> Iterator[AttackRecord]:
        return self.run(federation, transcript, federation.trainer.current_epoch)

    def run(
        self, federation: FederatedModule, transcript: Transcript, rounds: int, final: bool = True
    ) -> Iterator[AttackRecord]:
        """Attack the transcript after so many rounds; `final`: the model is released."""
        audit = AuditContext(
            public_knowledge(federation, rounds),
            transcript,
            federation.data.membership,
            final,
            ShadowFederations(federation),
            None if federation.cache is None else federation.cache / "shadows",
            federation.kept_findings if final else {},
        )
        for finding in self.protocol.findings(audit.joined_by(self.joined_by)):
            yield AttackRecord.of(finding, audit.rates)


def public_knowledge(federation: FederatedModule, rounds: int) -> PublicKnowledge:
    """What everybody knows of a federation after so many rounds, and the attacker's own data."""
    data, sets = federation.data, federation.data.membership
    return PublicKnowledge(
        prototype=federation.net,
        store=data.store,
        local=federation.local,
        learning_rates=tuple(federation.local.learning_rates(federation.rounds)[:rounds]),
        augment=data.augmented if data.augment is not None else None,
        auxiliary=sets.shadow,
        population=sets.population,
        plan_of=federation.plan_of,
        seed=federation.seed,
        batch_size=federation.evaluation.batch_size,
        precision=autocast_of(federation.trainer),
        shared_training=shared_training(federation, public_knowledge) if federation.helpers.available else None,
        shadow_counts=federation.shadow_counts,
        defenses=tuple(_defenses(federation)),
    )


def _defenses(federation: FederatedModule) -> Iterator[Component]:
    """Defenses are public, so attackers adapt to those that state what they do.

    A network whose clients keep a choice private counts among them.
    """
    if federation.net.private_names():
        yield Component(type(federation.net).__name__, frozenset({"hidden-choice"}))
    for place, callback in enumerate(federated_callbacks(federation.trainer)):
        if callback.kind == "defense" and (traits := callback.traits()):
            yield Component(type(callback).__name__, traits, place)


def _protocol(
    name: ProtocolName | Protocol, attacks: list[str | MembershipAttack] | None, settings: AuditSettings
) -> Protocol:
    if isinstance(name, Protocol):
        return name
    if name == "audit":
        return Audit([make_attack(attack) for attack in (attacks if attacks is not None else USUAL)], settings)
    names = None if attacks is None else [attack if isinstance(attack, str) else attack.name for attack in attacks]
    if name in ("memdefense", "waffle"):
        paper = MemDefensePaper if name == "memdefense" else WafflePaper
        return paper(names, adaptive=settings.adaptive)
    return PAPERS[name](names)


def choice_problems(choices: Mapping[str, Sequence[Any] | None]) -> Iterator[Problem]:
    """Choices of attacks or targets that are empty, or name one twice; None stands for the usual ones."""
    for option, chosen in choices.items():
        texts = [json.dumps(described(one), sort_keys=True, default=str) for one in chosen or ()]
        if chosen is not None and not chosen:
            remedy = f"name some, or leave {option} out for the usual ones"
            yield Problem(f"the list of {option} is empty", "nothing would be attacked", remedy)
        elif repeated := [one for place, one in enumerate(texts) if one in texts[:place]]:
            cause = f"{repeated[0]} is more than once among the {option}"
            yield Problem(cause, "one result would overwrite the other", "name it once")
