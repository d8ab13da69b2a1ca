"""What the sum of a round reveals to a server that knows what it sent, and the update it isolates from it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from app.federation.channels.base import Aggregate, Carries
from app.federation.plan import Plan

ZEROED = 1e-5
"""Coordinates whose returned value is smaller than this share of the sent one count as zeroed by a defense."""


@dataclass(frozen=True, eq=False)
class IsolatedUpdate:
    """What an attacker takes for the change of the attacked clients, added up.

    Attributes:
        clients: whose change it is, ascending.
        round: 0-based round in which they made it.
        index: coordinates of the server's vector that it is known for (int64, ascending).
        change: (coordinates) float64, sum of weight x (returned - sent) over the clients.
        weight: (coordinates) float64, weights of those of the clients that train the coordinate, added up.
        sent: (coordinates) float64, sum of weight x sent over the clients.
        own: coordinates of the submodel of the widest of the clients (int64, ascending).
        model: what that client was sent, at `own`.
    """

    clients: tuple[int, ...]
    round: int
    index: Tensor
    change: Tensor
    weight: Tensor
    sent: Tensor
    own: Tensor
    model: Tensor

    def without_pull(self, coordinates: Tensor, pull: float) -> Tensor:
        """Change of some coordinates, in their shape; `pull` is the share of a value that weight decay removed."""
        places = torch.searchsorted(self.index, coordinates.reshape(-1))
        change = self.change[places]
        return (change + pull * self.sent[places] if pull else change).view(coordinates.shape)

    def refilled(self) -> IsolatedUpdate:
        """The same update for an attacker who knows that weights which moved little are zeroed: these did not move."""
        zeroed = (self.change + self.sent).abs() <= ZEROED * self.sent.abs()
        return replace(self, change=torch.where(zeroed, 0.0, self.change))

    def relative_error(self, truth: Tensor, read: Tensor) -> float:
        """Euclidean distance from the clients' true change where it is read, as a share of its length.

        Args:
            truth: (coordinates of the server's vector) float64, what the clients really did.
            read: (coordinates of the server's vector) bool.

        Returns:
            0 or more; nan where the clients did nothing at all there.
        """
        coordinates = read[self.index]
        real = truth[self.index][coordinates]
        return float((self.change[coordinates] - real).norm() / real.norm()) if real.any() else float("nan")


@dataclass(frozen=True, eq=False)
class SentModel:
    """What the server sent to one client whose update is in the sum.

    Attributes:
        client: client id.
        index: coordinates of the server's vector that the client sends back (int64, ascending).
        vector: what it was sent there, or what the server takes it for.
        weight: its weight in the mean.
    """

    client: int
    index: Tensor
    vector: Tensor
    weight: float


@dataclass(frozen=True, eq=False)
class Observation:
    """One round as a server behind secure aggregation sees it: the sum and the public plan, nothing of single clients.

    Attributes:
        plan: the round as it was carried out.
        change: (coordinates) float64, sum over the clients of weight x (returned - sent).
        mean: (coordinates) float64, the mean that came out.
        clients: whose updates are in the sum, with the coordinates that each of them sends.
        weights: weight of each of them.
        adds_up: whether the weights of the sum are those of these clients, so that the change can be trusted.
    """

    plan: Plan
    change: Tensor
    mean: Tensor
    clients: dict[int, Tensor]
    weights: dict[int, float]
    adds_up: bool = True

    @property
    def round(self) -> int:
        """0-based round."""
        return self.plan.round

    def holders(self, clients: Iterable[int]) -> Tensor:
        """(coordinates) int64: how many of the clients contribute to every coordinate."""
        count = torch.zeros(len(self.change), dtype=torch.long)
        for client in clients:
            if client in self.clients:
                count[self.clients[client]] += 1
        return count


def observe(
    plan: Plan, aggregate: Aggregate, theta: Tensor, sent: Iterable[SentModel], carries: Carries
) -> Observation:
    """Turn the mean of a round into the sum of the clients' changes.

    Args:
        plan: the round as it was carried out.
        aggregate: what came out of the channel.
        theta: the server's vector that the channel was opened with.
        sent: what was sent to every client whose update is in the mean.
        carries: whether the mean is one of values, or of changes added to `theta`.
    """
    weight, mean = aggregate.weight.double().cpu(), aggregate.mean.double().cpu()
    change = weight * (mean - theta.double().cpu()) if carries == "changes" else weight * mean
    clients, weights, expected = {}, {}, torch.zeros_like(weight)
    for one in sent:
        clients[one.client], weights[one.client] = one.index.cpu(), one.weight
        expected[one.index.cpu()] += one.weight
        if carries == "values":
            change.index_add_(0, one.index.cpu(), one.vector.double().cpu(), alpha=-one.weight)
    return Observation(plan, change, mean, clients, weights, torch.allclose(weight, expected, rtol=1e-6))
