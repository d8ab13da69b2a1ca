"""Against a private choice of factors: the factors that a client uses are those that its update moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Self

import torch
from torch import Tensor

from app.attacks.adaptive.base import Adaptation, ObservedModel
from app.attacks.adaptive.factors import FactorLayout, FactorPlaces
from app.attacks.models import TargetKind
from app.models.base import ScalableNet
from app.models.ibp import LIMIT
from app.privacy.traits import Trait

GAP = 100.0
"""How many times as far a factor must move as the next one for the two to be taken for on and off."""


class FactorChoice(Adaptation):
    """A factor is taken for used by the odds of the public prior, times how far it moved by the mean of its layer.

    The gradient of a factor is proportional to the share that the client gives it. Movements are added up over the
    rounds in which the client was heard. Where some factors of a layer move more than `GAP` times as far as all others,
    clients switch factors on and off for good: those are used, and the others are not.
    """

    name = "recovered"
    what = "which factors a client uses is guessed from how far each of them moved"
    called_by: ClassVar[Mapping[TargetKind, frozenset[Trait]]] = {"uploads": frozenset({"hidden-choice"})}
    reads_shadows = True

    def __init__(self, layout: FactorLayout | None = None) -> None:
        """Know the network, or none yet.

        Args:
            layout: where its factors lie; without one, nothing is changed until it is `fitted`.
        """
        self.layout = layout

    def fitted(self, prototype: ScalableNet) -> Self:
        """The adaptation to models of one network."""
        return type(self)(FactorLayout.of(prototype))

    def applied(self, observations: Sequence[ObservedModel]) -> list[ObservedModel]:
        """The same models with a choice of factors in place of the broadcast's."""
        layout = self.layout
        if layout is None or not layout.layers:
            return list(observations)
        return [_guessed(layout, observations[: place + 1]) for place in range(len(observations))]


def _guessed(layout: FactorLayout, observations: Sequence[ObservedModel]) -> ObservedModel:
    """The last model with the choice that all sightings tell of; where no factor of a layer moved, the broadcast's."""
    last = observations[-1]
    parts = zip(layout.layers, layout.split(layout.moved(observations)), layout.split(layout.chosen(last)), strict=True)
    choice = [guess(layer, moved) if bool(moved.any()) else known for layer, moved, known in parts]
    return layout.choosing(last, torch.cat(choice))


def guess(layer: FactorPlaces, moved: Tensor) -> Tensor:
    """Choice coordinates of a layer, from how far each of its factors moved.

    Args:
        layer: where it lies, and its prior.
        moved: (factors,) 0 or more, and not all 0.
    """
    ranked, order = moved.sort(descending=True, stable=True)
    falls = ranked[:-1] / ranked[1:].clamp(min=torch.finfo(moved.dtype).tiny)
    if bool((falls > GAP).any()):
        used = order[: 1 + int(falls.argmax())]
        return moved.new_full(moved.shape, layer.unused).index_fill(0, used, layer.used)
    odds = layer.ranking(moved) / moved.mean()
    return layer.used * (odds.log() / LIMIT).clamp(-1, 1)
