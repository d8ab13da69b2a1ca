"""What a server observes of a round behind secure aggregation, and the update it isolates from the sums."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from app.federation.channels.base import Aggregate, Carries
from app.federation.plan import Plan

ZEROED = 1e-5
"""Coordinates returned with less than this share of the sent value count as zeroed by a defense."""


@dataclass(frozen=True, eq=False)
class IsolatedUpdate:
    """The attacker's estimate of the summed change of the attacked clients."""

    clients: tuple[int, ...]  # the attacked clients, ascending
    round: int  # 0-based round of the change
    index: Tensor  # known coordinates of the server's vector (int64, ascending)
    change: Tensor  # (coordinates) float64, sum of weight x (returned - sent) over the clients
    weight: Tensor  # (coordinates) float64, summed weights of the clients that train the coordinate
    sent: Tensor  # (coordinates) float64, sum of weight x sent over the clients
    own: Tensor  # coordinates of the submodel of the widest of the clients (int64, ascending)
    model: Tensor  # weights that this client was sent, at `own`

    def without_decay(self, coordinates: Tensor, shrinkage: float) -> Tensor:
        """Change of some coordinates, in their shape; `shrinkage` is the share of a value that weight decay removed."""
        places = torch.searchsorted(self.index, coordinates.reshape(-1))
        change = self.change[places]
        return (change + shrinkage * self.sent[places] if shrinkage else change).view(coordinates.shape)

    def refilled(self) -> IsolatedUpdate:
        """The update for an attacker who knows that a defense zeroes small changes: zeroed weights did not move."""
        zeroed = (self.change + self.sent).abs() <= ZEROED * self.sent.abs()
        return replace(self, change=torch.where(zeroed, 0.0, self.change))

    def relative_error(self, truth: Tensor, read: Tensor) -> float:
        """Relative Euclidean error, 0 or more, of the change; NaN where the true change is 0.

        Args:
            truth: (coordinates of the server's vector) float64, the true change.
            read: (coordinates of the server's vector) bool, the coordinates that the attack uses.
        """
        coordinates = read[self.index]
        real = truth[self.index][coordinates]
        return float((self.change[coordinates] - real).norm() / real.norm()) if real.any() else float("nan")


@dataclass(frozen=True, eq=False)
class SentModel:
    """What the server sent to one client whose update is in the sum."""

    client: int
    index: Tensor  # coordinates of the server's vector that the client returns (int64, ascending)
    vector: Tensor  # weights sent there, or those that the server assumes
    weight: float  # weight of the client in the mean


@dataclass(frozen=True, eq=False)
class Observation:
    """One round as a server behind secure aggregation sees it: the sum and the public plan."""

    plan: Plan  # the round as it was carried out
    change: Tensor  # (coordinates) float64, sum over the clients of weight x (returned - sent)
    mean: Tensor  # (coordinates) float64, the aggregated mean
    clients: dict[int, Tensor]  # clients whose updates are in the sum, with the coordinates of each upload
    weights: dict[int, float]  # weight of each of them
    adds_up: bool = True  # whether the weights of the sum are those of these clients, so that the change is right

    def holders(self, clients: Iterable[int]) -> Tensor:
        """(coordinates) int64: number of these clients that contribute to every coordinate."""
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
        aggregate: output of the channel.
        theta: the server's vector that the channel was opened with.
        sent: one entry for every client whose update is in the mean.
        carries: whether the channel averages values, or changes that are added to `theta`.
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
