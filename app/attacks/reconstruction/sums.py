"""What the sum of a round tells a server that knows what it sent: the clients' changes, added up cell by cell.

Everything is told in changes, returned minus sent values, because learning rates may differ between clients and cancel
in the ratios that images are read from.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from app.federation.channel import Aggregate, Carries
from app.federation.plan import Plan


@dataclass(frozen=True, eq=False)
class Sent:
    """What the server sent to one client whose update is in the sum.

    Attributes:
        client: client id.
        index: cells of the server's vector that the client sends back (int64, ascending).
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
        change: (cells) float64, sum over the clients of weight x (returned - sent).
        mean: (cells) float64, the mean that came out.
        clients: whose updates are in the sum, with the cells that each of them sends.
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
        """(cells) int64: how many of the clients contribute to every cell."""
        count = torch.zeros(len(self.change), dtype=torch.long)
        for client in clients:
            if client in self.clients:
                count[self.clients[client]] += 1
        return count


def observe(plan: Plan, aggregate: Aggregate, theta: Tensor, sent: Iterable[Sent], carries: Carries) -> Observation:
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
