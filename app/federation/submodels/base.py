"""What a submodel method is: a pure, seeded function (round, client, capacity, layout) -> index."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass

from torch import Tensor

from app.common.described import Described
from app.common.errors import Problem
from app.federation.parameters import Axis, ParameterSpace
from app.models.base import scaled_width


@dataclass(frozen=True)
class ClientRound:
    """One client in one round: everything that its submodel may depend on."""

    round: int  # 0-based
    client: int
    capacity: float  # width rate that the client can afford, in (0, 1]
    clients: int  # number of clients in the federation
    seed: int


@dataclass(frozen=True)
class LocalWidths:
    """The widths of a client that changes its width from one local step to the next (FjORD)."""

    levels: tuple[float, ...]  # width rates to sample from, in (0, 1]; those above the client's capacity are left out
    # weight in [0, 1] of the widest network's output as the target of the sampled one; 0 = labels only
    distillation: float
    temperature: float  # softens both outputs in the distillation, above 0

    def affordable(self, capacity: float) -> tuple[float, ...]:
        """The levels a client can sample, widest first, its own capacity included."""
        return tuple(sorted({level for level in self.levels if level < capacity} | {capacity}, reverse=True))


class SubmodelMethod(Described, ABC):
    """How a client's channels are chosen; a subclass says which channels of an axis are kept."""

    @abstractmethod
    def channels(self, axis: Axis, keep: int, client_round: ClientRound) -> Tensor:
        """`keep` of the axis's channels (int64), ascending."""

    def inputs(self, axis: Axis, keep: int, client_round: ClientRound) -> Tensor | None:
        """Channels that layers read from the axis, where they differ from those written; None: the same."""
        return None

    def rate(self, client_round: ClientRound) -> float:
        """Width rate of the submodel in this round, at most the client's capacity."""
        return client_round.capacity

    def key(self, client_round: ClientRound) -> Hashable:
        """Client rounds with equal keys have the same submodel, which is computed and evaluated once."""
        return client_round

    def rates(self, capacities: Iterable[float]) -> tuple[float, ...]:
        """All width rates that clients of these capacities may train, widest first."""
        return tuple(sorted(set(capacities), reverse=True))

    @property
    def title(self) -> str:
        """The method's common name."""
        return type(self).__name__

    @property
    def local_widths(self) -> LocalWidths | None:
        """Widths a client samples from during its local steps; None where it keeps one width for the round."""
        return None

    def problems(self, space: ParameterSpace, capacities: Iterable[float], clients: int) -> Iterator[Problem]:
        """Problems of the method on this network, for clients of these capacities."""
        yield from ()

    def index(self, space: ParameterSpace, client_round: ClientRound) -> Tensor:
        """Coordinates of the submodel, ascending."""
        kept = [(axis, scaled_width(axis.width, self.rate(client_round))) for axis in space.axes.values()]
        outputs = {axis.name: self.channels(axis, keep, client_round) for axis, keep in kept}
        read = {axis.name: self.inputs(axis, keep, client_round) for axis, keep in kept}
        inputs = {name: outputs[name] if channels is None else channels for name, channels in read.items()}
        return space.index(outputs, inputs)
