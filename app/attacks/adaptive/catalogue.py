"""Adaptations that the defenses of a run call for, and defenses without an adaptation."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from app.attacks.adaptive.averaging import Averaging
from app.attacks.adaptive.base import Adaptation, CalledBy
from app.attacks.adaptive.factor_choice import FactorChoice
from app.attacks.adaptive.refill import Refill
from app.attacks.models import TargetKind
from app.privacy.traits import Component, Trait

ADAPTATIONS: tuple[Adaptation, ...] = (Refill(), FactorChoice(), Averaging())
"""In the order in which one attacker applies them: averaging comes last, since it hides single changes."""

RETRAINED = "retrained"
"""Name of the adaptation by shadows that are trained with the defense instead of centrally."""

RETRAINED_WHAT = "shadows are trained through the whole federation, defenses included"

UNSEEN_IN_MODELS: frozenset[Trait] = frozenset({"channel", "stops-early"})
"""Traits that do not change the model after a given number of rounds, so that there is nothing to adapt to."""

READ_ANYWAY: CalledBy = {
    "uploads": frozenset({"kept-cells", "chosen-cells"}),
    "global": frozenset({"hidden-choice"}),
}
"""Traits that need no adaptation: weights that an upload lacks have the broadcast's values for every attacker, and the
model of the whole federation holds no client's own choice."""


def called_for(traits: Collection[Trait], kind: TargetKind) -> list[tuple[Adaptation, ...]]:
    """Adaptations to the traits of all defenses for one kind of target: the first one, the first two, and so on."""
    called = [one for one in ADAPTATIONS if not one.called_by.get(kind, frozenset()).isdisjoint(traits)]
    return [tuple(called[:count]) for count in range(1, len(called) + 1)]


def marks_models(defense: Component) -> bool:
    """Whether a defense changes models, so that shadows should be trained with it."""
    return not defense.traits <= UNSEEN_IN_MODELS


def unmatched(defenses: Iterable[Component], adaptations: Iterable[Adaptation], kind: TargetKind) -> list[str]:
    """Names of the defenses that none of the adaptations matches, once each."""
    met = frozenset[Trait]().union(*(one.called_by.get(kind, frozenset()) for one in adaptations))
    met |= READ_ANYWAY[kind]
    left = [defense.name for defense in defenses if marks_models(defense) and defense.traits.isdisjoint(met)]
    return list(dict.fromkeys(left))
