"""Which channels of the server's network a client trains: a pure, seeded function of (round, client, capacity)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

from app.federation.parameters import ParameterSpace
from app.models.base import scaled_width


@dataclass(frozen=True)
class Seat:
    """One client's place in one round: all that a submodel may depend on.

    Attributes:
        round: 0-based round.
        client: client id.
        capacity: width rate of the client's submodel, in (0, 1].
        clients: number of clients in the federation.
        seed: the run's seed.
    """

    round: int
    client: int
    capacity: float
    clients: int
    seed: int


class SubmodelMethod(ABC):
    """How a client's channels are chosen. One method = one subclass that says which channels of an axis are kept."""

    @abstractmethod
    def channels(self, layer: int, width: int, keep: int, seat: Seat) -> Tensor:
        """`keep` of the `width` channels of the `layer`-th axis (0-based), ascending."""

    def key(self, seat: Seat) -> Hashable:
        """Seats with equal keys hold the same submodel, so it is computed (and evaluated) once for all of them."""
        return seat

    def index(self, space: ParameterSpace, seat: Seat) -> Tensor:
        """Cells of the seat's submodel, ascending."""
        choice = {
            axis: self.channels(layer, width, scaled_width(width, seat.capacity), seat)
            for layer, (axis, width) in enumerate(space.axes.items())
        }
        return space.index(choice)


class Prefix(SubmodelMethod):
    """The first channels of every layer: HeteroFL, OFM in the taxonomy; with capacity 1 everywhere, FedAvg."""

    def channels(self, layer: int, width: int, keep: int, seat: Seat) -> Tensor:
        """Channels 0 .. keep-1 (HeteroFL, Eq. 7 of MaPP-FL)."""
        return torch.arange(keep)

    def key(self, seat: Seat) -> Hashable:
        """All clients of one capacity share one submodel, in every round."""
        return seat.capacity
