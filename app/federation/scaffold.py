"""SCAFFOLD: local steps are corrected by how a client's gradients differ from those of all clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import SGD

from app.common.errors import Problem
from app.federation.channels.base import Aggregate, Update
from app.federation.plan import Plan
from app.federation.private_coordinates import PersonalCoordinates, uploaded_coordinates
from app.models.norms import uses_batch_statistics

if TYPE_CHECKING:
    from app.federation.module import FederatedModule

ROUNDS = 16
"""Rounds in which submodels are looked at, to see whether they change."""


class ControlVariates:
    """The control variates of SCAFFOLD: c of the server, and c_i of every client.

    After Karimireddy et al. (2020), Algorithm 1 with option II. A client's K local steps at learning rate lr follow
    g - c_i + c. Then c_i becomes c_i - c + (x - y_i) / (K lr), for the received x and the uploaded y_i, and c moves by
    the sum of these changes over the number of clients.

    K and lr are the same for all clients, so the server has that sum from the sum of their uploads: there is no second
    upload, and every channel, defense and adversary that deals with uploads deals with all that is ever sent. Since y_i
    is taken after the defenses, c_i and c are functions of what was sent, and are covered by its privacy budget. Where
    clients have submodels, each coordinate counts the clients that hold it.

    Attributes:
        server: c, in coordinates of the server's vector; zero for buffers and private coordinates.
        clients: c_i of the clients that have taken part.
    """

    def __init__(self, federation: FederatedModule) -> None:
        space = federation.space
        self._federation = federation
        self._corrected = uploaded_coordinates(federation)
        self._corrected[space.trainable :] = False
        self.server = torch.zeros(space.size, dtype=torch.float64)
        self.clients = PersonalCoordinates(self._corrected, torch.zeros_like(space.read(federation.net)))
        self._holders = _holders(federation).clamp(min=1)

    def correction(self, client: int, plan: Plan, like: Tensor) -> Tensor:
        """c - c_i on the coordinates of a client's submodel, added to the gradient of all its steps."""
        index = plan.index(client)
        own = torch.zeros(len(index), dtype=self.server.dtype)
        self.clients.restore(client, index.cpu(), own)
        return (self.server[index.cpu()] - own).to(like)

    def observe(self, update: Update) -> None:
        """A client's update has been sent: its next control variate."""
        index = update.index.cpu()
        own = torch.zeros(len(index), dtype=self.server.dtype)
        self.clients.restore(update.client, index, own)
        gradient = (update.received.cpu().double() - update.vector.cpu().double()) / self._distance(update.lr)
        self.clients.keep(update.client, index, own - self.server[index] + gradient)

    def move(self, theta: Tensor, aggregate: Aggregate, lr: float) -> None:
        """The round is over: the server's next control variate, from the mean of the uploads."""
        if not aggregate.updates:
            self.clients.forget()
            return
        self.clients.synchronise()
        gradient = (theta.cpu().double() - aggregate.mean.cpu().double()) / self._distance(lr)
        change = aggregate.weight.cpu().double() / self._holders * (gradient - self.server)
        self.server = self.server + torch.where(self._corrected, change, 0.0)

    def _distance(self, lr: float) -> float:
        """How far a gradient of norm 1 moves a client in a round: steps times learning rate."""
        (steps,) = _steps(self._federation)
        return steps * lr

    def state_dict(self) -> dict[str, Any]:
        return {"server": self.server, "clients": self.clients.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.server = torch.as_tensor(state["server"])
        self.clients.load_state_dict(state["clients"])


def _steps(federation: FederatedModule) -> set[int]:
    """Numbers of local steps that clients take in a round."""
    local, least = federation.local, 2 if uses_batch_statistics(federation.net) else 1
    if local.steps is not None:
        return {local.steps}
    return {local.epochs * local.steps_per_epoch(size, least) for size in federation.client_pool.sizes}


def _holders(federation: FederatedModule) -> Tensor:
    """Number of clients that hold each coordinate of the server's vector (float64)."""
    plan, holders = federation.plan_of(federation.rounds), torch.zeros(federation.space.size, dtype=torch.float64)
    present = federation.client_pool.present_in(federation.rounds)
    first = {plan.key(client): client for client in reversed(present)}
    for key, count in Counter(plan.key(client) for client in present).items():
        holders[plan.index(first[key]).cpu()] += count
    return holders


def scaffold_problems(federation: FederatedModule) -> Iterator[Problem]:
    """Why control variates cannot be worked out from the uploads, once data and network are known."""
    local, pool = federation.local, federation.client_pool
    off = "or set --model.local.scaffold false"
    if len(steps := _steps(federation)) > 1:
        yield Problem(
            f"SCAFFOLD with clients that take from {min(steps)} to {max(steps)} local steps",
            "the server divides the sum of their updates by the number of steps, which must be the same for all",
            f"set --model.local.steps and --model.local.epochs 1, {off}",
        )
    if local.lr_factors:
        yield Problem(
            "SCAFFOLD with learning rates that differ from width to width",
            "the server divides the sum of the clients' updates by one learning rate",
            f"leave out --model.local.lr_factors, {off}",
        )
    optimizer = local.optimizer([torch.nn.Parameter(torch.zeros(1))])
    if type(optimizer) is not SGD or optimizer.param_groups[0]["momentum"] or local.clip_norm is not None:
        yield Problem(
            "SCAFFOLD with steps of clients that are not plain gradient descent",
            "a client's update would not be the sum of its gradients, from which control variates are made",
            f"set --model.local.optimizer SGD without momentum, and no --model.local.clip_norm, {off}",
        )
    if federation.weighting != "uniform":
        yield Problem(
            "SCAFFOLD with clients that count by their samples",
            "the mean of the uploads is weighted, but that of the control variates is not",
            f"set --model.weighting uniform, {off}",
        )
    plans = [federation.plan_of(round_) for round_ in range(min(federation.rounds, ROUNDS))]
    changing = any(len({plan.key(client) for plan in plans}) > 1 for client in range(len(pool.sizes)))
    if changing or federation.method.local_widths is not None:
        yield Problem(
            f"SCAFFOLD under {federation.method.title}, where clients' submodels change",
            "which clients stand behind a weight's control variate would change with them",
            f"choose a method with fixed submodels, such as heterofl, {off}",
        )
