"""The model that every client of the federation would use now, on its own test set: what fairness is about."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from app.federation.evaluation import Score, score, statistics_context
from app.federation.executors import make_executor
from app.federation.parameters import FlatNet, ParameterSpace
from app.federation.processes import gather
from app.federation.tasks import ClientTask
from app.federation.workshop import LocalContext
from app.models.base import ScalableNet
from app.seeding import numpy_generator, torch_generator

if TYPE_CHECKING:
    from app.federation.module import FederatedModule

Choice = Literal["own", "another", "mean", "none"]
"""Private cells of a client: its own, another client's, the mean over the clients, or what the server has for them."""


@dataclass(frozen=True)
class LocalScore:
    """One client's model on the client's own test set.

    Attributes:
        client: client id.
        score: counts on its test set.
        own: whether the client has private values of its own; always False for networks without private cells.
    """

    client: int
    score: Score
    own: bool


class Everyone:
    """Evaluates all clients, participants or not, with the server's present model and what each keeps to itself.

    A client that has never taken part in a round has nothing of its own, and uses the server's model as it is.
    """

    def __init__(self, federation: FederatedModule) -> None:
        """Look at the federation as it is now, at the end of a round.

        Args:
            federation: prepared, with its data on the device.
        """
        self._federation = federation
        self._plan = federation.plan_of(federation.current_epoch)
        self._theta = federation.space.read(federation.net)
        self._nets = threading.local()  # worker threads evaluate one client each

    @property
    def choices(self) -> tuple[Choice, ...]:
        """What can be compared: only clients with a private part can be given another one."""
        return ("own", "another", "mean", "none") if self._federation.personal else ("own",)

    def scores(self, choice: Choice = "own") -> tuple[LocalScore, ...]:
        """Every client with a test set, by id; the same on all processes."""
        clients = self._share()
        vectors = {client: self._vector(client, self._values(client, choice)) for client in clients}
        return self._gathered(clients, vectors)

    def fine_tuned(self) -> tuple[LocalScore, ...]:
        """The same after one more local training of every client, of which nothing is sent."""
        clients = self._share()
        tasks = [self._task(client, vector) for client, vector in self._started(clients).items()]
        return self._gathered(clients, self._trained(self._undefended(), tasks))

    @property
    def _clients(self) -> tuple[int, ...]:
        """Who is evaluated: all clients that belong to the federation."""
        return self._federation.roster.present

    def _share(self) -> list[int]:
        """Clients with a test set that this process evaluates."""
        federation = self._federation
        tested = [client for client in self._clients if len(federation.data.test_indices(client))]
        return tested[federation.global_rank :: federation.trainer.world_size]

    def _gathered(self, clients: Sequence[int], vectors: dict[int, Tensor]) -> tuple[LocalScore, ...]:
        holders = set(self._federation.personal.clients)
        scores = self._federation.executor.map(lambda client: self._score(client, vectors[client]), clients)
        own = [LocalScore(client, one, client in holders) for client, one in zip(clients, scores, strict=True)]
        return tuple(sorted((one for part in gather(own) for one in part), key=lambda one: one.client))

    def _vector(self, client: int, values: Tensor | None) -> Tensor:
        """The client's model; without values of its private cells, those of the server."""
        index = self._plan.index(client)
        vector = self._theta[index]
        if values is not None:
            self._federation.personal.put(values, index, vector)
        return vector

    def _values(self, client: int, choice: Choice) -> Tensor | None:
        personal = self._federation.personal
        holders = personal.clients
        if choice == "mean" and holders:
            return torch.stack([personal.of(holder) for holder in holders]).mean(dim=0)
        if choice == "none" or client not in holders:
            return None
        if choice == "own":
            return personal.of(client)
        order = numpy_generator(self._federation.seed, "swapped-choices").permutation(holders).tolist()
        return personal.of(order[(order.index(client) + 1) % len(order)])

    def _score(self, client: int, vector: Tensor) -> Score:
        federation, rate = self._federation, self._plan.rate(client)
        net, flat = self._net(rate)
        flat.write(vector)
        noise = torch_generator(federation.seed, "everyone", self._plan.round, client)
        for name, value in net.draw(noise).items():
            net.get_buffer(name).copy_(value)
        store, size = federation.data.store, federation.evaluation.batch_size
        with (
            federation.local_context.precision(),
            statistics_context(net, store, federation.data.train_indices(client), size),
        ):
            return score(net, store, federation.data.test_indices(client), size)

    def _net(self, rate: float) -> tuple[ScalableNet, FlatNet]:
        if not hasattr(self._nets, "by_rate"):
            self._nets.by_rate = {}
        nets: dict[float, tuple[ScalableNet, FlatNet]] = self._nets.by_rate
        if rate not in nets:
            with torch.random.fork_rng(devices=[]):  # building a network draws initial values
                net = self._federation.net.scaled(rate).to(self._theta.device, self._theta.dtype)
            nets[rate] = (net, FlatNet(ParameterSpace(net), net))
        return nets[rate]

    def _undefended(self) -> LocalContext:
        """How clients train for themselves: defenses have no part in it, since nothing leaves the client."""
        context = self._federation.local_context
        return replace(context, start_hooks=(), end_hooks=(), loss_hooks=(), penalty_hooks=())

    def _started(self, clients: Sequence[int]) -> dict[int, Tensor]:
        """What clients start a local training from: the server's model with their own values, or the initial ones."""
        return {client: self._vector(client, self._federation.personal.of(client)) for client in clients}

    def _trained(self, context: LocalContext, tasks: Sequence[ClientTask]) -> dict[int, Tensor]:
        """The clients' models after local training."""
        federation = self._federation
        executor = make_executor(federation.executor_kind, context, federation.worker_count, [])
        vectors: dict[int, Tensor] = {}
        try:
            for start in range(0, len(tasks), federation.block_size):
                block = tasks[start : start + federation.block_size]
                vectors |= {trained.task.client: trained.vector for trained in executor.run(block)}
        finally:
            executor.close()
        return vectors

    def _task(self, client: int, vector: Tensor, later: int = 0) -> ClientTask:
        """One more local training of a model; keyed like the round after this one, or so many later."""
        federation = self._federation
        return ClientTask(
            client=client,
            round=self._plan.round + 1 + later,
            capacity=self._plan.rate(client),
            received=vector,
            key=None,
            lr=federation.learning_rate,
            train=federation.data.train_indices(client),
            test=federation.data.test_indices(client),
            evaluate=False,
            owned=federation.data.owned_classes(client) if federation.local.mask_labels else None,
            index=self._plan.index(client),
        )
