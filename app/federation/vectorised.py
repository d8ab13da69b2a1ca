"""Many clients of one width in one call: their parameters stacked along a client axis."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from app.federation.client import Batch, ClientModule
from app.federation.executors import Executor
from app.federation.workshop import ClientTask, LocalContext, TrainedClient, Workshop


class _Objective(nn.Module):
    """Calls the client's objective as a module, so that its parameters can be swapped for stacked ones."""

    def __init__(self, client: ClientModule) -> None:
        super().__init__()
        self.client = client

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return self.client.training_step((images, labels))


class Vectorised(Executor):
    """Trains all clients of one width at once.

    Exact, since clients do not depend on each other: the gradient of the sum of their losses is each client's own. At
    every step, clients whose batches have the same length share a call; a client that has finished stands still.
    """

    description = "vectorised calls over clients of one width"

    def __init__(self, context: LocalContext) -> None:
        super().__init__(context)
        self._workshop = Workshop(context)

    def run(self, tasks: Iterable[ClientTask]) -> Iterator[TrainedClient]:
        """Train the block width by width."""
        widths: dict[float, list[ClientTask]] = defaultdict(list)
        block = list(tasks)
        for task in block:
            widths[task.capacity].append(task)
        done = {result.task.client: result for group in widths.values() for result in self._train(group)}
        yield from (done[task.client] for task in block)

    def _train(self, tasks: list[ClientTask]) -> Iterator[TrainedClient]:
        started = time.perf_counter()
        with self.context.precision():
            vectors, losses = self._fit(tasks)
        seconds = (time.perf_counter() - started) / len(tasks)
        for task, vector, loss in zip(tasks, vectors, losses.tolist(), strict=True):
            yield self._evaluated(task, vector, loss, seconds)

    def _evaluated(self, task: ClientTask, vector: Tensor, loss: float, train_seconds: float) -> TrainedClient:
        started = time.perf_counter()
        with self.context.precision():
            client = self._workshop.client_for(task)
            received_loss = self._workshop.received_loss(task, client)
            received = self._workshop.evaluate_received(task, client)
            self._workshop.space(task.capacity).write(client.net, vector)
            scores = self._workshop.evaluate_trained(task, client, received)
        return TrainedClient(task, vector, loss, received_loss, scores, train_seconds, time.perf_counter() - started)

    def _fit(self, tasks: list[ClientTask]) -> tuple[Tensor, Tensor]:
        """Flat vectors (clients, cells) after training, and the mean losses (clients)."""
        client = self._workshop.client_for(tasks[0])
        client.net.train()
        space = self._workshop.space(tasks[0].capacity)
        received = torch.stack([task.received for task in tasks])
        stacked = {
            block.name: received[:, block.cells].reshape(-1, *block.shape).clone().requires_grad_()
            for block in space.blocks
        }
        anchors = {f"client.anchor_{i}": value.detach().clone() for i, value in enumerate(stacked.values())}
        optimizer = self.context.local.build_optimizer(stacked.values(), tasks[0].lr)
        objective = _Objective(client)
        total, steps = torch.zeros(len(tasks), dtype=torch.float64, device=received.device), torch.zeros(len(tasks))
        for batches in _in_step([self._workshop.batches(task) for task in tasks]):
            losses = self._losses(objective, stacked, anchors if self.context.local.proximal else {}, batches)
            optimizer.zero_grad(set_to_none=True)
            sum(losses.values(), torch.zeros((), device=received.device)).backward()
            self._step(optimizer, stacked, sorted(losses), len(tasks))
            for position, loss in losses.items():
                total[position] += loss.detach()
                steps[position] += 1
        vectors = torch.cat([stacked[block.name].detach().flatten(1) for block in space.blocks], dim=1)
        return vectors, total / steps.to(total.device)

    def _losses(
        self, objective: _Objective, stacked: dict[str, Tensor], anchors: dict[str, Tensor], batches: dict[int, Batch]
    ) -> dict[int, Tensor]:
        """Loss of every client that has a batch, one call per batch length."""
        lengths: dict[int, list[int]] = defaultdict(list)
        for position, (_, labels) in batches.items():
            lengths[len(labels)].append(position)
        losses: dict[int, Tensor] = {}
        for positions in lengths.values():
            everyone = len(positions) == len(next(iter(stacked.values())))
            chosen = torch.tensor(positions, device=self.context.device)
            swapped = {f"client.net.{name}": value for name, value in stacked.items()} | anchors
            if not everyone:
                swapped = {name: value.index_select(0, chosen) for name, value in swapped.items()}
            images = torch.stack([batches[position][0] for position in positions])
            labels = torch.stack([batches[position][1] for position in positions])
            results = vmap(lambda values, x, y: functional_call(objective, values, (x, y)))(swapped, images, labels)
            losses |= dict(zip(positions, results.unbind(), strict=True))
        return losses

    def _step(
        self, optimizer: torch.optim.Optimizer, stacked: dict[str, Tensor], active: list[int], clients: int
    ) -> None:
        """One optimiser step for the active clients; momentum or weight decay must not move the others."""
        if self.context.local.clip_norm is not None:
            _clip_each(stacked, self.context.local.clip_norm)
        if len(active) == clients:
            optimizer.step()
            return
        resting = torch.ones(clients, dtype=torch.bool, device=self.context.device)
        resting[active] = False
        before = {name: value.detach()[resting].clone() for name, value in stacked.items()}
        optimizer.step()
        with torch.no_grad():
            for name, value in stacked.items():
                value[resting] = before[name]


def _in_step(streams: list[Iterator[Batch]]) -> Iterator[dict[int, Batch]]:
    """The next batch of every client that still has one, until all are through."""
    while True:
        batches = {position: next(stream, None) for position, stream in enumerate(streams)}
        present = {position: batch for position, batch in batches.items() if batch is not None}
        if not present:
            return
        yield present


def _clip_each(stacked: dict[str, Tensor], norm: float) -> None:
    """Scale each client's gradient to at most `norm`, as `clip_grad_norm_` does for one client."""
    gradients = [value.grad for value in stacked.values() if value.grad is not None]
    norms = torch.stack([gradient.flatten(1).norm(dim=1) for gradient in gradients]).norm(dim=0)
    factor = (norm / (norms + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factor.view(-1, *[1] * (gradient.dim() - 1)))
