"""Against a private choice of factors: the factors that a client uses are those that its update moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from app.attacks.adaptive.base import Adaptation, CalledBy, ObservedModel
from app.federation.parameters import Block, ParameterSpace
from app.models.base import ScalableNet
from app.models.factorised import Factorised
from app.models.ibp import LIMIT, prior_means


@dataclass(frozen=True)
class FactorPlaces:
    """One factorised layer in the server's vector. All of this is public."""

    name: str  # dotted name of the layer
    left: Block  # (outputs, factors) matrix
    right: Block  # (factors, inputs) matrix
    choice: Block  # (factors,) the clients' private part
    unused: float  # value of a choice for a factor that is certainly not used
    used: float  # value for a factor that certainly is
    alpha: float  # concentration of the prior, above 0

    @property
    def prior(self) -> Tensor:
        """(factors,) float64, prior probability that a client uses each factor."""
        return prior_means(self.alpha, self.choice.size).double()

    def ranking(self, moved: Tensor) -> Tensor:
        """(factors,) odds of the prior times the movement: the larger, the more likely the factor is used."""
        return moved * self.prior / (1 - self.prior)

    def scores(self, change: Tensor) -> Tensor:
        """(factors,) movement by an update of the whole vector: norm of the column of left plus of the row of right."""
        left, right = (change[block.coordinates].view(block.shape) for block in (self.left, self.right))
        return left.norm(dim=0) + right.norm(dim=1)


@dataclass(frozen=True)
class FactorLayout:
    """The factorised layers of a network, if any, and the number of coordinates of its vector.

    Values of factors are vectors over all layers, one after the other.
    """

    layers: tuple[FactorPlaces, ...]
    coordinates: int

    @classmethod
    def of(cls, net: ScalableNet) -> FactorLayout:
        space = ParameterSpace(net)
        if not isinstance(net, Factorised):
            return cls((), space.size)
        blocks, bounds = {block.name: block for block in space.blocks}, net.clamp_ranges()
        places = []
        for name, layer in net.factor_layers().items():
            left, right, choice = (blocks[f"{name}.{part}"] for part in ("left", "right", "pi"))
            places.append(FactorPlaces(name, left, right, choice, *bounds[choice.name], layer.alpha))
        return cls(tuple(places), space.size)

    def moved(self, models: Sequence[ObservedModel]) -> Tensor:
        """Movement of each factor, summed over rounds; coordinates that did not arrive count as unmoved."""
        total = torch.zeros(sum(layer.choice.size for layer in self.layers), dtype=torch.float64)
        for model in models:
            change = self._spread(model, torch.where(model.arrived, model.after - model.before, 0))
            total += torch.cat([layer.scores(change) for layer in self.layers])
        return total

    def ranking(self, moved: Tensor) -> Tensor:
        return torch.cat([layer.ranking(own) for layer, own in zip(self.layers, self.split(moved), strict=True)])

    @property
    def prior(self) -> Tensor:
        return torch.cat([layer.prior for layer in self.layers])

    def split(self, values: Tensor) -> tuple[Tensor, ...]:
        return values.split([layer.choice.size for layer in self.layers])

    def levelled(self, values: Tensor) -> Tensor:
        """Values divided by the mean of their layer; 0 where that is 0."""
        return torch.cat([own / own.mean() if bool(own.any()) else own for own in self.split(values)])

    def probabilities(self, choice: Tensor) -> Tensor:
        """Probability that each factor is used, from the choice coordinates."""
        parts = zip(self.layers, self.split(choice.double()), strict=True)
        return torch.cat([torch.sigmoid(LIMIT * own / layer.used) for layer, own in parts])

    def with_choice(self, model: ObservedModel, choice: Tensor) -> ObservedModel:
        whole = self._spread(model, model.after)
        for layer, own in zip(self.layers, self.split(choice), strict=True):
            whole[layer.choice.coordinates] = own.double()
        return replace(model, after=whole[model.index].to(model.after.dtype))

    def chosen(self, model: ObservedModel) -> Tensor:
        whole = self._spread(model, model.after)
        return torch.cat([whole[layer.choice.coordinates] for layer in self.layers])

    @property
    def choice_coordinates(self) -> Tensor:
        """Places of the choice coordinates in the server's vector (int64)."""
        return torch.cat([torch.arange(self.coordinates)[layer.choice.coordinates] for layer in self.layers])

    def _spread(self, model: ObservedModel, values: Tensor) -> Tensor:
        """(coordinates,) float64: values of a model's coordinates in the whole vector, 0 elsewhere."""
        whole = torch.zeros(self.coordinates, dtype=torch.float64)
        whole[model.index] = values.double()
        return whole


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
    called_by: ClassVar[CalledBy] = {"uploads": frozenset({"hidden-choice"})}
    reads_shadows = True

    def __init__(self, layout: FactorLayout | None = None) -> None:
        self.layout = layout  # without one, nothing is changed until the adaptation is fitted

    def fitted(self, prototype: ScalableNet) -> Self:
        return type(self)(FactorLayout.of(prototype))

    def applied(self, models: Sequence[ObservedModel]) -> list[ObservedModel]:
        if self.layout is None or not self.layout.layers:
            return list(models)
        return [_with_estimate(self.layout, models[: place + 1]) for place in range(len(models))]


def _with_estimate(layout: FactorLayout, models: Sequence[ObservedModel]) -> ObservedModel:
    """The last model with the choice estimated from all of them; the broadcast's where no factor of a layer moved."""
    last = models[-1]
    parts = zip(layout.layers, layout.split(layout.moved(models)), layout.split(layout.chosen(last)), strict=True)
    choice = [estimate(layer, moved) if bool(moved.any()) else known for layer, moved, known in parts]
    return layout.with_choice(last, torch.cat(choice))


def estimate(layer: FactorPlaces, moved: Tensor) -> Tensor:
    """Choice coordinates of a layer, from the movement of each of its factors: (factors,), 0 or more, not all 0."""
    ranked, order = moved.sort(descending=True, stable=True)
    falls = ranked[:-1] / ranked[1:].clamp(min=torch.finfo(moved.dtype).tiny)
    if bool((falls > GAP).any()):
        used = order[: 1 + int(falls.argmax())]
        return moved.new_full(moved.shape, layer.unused).index_fill(0, used, layer.used)
    odds = layer.ranking(moved) / moved.mean()
    return layer.used * (odds.log() / LIMIT).clamp(-1, 1)
