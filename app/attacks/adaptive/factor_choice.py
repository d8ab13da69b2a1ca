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
"""Ratio of the movements of two consecutive factors above which the first counts as used and the second as unused."""


class FactorChoice(Adaptation):
    """Estimates the odds that a factor is used: those of the public prior, times its movement by the mean of its layer.

    The gradient of a factor is proportional to the share that the client gives it. Movements are added up over the
    observed rounds. Where some factors of a layer move more than `GAP` times as far as all others, clients switch
    factors on and off for good: those are used, and the others are not.
    """

    name = "recovered"
    what = "which factors a client uses is guessed from how far each of them moved"
    called_by: ClassVar[Mapping[TargetKind, frozenset[Trait]]] = {"uploads": frozenset({"hidden-choice"})}
    reads_shadows = True

    def __init__(self, layout: FactorLayout | None = None) -> None:
        self.layout = layout  # without one, nothing is changed until the adaptation is fitted

    def fitted(self, prototype: ScalableNet) -> Self:
        return type(self)(FactorLayout.of(prototype))

    def applied(self, models: Sequence[ObservedModel]) -> list[ObservedModel]:
        layout = self.layout
        if layout is None or not layout.layers:
            return list(models)
        return [_with_estimate(layout, models[: place + 1]) for place in range(len(models))]


def _with_estimate(layout: FactorLayout, models: Sequence[ObservedModel]) -> ObservedModel:
    """The last model with the choice estimated from all of them; the broadcast's where no factor of a layer moved."""
    last = models[-1]
    parts = zip(layout.layers, layout.split(layout.moved(models)), layout.split(layout.chosen(last)), strict=True)
    choice = [estimate(layer, moved) if bool(moved.any()) else known for layer, moved, known in parts]
    return layout.with_choice(last, torch.cat(choice))


def estimate(layer: FactorPlaces, moved: Tensor) -> Tensor:
    """Choice coordinates of a layer, from how far each of its factors moved.

    Args:
        layer: its places and its prior.
        moved: (factors,) 0 or more, and not all 0.
    """
    ranked, order = moved.sort(descending=True, stable=True)
    falls = ranked[:-1] / ranked[1:].clamp(min=torch.finfo(moved.dtype).tiny)
    if bool((falls > GAP).any()):
        used = order[: 1 + int(falls.argmax())]
        return moved.new_full(moved.shape, layer.unused).index_fill(0, used, layer.used)
    odds = layer.ranking(moved) / moved.mean()
    return layer.used * (odds.log() / LIMIT).clamp(-1, 1)
