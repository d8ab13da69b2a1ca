"""Which adaptations the defenses of a run call for, and which defenses nobody adapts to."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from app.attacks.adaptive.averaging import Averaging
from app.attacks.adaptive.base import Adaptation
from app.attacks.adaptive.factor_choice import FactorChoice
from app.attacks.adaptive.refill import Refill
from app.attacks.models import TargetKind
from app.privacy.traits import Component, Trait

ADAPTATIONS: tuple[Adaptation, ...] = (Refill(), FactorChoice(), Averaging())
"""In the order in which one attacker applies them: what is averaged has been refilled, and shows no single change."""

RETRAINED = "retrained"
"""Name of the adaptation that shadows make: they are trained through the defense, not by themselves."""

RETRAINED_WHAT = "shadows are trained through the whole federation, defenses included"

UNSEEN_IN_MODELS: frozenset[Trait] = frozenset({"channel", "stops-early"})
"""What leaves no mark on a model of so many rounds, so that there is nothing to adapt to."""

READ_ANYWAY: Mapping[TargetKind, frozenset[Trait]] = {
    "uploads": frozenset({"kept-cells", "chosen-cells"}),
    "global": frozenset({"hidden-choice"}),
}
"""What adapting would add nothing to: weights that an upload lacks are those of the broadcast for every reader, and in
the model of the whole federation there is nobody's own choice."""


def called_for(traits: Collection[Trait], kind: TargetKind) -> list[tuple[Adaptation, ...]]:
    """What attackers who know such defenses do to one kind of target: the first adaptation, the first two, and so on.

    Args:
        traits: of all defenses of the run.
        kind: of the target.
    """
    called = [one for one in ADAPTATIONS if not one.called_by.get(kind, frozenset()).isdisjoint(traits)]
    return [tuple(called[:count]) for count in range(1, len(called) + 1)]


def marks_models(defense: Component) -> bool:
    """Whether a defense says of itself that it changes models, so that shadows had better go through it."""
    return not defense.traits <= UNSEEN_IN_MODELS


def unmatched(defenses: Iterable[Component], adaptations: Iterable[Adaptation], kind: TargetKind) -> list[str]:
    """Names of the defenses that none of the adaptations is made for, once each."""
    met = frozenset[Trait]().union(*(one.called_by.get(kind, frozenset()) for one in adaptations))
    met |= READ_ANYWAY[kind]
    left = [defense.name for defense in defenses if marks_models(defense) and defense.traits.isdisjoint(met)]
    return list(dict.fromkeys(left))
