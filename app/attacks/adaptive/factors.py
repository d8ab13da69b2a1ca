"""Places of the factors of factorised layers in a network's vector, and how far an update moves each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from app.attacks.adaptive.base import ObservedModel
from app.federation.parameters import Block, ParameterSpace
from app.models.base import ScalableNet
from app.models.factorised import Factorised
from app.models.ibp import LIMIT, prior_means


@dataclass(frozen=True)
class FactorPlaces:
    """One factorised layer in the server's vector. All of this is public.

    Attributes:
        name: dotted name of the layer.
        left: (outputs, factors) matrix.
        right: (factors, inputs) matrix.
        choice: (factors,) the clients' private part.
        unused: value of a choice for a factor that is certainly not used.
        used: value for a factor that certainly is.
        alpha: concentration of the prior, above 0.
    """

    name: str
    left: Block
    right: Block
    choice: Block
    unused: float
    used: float
    alpha: float

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
    """The factorised layers of a network. Values of factors are vectors over all layers, one after the other.

    Attributes:
        layers: in the order of the network; empty for one without any.
        coordinates: length of the network's vector.
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
        """Odds of the prior times the movement, for each factor."""
        return torch.cat([layer.ranking(own) for layer, own in zip(self.layers, self.split(moved), strict=True)])

    @property
    def prior(self) -> Tensor:
        """Prior probability that a client uses each factor."""
        return torch.cat([layer.prior for layer in self.layers])

    def split(self, values: Tensor) -> tuple[Tensor, ...]:
        """Values of all factors by layer."""
        return values.split([layer.choice.size for layer in self.layers])

    def levelled(self, values: Tensor) -> Tensor:
        """Values divided by the mean of their layer; 0 where that is 0."""
        return torch.cat([own / own.mean() if bool(own.any()) else own for own in self.split(values)])

    def probabilities(self, choice: Tensor) -> Tensor:
        """Probability that each factor is used, from the choice coordinates."""
        parts = zip(self.layers, self.split(choice.double()), strict=True)
        return torch.cat([torch.sigmoid(LIMIT * own / layer.used) for layer, own in parts])

    def with_choice(self, model: ObservedModel, choice: Tensor) -> ObservedModel:
        """A model with other choice coordinates."""
        whole = self._spread(model, model.after)
        for layer, own in zip(self.layers, self.split(choice), strict=True):
            whole[layer.choice.coordinates] = own.double()
        return replace(model, after=whole[model.index].to(model.after.dtype))

    def chosen(self, model: ObservedModel) -> Tensor:
        """The choice coordinates of a model."""
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
