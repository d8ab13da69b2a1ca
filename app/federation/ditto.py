"""Ditto: beside the federation, every client trains a model of its own, pulled towards the one it receives."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.optim import SGD

from app.common.errors import Problem
from app.federation.execution.client_trainer import LocalContext
from app.federation.execution.executors import Executor, ExecutorKind, make_executor
from app.federation.execution.tasks import ClientTask
from app.federation.private_coordinates import PersonalCoordinates

if TYPE_CHECKING:
    from app.federation.module import FederatedModule


class OwnModels:
    """One whole model of every client, v, which it uses and never sends (Li et al. 2021, Ditto, Algorithm 1).

    In the rounds in which a client takes part, v moves by as many steps, on the same batches, as the client's upload
    does, on its loss plus pull/2 |v - w|^2, where w is the model that it received. It starts from the server's initial
    model. Defenses do not act on it, since nothing of it leaves the client.

    Attributes:
        values: the models of the clients that have trained one, in coordinates of the server's vector.
    """

    def __init__(self, initial: Tensor, pull: float) -> None:
        """`pull` is lambda, at least 0: with 0 clients train alone, and a large one brings v to w."""
        self.values = PersonalCoordinates(torch.ones_like(initial, dtype=torch.bool), initial)
        self._pull = pull
        self._executor: Executor | None = None

    def start(self, context: LocalContext, kind: ExecutorKind, workers: int, obstacles: list[str]) -> None:
        own = replace(context.undefended(), local=replace(context.local, proximal=self._pull, scaffold=False))
        self._executor = make_executor(kind, replace(own, needs_received_loss=False), workers, obstacles)

    def close(self) -> None:
        if self._executor is not None:
            self._executor.close()
            self._executor = None

    def train(self, tasks: Iterable[ClientTask]) -> None:
        """Train the models of clients that have had these tasks in the federation."""
        assert self._executor is not None
        for trained in self._executor.run(self._task(task) for task in tasks):
            client, index = trained.task.client, trained.task.index
            assert index is not None
            if trained.finite:
                self.values.keep(client, index, trained.vector)
            else:
                warnings.warn(
                    f"round {trained.task.round + 1}: client {client}'s own model diverged, and stays as it was; "
                    "lower --model.ditto or the learning rate (--model.local.optimizer.lr).",
                    stacklevel=2,
                )

    def _task(self, task: ClientTask) -> ClientTask:
        """The same steps from the client's own model."""
        assert task.index is not None
        own = torch.empty_like(task.received)
        self.values.restore(task.client, task.index, own)
        return replace(task, received=own, anchor=task.received, key=None, evaluate=False)


def ditto_problems(federation: FederatedModule) -> Iterator[Problem]:
    """A pull under which steps of gradient descent jump further beyond w than they start away from it."""
    lr = max(federation.local.learning_rates(max(1, federation.trainer.max_epochs or 1)))
    optimizer = federation.local.optimizer([torch.nn.Parameter(torch.zeros(1))])
    most = 2 * (1 + optimizer.param_groups[0].get("momentum", 0)) / lr
    if type(optimizer) is SGD and federation.ditto is not None and federation.ditto > most:
        yield Problem(
            f"model.ditto is {federation.ditto:g} with SGD at learning rate {lr:g}",
            "the clients' own models would swing ever further away from the server's",
            f"set --model.ditto below {most:g}, or lower --model.local.optimizer.lr",
        )
