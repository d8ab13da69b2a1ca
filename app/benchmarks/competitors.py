"""Competitors of a benchmark: this application, and federated averaging written directly in PyTorch.

The loops use the networks of this application but nothing of its federation: images lie normalised in memory, there are
no defenses, no unequal models, no reports. The difference to them is what the framework costs.
"""

from __future__ import annotations

import copy
import logging
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import LambdaCallback
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from app.benchmarks.work import EVALUATION_BATCH, MEAN, SEED, STD, Competitor, Run, Stopwatch, Work
from app.federation.evaluation import Evaluation
from app.federation.execution.executors import ExecutorKind, available_cores
from app.federation.local_training import LocalTraining
from app.federation.module import FederatedModule
from app.models.base import ScalableNet

Batch = tuple[Tensor, Tensor]


def thread_counts(
    competitor: Callable[..., Run], option: str = "threads", words: tuple[str, str] = ("1 thread", "{} threads")
) -> dict[str, Competitor]:
    """A competitor with one thread and with one per core, by these settings in words."""
    settings = {words[count > 1].format(count): count for count in (1, available_cores())}
    return {setting: partial(competitor, **{option: count}) for setting, count in settings.items()}


@dataclass(frozen=True, eq=False)
class LoadedData:
    """Normalised float32 images and labels: one pair per client, and the common test set."""

    clients: tuple[Batch, ...]
    test: Batch

    @classmethod
    def of(cls, work: Work, channels_last: bool) -> LoadedData:
        """The data of the work in one memory layout."""
        data = work.data()
        layout = torch.channels_last if channels_last else torch.contiguous_format
        images = (data.store.images.movedim(-1, 1).float() / 255 - MEAN) / STD
        images = images.contiguous(memory_format=layout)
        parts = [*(data.train_indices(client) for client in range(work.clients)), data.common_test]
        pairs = [(images[ids].contiguous(memory_format=layout), data.store.labels[ids]) for ids in parts]
        return cls(tuple(pairs[:-1]), pairs[-1])


