"""What one worker needs to train clients: a network per width, reused for all of them."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from app.common.seeding import torch_generator
from app.federation.client import Batch, ClientModule, LossHook, PenaltyHook
from app.federation.evaluation import (
    Counts,
    Evaluation,
    evaluate,
    nothing,
    scores_of,
    statistics_context,
    wants_posthoc,
)
from app.federation.execution.distributed import spare_driver_lookups
from app.federation.execution.tasks import ClientScores, ClientTask, TrainedClient
from app.federation.local_training import LocalTraining
from app.federation.parameters import FlatNet, WidthNets
from app.federation.submodels import LocalWidths
from app.federation.submodels.fjord import OrderedDropout
from app.models.base import ScalableNet
from app.models.layers import has_dropout, seed_dropout
from app.models.norms import uses_batch_statistics
from datamodules.store import ImageStore


class SharedScores:
    """Evaluations that several clients share: the first client computes one, the others need not wait for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._scores: dict[Hashable, Future[Counts]] = {}

    def clear(self) -> None:
        self._scores.clear()

    def get(self, key: Hashable, compute: Callable[[], Counts]) -> Future[Counts]:
        """The evaluation for `key`, perhaps still being computed by another worker."""
        with self._lock:
            first = key not in self._scores
            score = self._scores.setdefault(key, Future())
        if first:
            try:
                score.set_result(compute())
            except BaseException as error:
                score.set_exception(error)
                raise
        return score


@dataclass(frozen=True)
class LocalContext:
    """Everything that local training depends on, shared by the workers."""

    prototype: ScalableNet  # the server's network; local networks are built from it at each width
    store: ImageStore  # all samples, on the device
    common_test: Tensor  # sample ids of the common test set for clients
    augment: Callable[[Tensor, torch.Generator], Tensor] | None  # augmentation of training batches, None for none
    local: LocalTraining
    evaluation: Evaluation
    seed: int
    needs_received_loss: bool  # whether to compute the loss of the received model on the training set
    loss_hooks: tuple[LossHook, ...]  # callbacks' `client_loss`, bound
    penalty_hooks: tuple[PenaltyHook, ...]  # callbacks' `client_penalty`, bound
    start_hooks: tuple[Callable[[ClientModule], None], ...]  # callbacks' `on_client_start`, bound
    end_hooks: tuple[Callable[[ClientModule], None], ...]  # callbacks' `on_client_end`, bound
    widths: LocalWidths | None  # widths a client samples from during its local steps, None for one width
    # makes the context in which networks run (autocast for mixed precision)
    precision: Callable[[], AbstractContextManager[None]]
    trained: frozenset[str] | None = None  # names of the parameters that local training moves; None for all of them
    # scores of received models, one per distinct submodel and round
    shared_scores: SharedScores = field(default_factory=SharedScores)

    def undefended(self) -> LocalContext:
        """Local training without defenses, for models that do not leave the client."""
        return replace(self, start_hooks=(), end_hooks=(), loss_hooks=(), penalty_hooks=())

    @cached_property
    def device(self) -> torch.device:
        return next(self.prototype.parameters()).device

    @cached_property
    def dtype(self) -> torch.dtype:
        return next(self.prototype.parameters()).dtype

    @cached_property
    def dropout(self) -> bool:
        return has_dropout(self.prototype)

    @cached_property
    def least_batch(self) -> int:
        """Smallest usable batch: batch statistics need two samples."""
        return 2 if uses_batch_statistics(self.prototype) else 1


class ClientCounts(NamedTuple):
    """Evaluations of one client, on the device."""

    received_loss: Counts  # of the received model on the training set
    scores: tuple[Counts, ...] | None  # as those of `ClientScores`; None where they are not requested


def read(evaluations: Sequence[ClientCounts]) -> list[tuple[float, ClientScores]]:
    """Loss of the received model and scores of every client, with one transfer from the device."""
    scores = iter(scores_of([counts for one in evaluations for counts in (one.received_loss, *(one.scores or ()))]))
    return [(next(scores).mean_loss, ClientScores(*islice(scores, len(one.scores or ())))) for one in evaluations]


