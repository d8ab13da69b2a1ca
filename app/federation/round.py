"""One round on the server: tasks for the clients, their updates, and the aggregate."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Hashable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from app.federation.channels.base import Aggregate, Update
from app.federation.checks.federation import stack_traits
from app.federation.execution.distributed import gather
from app.federation.execution.tasks import ClientTask, TrainedClient
from app.federation.hooks import overriding
from app.federation.learning import Sign, advice
from app.federation.plan import Plan
from app.federation.reports import DEFENDED, DIVERGED, ClientReport, listed

if TYPE_CHECKING:
    from app.federation.module import FederatedModule


class Round:
    """The server's side of one round; `lr` is the clients' learning rate.

    Attributes:
        plan: which clients train which coordinates.
        theta: the server's vector at the start.
        reports: reports of the clients trained so far; of all processes once the round is closed.
    """

    def __init__(self, federation: FederatedModule, plan: Plan, theta: Tensor, lr: float, evaluate: bool) -> None:
        self.plan, self.theta = plan, theta
        self.reports: list[ClientReport] = []
        self._federation = federation
        self._lr, self._evaluate = lr, evaluate
        self._uploads: dict[Hashable, tuple[Tensor | None, Tensor, int]] = {}
        self._traits = stack_traits(federation)
        self._edited = bool(overriding(federation.hooks.callbacks, "on_client_update"))
        self._same_for_all = not federation.personal and not overriding(federation.hooks.callbacks, "on_broadcast")
        with federation.clock.phase("channel"):
            federation.channel.open(plan, theta)

    def task(self, client: int) -> ClientTask:
        """One client's task, with the model that the server sends it."""
        federation, index = self._federation, self.plan.index(client)
        vector = self.theta.clone() if index.numel() == self.theta.numel() else self.theta.index_select(0, index)
        federation.personal.restore(client, index, vector)
        federation.hooks.call("on_broadcast", client, vector)
        controls = federation.controls
        return ClientTask(
            client=client,
            round=self.plan.round,
            capacity=self.plan.rate(client),
            received=vector,
            key=self.plan.key(client) if self._same_for_all else None,
            lr=federation.local.client_lr(self._lr, self.plan.rate(client)),
            train=federation.data.train_indices(client),
            test=federation.data.test_indices(client),
            evaluate=self._evaluate,
            owned=federation.data.owned_classes(client) if federation.local.mask_labels else None,
            index=index,
            correction=None if controls is None else controls.correction(client, self.plan, vector),
        )

    def accept(self, trained: TrainedClient) -> None:
        """Process one client's result: drop it where it was refused or is not finite, else defend and upload it.

        The server sees who was dropped. Where differential privacy is promised towards it, nothing private decides
        that: not the loss, and not a vector that has yet to get its noise.
        """
        size, defended, dropped_for = None, 0.0, ""
        private_vector = bool({"upload-dp", "sum-dp"} & self._traits)
        private_loss = private_vector or "sample-dp" in self._traits
        if private_vector and not trained.finite:
            trained = replace(trained, vector=trained.task.received.clone(), finite=True)
        if trained.refusal:
            pass  # refusals are reported at the end of the round
        elif not ((private_loss or math.isfinite(trained.loss)) and trained.finite):
            self._warn_dropped(trained, f"diverged (loss {trained.loss})", DIVERGED)
            dropped_for = DIVERGED
        else:
            update = self._update(trained)
            defended = self._defend(update)
            if self._can_be_sent(update):
                size = self._send(update)
                if size is not None and self._federation.controls is not None:
                    self._federation.controls.observe(update)
            else:
                self._warn_dropped(trained, "has an update that is not finite after the defenses", DEFENDED)
                dropped_for = DEFENDED
        sent_down = 1 + self._federation.local.scaffold  # the model, and the server's control variate
        measured = {
            "bytes_up": size or 0,
            "bytes_down": sent_down * self._federation.channel.bytes_down(trained.task.client, trained.task.received),
            "defend_seconds": defended,
            "dropped_for": dropped_for,
        }
        self.reports.append(ClientReport.of(trained, dropped=size is None, **measured))

    def close(self) -> Aggregate:
        """Aggregate the updates of all processes."""
        federation = self._federation
        with federation.clock.phase("channel"):
            aggregate = federation.channel.close(federation.uncovered_cells, federation.sum_over_processes)
        with federation.clock.phase("defend"):
            federation.hooks.call("on_server_update", aggregate)
        if federation.controls is not None:
            federation.controls.move(self.theta, aggregate, self._lr)
        federation.personal.synchronise()
        if federation.own_models is not None:
            federation.own_models.values.synchronise()
        self.reports = sorted((report for part in gather(self.reports) for report in part), key=lambda r: r.client)
        self._warn_refused()
        if aggregate.updates == 0:
            warnings.warn(
                f"round {self.plan.round + 1}: no client sent a usable update; the server's model stays as it is.",
                stacklevel=2,
            )
        return aggregate

    def _warn_refused(self) -> None:
        """One warning per reason for refusing, on the first process only."""
        reasons: dict[str, list[int]] = {}
        for report in self.reports if self._federation.global_rank == 0 else ():
            if report.refusal:
                reasons.setdefault(report.refusal, []).append(report.client)
        for reason, clients in reasons.items():
            verb = "refuses" if len(clients) == 1 else "refuse"
            warnings.warn(f"round {self.plan.round + 1}: {listed(clients)} {verb} to train: {reason}", stacklevel=2)

    def _warn_dropped(self, trained: TrainedClient, reason: str, sign: Sign) -> None:
        warnings.warn(
            f"round {self.plan.round + 1}: client {trained.task.client} {reason}; "
            f"its update is dropped for this round. {advice(self._federation, sign)}",
            stacklevel=2,
        )

    def _defend(self, update: Update) -> float:
        """Pass an update through the defenses; returns the seconds that they took."""
        started = time.perf_counter()
        with self._federation.clock.phase("defend"):
            self._federation.hooks.call("on_client_update", update)
        return time.perf_counter() - started

    def _can_be_sent(self, update: Update) -> bool:
        """Weigh an update; whether it is finite, as is its weight."""
        self._federation.server.weigh(update)
        finite = _is_finite(update.vector) if self._edited else True  # as trained, it is
        return math.isfinite(update.weight + update.curvature) and finite

    def _send(self, update: Update) -> int | None:
        """Pass an update through the channel; returns its bytes, None where it was lost."""
        federation = self._federation
        with federation.clock.phase("channel"):
            message = federation.channel.send(update)
        if message is None:  # the channel has warned of the reason
            return None
        federation.hooks.call("on_message", message)
        return message.size

    def _update(self, trained: TrainedClient) -> Update:
        """The client's update, without private coordinates and rows of absent classes."""
        federation, task = self._federation, trained.task
        vector, received = trained.vector, task.received
        if federation.personal:
            federation.personal.keep(task.client, self.plan.index(task.client), vector)
        sent, index, trainable = self._uploaded(task)
        if sent is not None:
            vector, received = vector.index_select(0, sent), received.index_select(0, sent)
        return Update(
            client=task.client,
            round=task.round,
            index=index,
            vector=vector,
            received=received,
            trainable=trainable,
            samples=len(task.train),
            lr=task.lr,
            loss=trained.loss,
            received_loss=trained.received_loss,
            weight=float(len(task.train)) if federation.weighting == "samples" else 1.0,
        )

    def _uploaded(self, task: ClientTask) -> tuple[Tensor | None, Tensor, int]:
        """What a client uploads: positions in its submodel (None: all), coordinates, and how many are parameters.

        Found once for all clients that upload the same, since it makes the host wait for the device.
        """
        key = self.plan.key(task.client), None if task.owned is None else tuple(task.owned.tolist())
        if key not in self._uploads:
            if len(self._uploads) >= 64:  # methods with one submodel per client must not fill the memory
                self._uploads.clear()
            index = self.plan.index(task.client)
            mask = self._sent(task, index)
            sent = None if mask is None else mask.nonzero().flatten()
            index = index if sent is None else index.index_select(0, sent)
            self._uploads[key] = sent, index, int(torch.searchsorted(index, self._federation.space.trainable))
        return self._uploads[key]

    def _sent(self, task: ClientTask, index: Tensor) -> Tensor | None:
        """Mask over the client's coordinates of those that are uploaded; None: all of them."""
        federation = self._federation
        sent = federation.personal.shared(index) if federation.personal else None
        if task.owned is None:
            return sent
        rows = federation.label_rows.uploaded(index, task.owned)
        return rows if sent is None else rows & sent


def _is_finite(vector: Tensor) -> bool:
    """Whether a vector holds no NaN or infinity; one sum is much faster than a look at every coordinate."""
    return math.isfinite(float(vector.sum()))
