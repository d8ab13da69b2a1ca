"""Where the factors of factorised layers lie in a network's vector, and how far an update moves each of them."""

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
    """One factorised layer within the server's vector. All of it is public.

    Attributes:
        name: dotted name of the layer.
        left: (outputs, factors) matrix.
        right: (factors, inputs) matrix.
        choice: (factors,) what clients keep to themselves.
        unused: value of a choice that means that a factor is certainly not used.
        used: value that means that it certainly is.
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
        """Probability that a client uses each factor, before anything is known of it; float64."""
        return prior_means(self.alpha, self.choice.size).double()

    def ranking(self, moved: Tensor) -> Tensor:
        """How much each factor that moved so far looks used: the odds of the prior, times how far it moved."""
        return moved * self.prior / (1 - self.prior)

    def scores(self, change: Tensor) -> Tensor:
        """How far an update (the server's whole vector) moves each factor: its column of left plus its row of right."""
        left, right = (change[block.coordinates].view(block.shape) for block in (self.left, self.right))
        return left.norm(dim=0) + right.norm(dim=1)


@dataclass(frozen=True)
class FactorLayout:
    """The factorised layers of a network.

    Attributes:
        layers: in the order of the network; empty for one without any.
        coordinates: coordinates of its vector.
    """

    layers: tuple[FactorPlaces, ...]
    coordinates: int

    @classmethod
    def of(cls, net: ScalableNet) -> FactorLayout:
        """Layout of a network."""
        space = ParameterSpace(net)
        if not isinstance(net, Factorised):
            return cls((), space.size)
        blocks, bounds = {block.name: block for block in space.blocks}, net.clamp_ranges()
        places = []
        for name, layer in net.factor_layers().items():
            left, right, choice = (blocks[f"{name}.{part}"] for part in ("left", "right", "pi"))
            places.append(FactorPlaces(name, left, right, choice, *bounds[choice.name], layer.alpha))
        return cls(tuple(places), space.size)

    def moved(self, observations: Sequence[ObservedModel]) -> Tensor:
        """How far each factor (all layers in a row) moved over some rounds; what did not arrive did not move."""
        total = torch.zeros(sum(layer.choice.size for layer in self.layers), dtype=torch.float64)
        for observed in observations:
            change = self._spread(observed, torch.where(observed.arrived, observed.sent - observed.received, 0))
            total += torch.cat([layer.scores(change) for layer in self.layers])
        return total

    def ranking(self, moved: Tensor) -> Tensor:
        """How much each factor (all layers in a row) looks used, from how far it moved."""
        return torch.cat([layer.ranking(own) for layer, own in zip(self.layers, self.split(moved), strict=True)])

    @property
    def prior(self) -> Tensor:
        """Probability that a client uses each factor (all layers in a row), before anything is known of it."""
        return torch.cat([layer.prior for layer in self.layers])

    def split(self, values: Tensor) -> tuple[Tensor, ...]:
        """Values of all factors by layer."""
        return values.split([layer.choice.size for layer in self.layers])

    def levelled(self, values: Tensor) -> Tensor:
        """Values of all factors, divided by the mean of their layer; 0 where that is 0."""
        return torch.cat([own / own.mean() if bool(own.any()) else own for own in self.split(values)])

    def probabilities(self, choice: Tensor) -> Tensor:
        """Probability that each factor is used, from the choice coordinates of all layers in a row."""
        parts = zip(self.layers, self.split(choice.double()), strict=True)
        return torch.cat([torch.sigmoid(LIMIT * own / layer.used) for layer, own in parts])

    def choosing(self, observed: ObservedModel, choice: Tensor) -> ObservedModel:
        """A model with other choice coordinates (all layers in a row)."""
        whole = self._spread(observed, observed.sent)
        for layer, own in zip(self.layers, self.split(choice), strict=True):
            whole[layer.choice.coordinates] = own.double()
        return replace(observed, sent=whole[observed.index].to(observed.sent.dtype))

    def chosen(self, observed: ObservedModel) -> Tensor:
        """The choice coordinates of a model, all layers in a row."""
        whole = self._spread(observed, observed.sent)
        return torch.cat([whole[layer.choice.coordinates] for layer in self.layers])

    @property
    def choice_coordinates(self) -> Tensor:
        """Where the choice coordinates (all layers in a row) lie in the server's vector (int64)."""
        return torch.cat([torch.arange(self.coordinates)[layer.choice.coordinates] for layer in self.layers])

    def _spread(self, observed: ObservedModel, values: Tensor) -> Tensor:
        """Values of a sighting's coordinates as those of the whole vector, 0 elsewhere; float64."""
        whole = torch.zeros(self.coordinates, dtype=torch.float64)
        whole[observed.index] = values.double()
        return whole
