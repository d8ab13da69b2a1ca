"""How a block of clients is executed: one after the other, in worker threads, or all at once.

All executors give the same result within float tolerance; they differ in speed. On a CPU, worker threads with one
intra-op thread each are the fastest for convolutional nets, one vectorised call for tiny nets (`scripts/bench`). On a
GPU the vectorised call is chosen because small kernels are bound by their launch; that is expected, not measured.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ClassVar, Literal, TypeVar

import torch
from torch import nn

from app.common.errors import UserError
from app.federation.execution.client_trainer import ClientTrainer, LocalContext
from app.federation.execution.distributed import keep_freed_memory
from app.federation.execution.tasks import ClientTask, TrainedClient
from app.federation.parameters import lasting_buffers
from app.models.factor_layers import FactorConv2d
from app.models.layers import has_dropout

Item = TypeVar("Item")
Made = TypeVar("Made")

ExecutorKind = Literal["auto", "threads", "vectorised", "sequence"]

ANOMALIES = "anomalies are looked for in single operations (--trainer.detect_anomaly)"
"""Obstacle to vectorised execution."""


class Executor(ABC):
    """Trains blocks of clients."""

    description: ClassVar[str]
    """How clients are trained, in words."""

    def __init__(self, context: LocalContext) -> None:
        self.context = context

    @abstractmethod
    def run(self, tasks: Iterable[ClientTask]) -> Iterator[TrainedClient]:
        """Train the clients; results come in the order of the tasks."""

    def map(self, function: Callable[[Item], Made], items: Iterable[Item]) -> Iterable[Made]:
        """`function` of every item, in order, for evaluation; in parallel where the executor is."""
        return map(function, items)

    def close(self) -> None:
        return


class InSequence(Executor):
    """One client after the other, each using all cores or the whole GPU."""

    description = "one worker, in sequence"

    def __init__(self, context: LocalContext) -> None:
        super().__init__(context)
        self._client_trainer = ClientTrainer(context)

    def run(self, tasks: Iterable[ClientTask]) -> Iterator[TrainedClient]:
        yield from map(self._client_trainer.train, tasks)


class WorkerThreads(Executor):
    """One client per worker thread, one intra-op thread each."""

    description = "worker threads, one client each"

    def __init__(self, context: LocalContext, workers: int) -> None:
        super().__init__(context)
        keep_freed_memory()
        self._threads_before = torch.get_num_threads()
        torch.set_num_threads(1)  # the main thread's own intra-op threads would only get in the workers' way
        self._workers = workers
        self._local = threading.local()
        self._pool = ThreadPoolExecutor(workers, "client", initializer=self._start_worker)

    def run(self, tasks: Iterable[ClientTask]) -> Iterator[TrainedClient]:
        waiting: deque[Future[TrainedClient]] = deque()
        for task in tasks:
            if len(waiting) >= 2 * self._workers:
                yield waiting.popleft().result()
            waiting.append(self._pool.submit(self._train, task))
        while waiting:
            yield waiting.popleft().result()

    def map(self, function: Callable[[Item], Made], items: Iterable[Item]) -> Iterable[Made]:
        def within(item: Item) -> Made:  # autocast is per thread
            with self.context.precision():
                return function(item)

        return self._pool.map(within, items)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        torch.set_num_threads(self._threads_before)

    def _start_worker(self) -> None:
        torch.set_num_threads(1)
        self._local.client_trainer = ClientTrainer(self.context)

    def _train(self, task: ClientTask) -> TrainedClient:
        return self._local.client_trainer.train(task)


def make_executor(kind: ExecutorKind, context: LocalContext, workers: int, obstacles: Sequence[str]) -> Executor:
    """The executor of the given kind; `auto` chooses the fastest one without `obstacles` to vectorised execution."""
    from app.federation.execution.vectorised import Vectorised

    reasons = [*obstacles, *_local_obstacles(context)]
    if kind == "vectorised" and reasons:
        raise UserError.of(
            f"executor=vectorised is not possible: {'; '.join(reasons)}",
            "clients trained in one call would not get what they get one by one",
            "set --model.executor auto",
        )
    if kind == "vectorised" or (kind == "auto" and not reasons and _prefers_vectorised(context)):
        return Vectorised(context)
    if kind == "threads" or (kind == "auto" and context.device.type == "cpu" and workers > 1):
        return WorkerThreads(context, workers)
    return InSequence(context)


def available_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _local_obstacles(context: LocalContext) -> list[str]:
    reasons, net = [ANOMALIES] if torch.is_anomaly_enabled() else [], context.prototype
    if context.widths is not None:
        reasons.append("clients draw their widths step by step")
    if has_dropout(net):
        reasons.append("the network has dropout, whose masks are drawn client by client")
    if lasting_buffers(net):
        reasons.append("the network tracks running statistics")
    return reasons


def _prefers_vectorised(context: LocalContext) -> bool:
    if context.device.type != "cpu":
        return True
    net = context.prototype
    convolutional = any(isinstance(layer, nn.Conv2d | FactorConv2d) for layer in net.modules())
    small = sum(parameter.numel() for parameter in net.parameters()) < 500_000
    return small and not convolutional and context.local.batch_size <= 32