class ClientTrainer:
    """Trains clients one after the other on one worker."""

    def __init__(self, context: LocalContext) -> None:
        spare_driver_lookups()
        self.context = context
        self._common_test = context.common_test.to(context.device)
        self._clients: dict[float, tuple[ClientModule, FlatNet]] = {}
        self._nets = WidthNets(context.prototype, self._prepare, fork=False)

    def train(self, task: ClientTask) -> TrainedClient:
        with self.context.precision():
            client = self.client_for(task)
            loss_of_received = self.received_loss(task, client)
            started = time.perf_counter()
            received = self.evaluate_received(task, client)
            evaluated = time.perf_counter()
            loss = self._fit(task, client)
            trained = time.perf_counter()
            counts = None if client.refusal else self.evaluate_trained(task, client, received)
            ((received_loss, scores),) = read([ClientCounts(loss_of_received, counts)])
            vector = self.flat(task.capacity).read()
            finite = math.isfinite(float(vector.sum()))  # much faster than a look at every coordinate
        finished = time.perf_counter()
        seconds = trained - evaluated, evaluated - started + finished - trained
        return TrainedClient(task, vector, finite, loss, received_loss, scores, *seconds, client.refusal)

    def client_for(self, task: ClientTask) -> ClientModule:
        """The module of the task's width, with the received model."""
        client = self.module(task.capacity)
        client.assign(client=task.client, round=task.round, lr=task.lr, samples=len(task.train))
        client.assign(received=task.received, index=task.index, refusal="")
        client.share.fill_(1 / max(1, len(task.train)))
        if task.owned is not None:
            client.owned.copy_(task.owned)
        self.flat(task.capacity).write(task.received)
        return client

    def module(self, capacity: float) -> ClientModule:
        return self._built(capacity)[0]

    def flat(self, capacity: float) -> FlatNet:
        return self._built(capacity)[1]

    def _built(self, capacity: float) -> tuple[ClientModule, FlatNet]:
        if capacity not in self._clients:
            net, flat = self._nets.of(capacity)
            self._clients[capacity] = self._wrapped(net, capacity), flat
        return self._clients[capacity]

    def _prepare(self, net: ScalableNet) -> None:
        if self.context.local.channels_last:
            net.to(memory_format=torch.channels_last)
        for name, parameter in net.named_parameters():
            parameter.requires_grad_(self.context.trained is None or name in self.context.trained)

    def _wrapped(self, net: ScalableNet, capacity: float) -> ClientModule:
        context, dropout = self.context, None
        if context.widths is not None:
            dropout = OrderedDropout(net, capacity, context.prototype, context.widths)
        hooks = (context.loss_hooks, context.penalty_hooks)
        client = ClientModule(net, context.local, *hooks, dropout, context.store.classes)
        return client.to(context.device)

    def batch_ids(self, tasks: Sequence[ClientTask]) -> list[tuple[Tensor, ...]]:
        """Sample ids of every local step of every task, on the device."""
        batches = [self._positions(task) for task in tasks]
        own = [task.train[torch.cat(positions)] for task, positions in zip(tasks, batches, strict=True)]
        ids = torch.cat(own).to(self.context.device).split([len(one) for one in own])  # one transfer for all of them
        lengths = ([len(batch) for batch in positions] for positions in batches)
        return [one.split(sizes) for one, sizes in zip(ids, lengths, strict=True)]

    def _positions(self, task: ClientTask) -> list[Tensor]:
        order = self._generator("batches", task)
        return list(self.context.local.batches(len(task.train), order, self.context.least_batch))

    def _generator(self, purpose: str, task: ClientTask, device: torch.device | str = "cpu") -> torch.Generator:
        seed = self.context.seed if task.seed is None else task.seed
        return torch_generator(seed, purpose, task.round, task.client, device=device)

    def crop_generator(self, task: ClientTask) -> torch.Generator:
        return self._generator("augmentation", task)

    def noise_generator(self, task: ClientTask) -> torch.Generator:
        return self._generator("noise", task, self.context.device)

    def batches(self, task: ClientTask) -> Iterator[Batch]:
        crops = self.crop_generator(task)
        for ids in self.batch_ids([task])[0]:
            yield self._loaded(ids, crops)

    def _loaded(self, ids: Tensor, crops: torch.Generator) -> Batch:
        augment = self.context.augment
        images, labels = self.context.store.batch(ids, self.context.dtype)
        return (images if augment is None else augment(images, crops)), labels

    def _draw(self, task: ClientTask) -> Callable[[Tensor], Batch]:
        """Loads samples of the task by their positions, for callbacks that choose their own batches."""
        crops = self.crop_generator(task)
        return lambda positions: self._loaded(task.train[positions].to(self.context.device), crops)

    def received_loss(self, task: ClientTask, client: ClientModule) -> Counts:
        """Loss of the received model on the training set; of no samples where the server optimiser does not need it."""
        if not self.context.needs_received_loss:
            return nothing(self.context.device)
        return evaluate(client.net, self.context.store, task.train, self.context.evaluation.batch_size)

    def evaluate_received(self, task: ClientTask, client: ClientModule) -> Callable[[], tuple[Counts, Counts]]:
        """Evaluate the received model on the common and on the client's own test set, which is returned when called."""
        if not task.evaluate:
            return lambda: (nothing(self.context.device),) * 2
        if task.key is None or wants_posthoc(client.net):  # post-hoc statistics are the client's own
            scores = self._scores(task, client)
            return lambda: scores
        common = self.context.shared_scores.get(task.key, lambda: self._score(client, self._common_test))
        own = self._score(client, task.test)
        return lambda: (common.result(), own)

    def evaluate_trained(
        self, task: ClientTask, client: ClientModule, received: Callable[[], tuple[Counts, Counts]]
    ) -> tuple[Counts, ...] | None:
        """The four evaluations of `ClientScores`; None where none are requested."""
        if not task.evaluate:
            return None
        trained = self._scores(task, client)
        return (*received(), *trained)

    def _fit(self, task: ClientTask, client: ClientModule) -> float:
        self._seed(task, client)
        self._keep(task, client)
        client.assign(
            optimizer=client.configure_optimizers(), batches=self.batches(task), load_samples=self._draw(task)
        )
        for hook in self.context.start_hooks:
            hook(client)
        try:
            return float("nan") if client.refusal else client.fit()
        finally:
            for hook in self.context.end_hooks:
                hook(client)
            client.assign(optimizer=None, batches=(), load_samples=None, take_step=client.plain_step)

    def _keep(self, task: ClientTask, client: ClientModule) -> None:
        """Give the client the vectors that its objective needs."""
        flat, names = self.flat(task.capacity), self.context.local.kept_vectors
        for name in names:
            flat.write(task.kept(name))
            client.keep(name)
        if names:
            flat.write(task.received)

    def _seed(self, task: ClientTask, client: ClientModule) -> None:
        """Key everything that is random during the local steps by round and client."""
        drawn = client.ordered_dropout
        if drawn is not None:
            drawn.generator = self._generator("widths", task)
        if self.context.dropout:
            masks = self._generator("dropout", task, self.context.device)
            for net in (client.net, *(drawn.nets.values() if drawn is not None else ())):
                seed_dropout(net, masks)
        client.noise = self.noise_generator(task)

    def _score(self, client: ClientModule, indices: Tensor) -> Counts:
        client.redraw(torch_generator(self.context.seed, "evaluation", client.round, client.client))
        store = self.context.store.rightly_labelled
        return evaluate(client.net, store, indices, self.context.evaluation.batch_size)

    def _scores(self, task: ClientTask, client: ClientModule) -> tuple[Counts, Counts]:
        with statistics_context(client.net, self.context.store, task.train, self.context.evaluation.batch_size):
            return self._score(client, self._common_test), self._score(client, task.test)
