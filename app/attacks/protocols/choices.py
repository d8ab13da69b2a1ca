"""Which models are attacked, and through which adversary's eyes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from app.attacks.membership.base import Adversary
from app.attacks.targets import Models, aggregated_models, released_model, uploaded_models
from app.attacks.world import World

TargetKind = Literal["global", "uploads"]
"""The model of the whole federation, or what each client sent."""


@dataclass(frozen=True)
class Choice:
    """One kind of target at one time.

    Attributes:
        kind: of the target.
        round: the attacker acts at the end of this round, counted from 1.
        all_rounds: whether it uses the rounds before, too.
    """

    kind: TargetKind
    round: int
    all_rounds: bool

    def name(self, world: World) -> str:
        """`global` or `uploads`, with `@round` for models that are not the run's last ones."""
        return self.kind if self._released(world) else f"{self.kind}@{self.round}"

    def adversary(self, world: World) -> Adversary:
        """Who sees such a target: only the last global model leaves the federation."""
        if self.kind == "uploads":
            return "server"
        return "external" if self._released(world) and not self.all_rounds else "client"

    def _released(self, world: World) -> bool:
        return world.final and self.round == world.public.rounds


def rounds_to_attack(world: World, further: tuple[int, ...]) -> list[int]:
    """The last round, then the further ones that were asked for, latest first."""
    asked = sorted({round_ for round_ in further if round_ < world.public.rounds}, reverse=True)
    return [world.public.rounds, *asked]


def seen_models(world: World, choice: Choice, further: tuple[int, ...]) -> Models:
    """The models that the adversary has seen by the end of the round.

    Args:
        world: the run under attack.
        choice: what is attacked.
        further: rounds that attacks over several rounds use beside the last; empty for all that were kept.
    """
    kept = tuple(round_ for round_ in world.kept_rounds if round_ <= choice.round)
    several = tuple(round_ for round_ in kept if round_ in further or round_ == kept[-1]) if further else kept
    prefix = f"target-{choice.round}-{'all' if choice.all_rounds else 'last'}"
    adversary, public = choice.adversary(world), world.public
    if adversary == "server":
        recent = kept if choice.round == public.rounds else (choice.round,)
        looked_at = several if choice.all_rounds else recent
        view = world.transcript.server_view()
        return uploaded_models(view, public, looked_at, prefix, last=not choice.all_rounds)
    if adversary == "client":
        looked_at = several if choice.all_rounds else (choice.round,)
        model = aggregated_models(world.transcript.client_view(), public, looked_at, prefix)
    else:
        model = released_model(world.transcript.external_view(), public, prefix)
    return {model.client: model}