def rampart(
    work: Work, rounds: int, executor: ExecutorKind = "auto", defenses: Callable[[], Sequence[pl.Callback]] = tuple
) -> Run:
    """Train with this application, by default with the executor it would choose itself and without defenses."""
    module = FederatedModule(
        net=work.net,
        local=LocalTraining(batch_size=work.batch_size, optimizer=work.optimizer),
        evaluation=Evaluation(clients=work.evaluate, batch_size=EVALUATION_BATCH),
        executor=executor,
        seed=SEED,
    )
    watch = Stopwatch()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    trainer = pl.Trainer(
        max_epochs=rounds,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        num_sanity_val_steps=0,
        limit_val_batches=1.0 if work.evaluate else 0,
        callbacks=[*defenses(), LambdaCallback(on_train_epoch_end=lambda *_: watch.lap())],
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice about dataloader workers, which do not exist here
        trainer.fit(module, datamodule=work.data())
    return watch.run(flat(module.net), _correct(module, work) if work.evaluate else 0)


def _correct(module: FederatedModule, work: Work) -> int:
    """Correct answers in the evaluations of the last round; the received model counts once."""
    clients = module.report.clients
    accuracies = [clients[0].received_common, *(client.trained_common for client in clients)]
    return sum(round(accuracy * work.tests) for accuracy in accuracies) + module.report.server.correct


@torch.enable_grad()
def fit(net: nn.Module, batches: Iterable[Batch], make: OptimizerCallable, fused: bool) -> None:
    """One local epoch with a fresh optimiser."""
    net.train()
    optimizer = make(net.parameters())
    optimizer.param_groups[0]["fused"] = fused or None
    for images, labels in batches:
        optimizer.zero_grad(set_to_none=True)
        cross_entropy(net(images), labels).backward()
        optimizer.step()


@torch.no_grad()
def correct_answers(net: nn.Module, test: Batch) -> int:
    """Correctly classified test samples; batch norms use the statistics of each batch."""
    net.eval()
    batches = zip(test[0].split(EVALUATION_BATCH), test[1].split(EVALUATION_BATCH), strict=True)
    return int(sum((net(images).argmax(1) == labels).sum() for images, labels in batches))


def flat(net: nn.Module) -> Tensor:
    """The parameters as one vector."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in net.parameters()])


def timed_rounds(rounds: int, step: Callable[[int], int], net: nn.Module) -> Run:
    """Run `step(round)`, which returns the correct answers, and time every round but the first."""
    watch, correct = Stopwatch(), 0
    for round_ in range(rounds):
        correct = step(round_)
        watch.lap()
    return watch.run(flat(net), correct)


class FastLoop:
    """One network per worker, reused for all clients; channels_last; fused Adam."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.data = LoadedData.of(work, channels_last=True)
        self.net = work.initial_net().to(memory_format=torch.channels_last)
        self.total = [torch.zeros_like(parameter) for parameter in self.net.parameters()]
        self.local, self.lock = threading.local(), threading.Lock()

    @torch.no_grad()
    def round(self, number: int, mapped: Callable[..., Iterator[int]]) -> int:
        """Train all clients with a `map` and average them; returns the correct answers of all evaluations."""
        correct = sum(mapped(partial(self.train, number), range(self.work.clients)))
        for parameter, value in zip(self.net.parameters(), self.total, strict=True):
            parameter.copy_(value / self.work.clients)
        torch._foreach_zero_(self.total)
        return correct + (correct_answers(self.net, self.data.test) if self.work.evaluate else 0)

    def train(self, round_: int, client: int) -> int:
        """Train one client and add its parameters to the total; returns the correct answers of its evaluations."""
        net = self.local_net()
        correct = correct_answers(net, self.data.test) if self.work.evaluate and client == 0 else 0
        fit(net, self.batches(round_, client), self.work.optimizer, fused=True)
        with self.lock, torch.no_grad():
            torch._foreach_add_(self.total, list(net.parameters()))
        return correct + (correct_answers(net, self.data.test) if self.work.evaluate else 0)

    @torch.no_grad()
    def local_net(self) -> ScalableNet:
        """This worker's network, with the server's parameters."""
        if not hasattr(self.local, "net"):
            self.local.net = copy.deepcopy(self.net)
        torch._foreach_copy_(list(self.local.net.parameters()), list(self.net.parameters()))
        return self.local.net

    def batches(self, round_: int, client: int) -> Iterator[Batch]:
        images, labels = self.data.clients[client]
        for positions in self.work.order(round_, client):
            yield images.index_select(0, positions), labels[positions]


def raw_threads(work: Work, rounds: int, workers: int | None = None) -> Run:
    """Worker threads (by default one per core) with one intra-op thread each, one client at a time per thread."""
    loop = FastLoop(work)
    with ThreadPoolExecutor(workers or available_cores(), initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return timed_rounds(rounds, partial(loop.round, mapped=pool.map), loop.net)


def raw_sequence(work: Work, rounds: int, threads: int | None = None) -> Run:
    """One client after the other; `threads` are intra-op threads, by default as many as torch has."""
    torch.set_num_threads(threads or torch.get_num_threads())
    loop = FastLoop(work)
    return timed_rounds(rounds, partial(loop.round, mapped=map), loop.net)


def naive(work: Work, rounds: int, threads: int | None = None) -> Run:
    """The common way to write it: a DataLoader and a deep copy of the model per client, default memory layout."""
    torch.set_num_threads(threads or torch.get_num_threads())
    data, net = LoadedData.of(work, channels_last=False), work.initial_net()

    def step(_: int) -> int:
        correct = correct_answers(net, data.test) if work.evaluate else 0
        states = []
        for images, labels in data.clients:
            local = copy.deepcopy(net)
            batches = DataLoader(TensorDataset(images, labels), work.batch_size, shuffle=True)
            fit(local, batches, work.optimizer, fused=False)
            correct += correct_answers(local, data.test) if work.evaluate else 0
            states.append(local.state_dict())
        net.load_state_dict({key: torch.stack([state[key] for state in states]).mean(0) for key in states[0]})
        return correct + (correct_answers(net, data.test) if work.evaluate else 0)

    return timed_rounds(rounds, step, net)
