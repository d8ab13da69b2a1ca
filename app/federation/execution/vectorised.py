"""Many clients of one width in one call: their parameters stacked along a client axis."""

from __future__ import annotations

import pickle
import time
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from app.federation.client import Batch, ClientModule
from app.federation.execution.client_trainer import ClientCounts, ClientTrainer, LocalContext, read
from app.federation.execution.distributed import keep_freed_memory, precise
from app.federation.execution.executors import Executor
from app.federation.execution.memory import USABLE, bytes_of_training, free_memory, release_cached
from app.federation.execution.recorded_step import RecordedStep
from app.federation.execution.tasks import ClientScores, ClientTask, TrainedClient
from app.federation.parameters import plain_array


class Vectorised(Executor):
    """Trains all clients of one width at once.

    The result is exact, since clients do not depend on each other: the gradient of the sum of their losses is each
    client's own. At every step, clients whose batches have the same length share a call; finished clients are not
    moved. Where the device's free memory does not hold all of them, they are trained in several calls; where it is used
    up all the same, in calls of half as many.
    """

    description = "vectorised calls over clients of one width"

    def __init__(self, context: LocalContext) -> None:
        super().__init__(context)
        if context.device.type == "cpu":
            keep_freed_memory()
        self._client_trainer = ClientTrainer(context)
        self._steps: dict[float, RecordedStep] = {}
        self._needs: dict[tuple[float, int], int] = {}  # bytes of one client, by width and batch length
        self._most: dict[float, int] = {}  # clients of a width in one call, where more of them were too many

    def run(self, tasks: Iterable[ClientTask]) -> Iterator[TrainedClient]:
        widths: dict[float, list[ClientTask]] = defaultdict(list)
        block = list(tasks)
        for task in block:
            widths[task.capacity].append(task)
        done = {id(result.task): result for group in widths.values() for result in self._train(group)}
        yield from (done[id(task)] for task in block)

    def _train(self, tasks: list[ClientTask]) -> Iterator[TrainedClient]:
        """Train clients of one width, in as few calls as the memory allows."""
        while tasks:
            size = self._stack_size(tasks)
            started = time.perf_counter()
            stack = self._fitted(tasks[:size])
            if stack is None:
                self._most[tasks[0].capacity] = size // 2
                release_cached(self.context.device)
                continue
            seconds = (time.perf_counter() - started) / size
            vectors = stack.vectors()
            finite = torch.isfinite(vectors.sum(dim=1)).tolist()  # one look at all clients
            losses, started = stack.mean_losses(), time.perf_counter()
            evaluations = self._evaluated(tasks[:size], vectors)
            each = seconds, (time.perf_counter() - started) / size
            results = zip(tasks[:size], vectors, finite, losses, evaluations, strict=True)
            for task, vector, usable, loss, evaluated in results:
                yield TrainedClient(task, vector, usable, loss, *evaluated, *each)
            tasks = tasks[size:]

    def _fitted(self, tasks: list[ClientTask]) -> ClientStack | None:
        """The trained stack of some clients; None where the memory does not hold several at a time."""
        try:
            with self.context.precision():
                stack = ClientStack(self._client_trainer, tasks, self._step(tasks[0].capacity))
                stack.fit()
        except torch.OutOfMemoryError:
            if len(tasks) == 1:
                raise
            return None
        return stack

    def _stack_size(self, tasks: list[ClientTask]) -> int:
        """Clients of the next call: all where the free memory holds them, else an equal part."""
        most = self._most.get(tasks[0].capacity, len(tasks))
        if (free := free_memory(self.context.device)) is not None:
            most = min(most, int(USABLE * free) // self._need(tasks))
        return -(-len(tasks) // -(-len(tasks) // max(1, most)))

    def _need(self, tasks: list[ClientTask]) -> int:
        """Bytes that one of the clients needs, measured in a forward pass of the one with the most samples."""
        largest = max(tasks, key=lambda task: len(task.train))
        key = largest.capacity, min(self.context.local.batch_size, len(largest.train))
        if key not in self._needs:
            with self.context.precision():
                client = self._client_trainer.client_for(largest)
                client.net.train()
                self._needs[key] = bytes_of_training(client, next(self._client_trainer.batches(largest)))
        return self._needs[key]

    def _step(self, capacity: float) -> RecordedStep:
        """Losses and gradients of clients of one width."""
        if capacity not in self._steps:
            client = self._client_trainer.module(capacity)
            self._steps[capacity] = RecordedStep(_Objective(client).of, _description(client))
        return self._steps[capacity]

    def _evaluated(self, tasks: Sequence[ClientTask], vectors: Tensor) -> list[tuple[float, ClientScores]]:
        """Loss of every client's received model, and its scores; with one transfer in each direction."""
        if tasks[0].evaluate:
            ids = torch.cat([task.test for task in tasks]).to(self.context.device)
            tests = ids.split([len(task.test) for task in tasks])
            tasks = [replace(task, test=own) for task, own in zip(tasks, tests, strict=True)]
        return read([self._counts(task, vector) for task, vector in zip(tasks, vectors, strict=True)])

    def _counts(self, task: ClientTask, vector: Tensor) -> ClientCounts:
        """Evaluate the received and the trained model of a client."""
        with self.context.precision():
            client = self._client_trainer.client_for(task)
            received_loss = self._client_trainer.received_loss(task, client)
            received = self._client_trainer.evaluate_received(task, client)
            self._client_trainer.flat(task.capacity).write(vector)
            return ClientCounts(received_loss, self._client_trainer.evaluate_trained(task, client, received))


class ClientStack:
    """Clients of one width during one local training, their parameters stacked along the first axis."""

    def __init__(self, client_trainer: ClientTrainer, tasks: list[ClientTask], step: RecordedStep) -> None:
        self._context = client_trainer.context
        self._step, self._net = step, client_trainer.client_for(tasks[0]).bare
        self._space = client_trainer.flat(tasks[0].capacity).space
        received = torch.stack([task.received for task in tasks])
        self._values = self._shaped(received)
        self._constants: dict[str, Tensor] = {}
        for name in self._context.local.kept_vectors:
            shaped = enumerate(self._shaped(torch.stack([task.kept(name) for task in tasks])).values())
            self._constants |= {f"client.{name}_{position}": value for position, value in shaped}
        if self._context.local.mask_labels:
            owned = [task.owned for task in tasks if task.owned is not None]
            self._constants["client.owned"] = torch.stack(owned).to(received.device)
        self._constants["client.share"] = torch.tensor(
            [1 / max(1, len(task.train)) for task in tasks], dtype=received.dtype, device=received.device
        )
        self._clamp_ranges = self._net.clamp_ranges()
        self._noise = [client_trainer.noise_generator(task) for task in tasks]
        moving = {name for name, parameter in self._net.named_parameters() if parameter.requires_grad}
        self._frozen = {f"client.net.{name}": value for name, value in self._values.items() if name not in moving}
        self._moving = {name: value for name, value in self._values.items() if name in moving}
        self._optimizer = self._context.local.build_optimizer(self._moving.values(), tasks[0].lr)
        self._batches = client_trainer.batch_ids(tasks)
        self._schedule = list(_scheduled(self._batches, received.device))
        self._crops = [client_trainer.crop_generator(task) for task in tasks]
        self._total = torch.zeros(len(tasks), dtype=precise(received.device), device=received.device)

    def _shaped(self, vectors: Tensor) -> dict[str, Tensor]:
        """Copies of the tensors, by name, in flat vectors (clients, coordinates)."""
        return {
            block.name: vectors[:, block.coordinates].reshape(-1, *block.shape).clone() for block in self._space.blocks
        }

    def fit(self) -> None:
        self._net.train()
        for step, scheduled in enumerate(self._schedule):
            self._settle()
            self._total += self._losses(step, scheduled.groups)
            self._move(scheduled.resting)
        self._settle()

    @torch.no_grad()
    def _settle(self) -> None:
        """Between steps: new noise for every client's network, and clamped parameters back in their ranges."""
        drawn = [self._net.sample_noise(noise) for noise in self._noise]
        for name in drawn[0]:
            self._constants[f"client.net.{name}"] = torch.stack([own[name] for own in drawn])
        for name, (low, high) in self._clamp_ranges.items():
            self._values[name].clamp_(low, high)

    def vectors(self) -> Tensor:
        """Flat vectors (clients, coordinates) of the trained models."""
        return torch.cat([self._values[block.name].detach().flatten(1) for block in self._space.blocks], dim=1)

    def mean_losses(self) -> list[float]:
        """Mean loss of every client over its steps; NaN without any step."""
        steps = [len(batches) for batches in self._batches]
        return [
            total / count if count else float("nan") for total, count in zip(self._total.tolist(), steps, strict=True)
        ]

    def _losses(self, step: int, groups: Sequence[_Group]) -> Tensor:
        """Loss of every client at one step (0 for finished clients), one call per batch length; sets the gradients."""
        if len(groups[0].clients) == len(self._batches):
            losses, gradients = self._of(step, groups[0].clients, None)
            self._leave(gradients)
            return losses
        losses = torch.zeros_like(self._total)
        gradient_sums: list[Tensor | None] = [None for _ in self._moving]
        for clients, chosen in groups:
            block_losses, gradients = self._of(step, clients, chosen)
            losses[chosen] = block_losses.to(losses.dtype)
            gradient_sums = [
                _put(total, gradient, chosen, value)
                for total, gradient, value in zip(gradient_sums, gradients, self._moving.values(), strict=True)
            ]
        self._leave(gradient_sums)
        return losses

    def _of(self, step: int, clients: list[int], chosen: Tensor | None) -> tuple[Tensor, Sequence[Tensor | None]]:
        """Losses and gradients of clients with batches of one length; `chosen` where they are not all."""
        values = {f"client.net.{name}": value for name, value in self._moving.items()}
        constants = self._constants | self._frozen
        if chosen is not None:
            values, constants = (
                {name: value.index_select(0, chosen) for name, value in tensors.items()}
                for tensors in (values, constants)
            )
        return self._step(values, constants, *self._batch(step, clients))

    def _leave(self, gradients: Sequence[Tensor | None]) -> None:
        for value, gradient in zip(self._moving.values(), gradients, strict=True):
            value.grad = gradient

    def _batch(self, step: int, clients: list[int]) -> Batch:
        """Images (clients, batch, ...) and labels (clients, batch) of clients with batches of one length."""
        ids = torch.stack([self._batches[client][step] for client in clients])
        images, labels = self._context.store.batch(ids, next(iter(self._values.values())).dtype)
        if (augment := self._context.augment) is not None:
            pairs = zip(images, clients, strict=True)
            images = torch.stack([augment(image, self._crops[client]) for image, client in pairs])
        return images, labels

    def _move(self, resting: Tensor) -> None:
        """One optimiser step for the clients that are not `resting`, whom momentum and decay must not move either."""
        if self._context.local.clip_norm is not None:
            _clip_each(self._moving, self._context.local.clip_norm)
        if not len(resting):
            self._optimizer.step()
            return
        before = {name: value.index_select(0, resting) for name, value in self._moving.items()}
        self._optimizer.step()
        with torch.no_grad():
            for name, value in self._moving.items():
                value.index_copy_(0, resting, before[name])


class _Group(NamedTuple):
    """Clients whose batches have one length at a step."""

    clients: list[int]
    chosen: Tensor  # the same on the device


class _Scheduled(NamedTuple):
    """One step of a stack of clients."""

    groups: list[_Group]
    resting: Tensor  # clients that have finished, on the device


def _scheduled(batches: Sequence[Sequence[Tensor]], device: torch.device) -> Iterator[_Scheduled]:
    """The steps of clients with the given batches; what tells the clients of each goes to the device in one piece."""
    steps: list[list[list[int]]] = []  # of every step: its groups, then the clients that rest
    for step in range(max(map(len, batches))):
        lengths: dict[int, list[int]] = defaultdict(list)
        resting: list[int] = []
        for client, own in enumerate(batches):
            (lengths[len(own[step])] if step < len(own) else resting).append(client)
        steps.append([*lengths.values(), resting])
    lists = [clients for parts in steps for clients in parts]
    numbers = torch.tensor([client for clients in lists for client in clients], dtype=torch.long, device=device)
    pieces = iter(numbers.split([len(clients) for clients in lists]))
    for *groups, _ in steps:
        yield _Scheduled([_Group(clients, next(pieces)) for clients in groups], next(pieces))


class _Objective(nn.Module):
    """Calls the client's objective as a module, so that its parameters can be swapped for stacked ones."""

    def __init__(self, client: ClientModule) -> None:
        super().__init__()
        self.client = client

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return self.client.training_step((images, labels))

    def of(self, values: dict[str, Tensor], images: Tensor, labels: Tensor) -> Tensor:
        return functional_call(self, values, (images, labels))


def _description(client: ClientModule) -> Hashable | None:
    """Everything that a client's objective depends on beside its arguments, equal in all executors and shadows.

    None where callbacks take part, which may change. A network whose settings cannot be compared is equal to itself
    only.
    """
    if client.loss_hooks or client.penalty_hooks:
        return None
    net, local = client.bare, client.local
    try:
        settings: Hashable = pickle.dumps(dict(net.hparams))
    except (pickle.PicklingError, AttributeError, TypeError):
        settings = object()
    buffers = tuple((name, plain_array(buffer).tobytes()) for name, buffer in net.named_buffers())
    return tuple(map(type, net.modules())), settings, buffers, local.proximal, local.scaffold, local.mask_labels


def _put(total: Tensor | None, gradient: Tensor | None, chosen: Tensor, like: Tensor) -> Tensor | None:
    """Gradients of all clients with those of the chosen ones filled in; None as long as there are none."""
    if gradient is None:
        return total
    whole = torch.zeros_like(like) if total is None else total
    whole[chosen] = gradient
    return whole


def _clip_each(stacked: dict[str, Tensor], norm: float) -> None:
    """Scale each client's gradient to at most `norm`, as `clip_grad_norm_` does for one client."""
    gradients = [value.grad for value in stacked.values() if value.grad is not None]
    norms = torch.stack([gradient.flatten(1).norm(dim=1) for gradient in gradients]).norm(dim=0)
    factor = (norm / (norms + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factor.view(-1, *[1] * (gradient.dim() - 1)))
