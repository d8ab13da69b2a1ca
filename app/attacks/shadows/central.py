"""Central training of shadow models with the clients' recipe, without a federation."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

import torch
from torch import Tensor

from app.attacks.models import Ids, Snapshot
from app.attacks.public_knowledge import PublicKnowledge
from app.common.progress import Step
from app.common.seeding import derive_key
from app.common.wording import counted
from app.federation.execution.distributed import one_thread
from app.federation.execution.executors import Executor, available_cores, make_executor
from app.federation.execution.tasks import ClientTask
from app.federation.parameters import ParameterSpace

BLOCK = 32
"""Models trained at a time, which bounds the memory of a vectorised call."""


@dataclass(frozen=True, eq=False)
class ShadowJob:
    """One model of width rate `rate`, in (0, 1], to train on samples.

    The seed is the key of initial values, batches and augmentation, different for every number.
    """

    number: int
    rate: float
    samples: Ids
    seed: int

    @property
    def start(self) -> int:
        """Key of initial values."""
        return derive_key(self.seed, "initialisation", self.number)


def train_centrally(
    knowledge: PublicKnowledge, jobs: Sequence[ShadowJob], rounds: tuple[int, ...], workers: int | None = None
) -> list[tuple[Snapshot, ...]]:
    """Train every model for as many rounds as the federation, each round with the clients' recipe.

    Snapshots are kept after the given rounds (ascending, counted from 1); training ends with the last. Without a number
    of workers, there is one thread per core.
    """
    context = knowledge.local_context()
    kept: list[tuple[Snapshot, ...]] = []
    with (
        one_thread(),
        closing(make_executor("auto", context, workers or available_cores(), [])) as executor,
        Step(counted(len(jobs), "shadow model"), len(jobs) * rounds[-1], "trainings") as step,
    ):
        for start in range(0, len(jobs), BLOCK):
            kept.extend(_train_block(knowledge, executor, jobs[start : start + BLOCK], rounds, step))
    return kept


def _train_block(
    knowledge: PublicKnowledge,
    executor: Executor,
    jobs: Sequence[ShadowJob],
    rounds: tuple[int, ...],
    step: Step,
) -> list[tuple[Snapshot, ...]]:
    vectors = [initial_vector(knowledge, job.rate, job.start) for job in jobs]
    kept: list[list[Snapshot]] = [[] for _ in jobs]
    for round_ in range(1, rounds[-1] + 1):
        tasks = [_task(knowledge, job, vector, round_) for job, vector in zip(jobs, vectors, strict=True)]
        vectors = []
        for trained in executor.run(tasks):
            vectors.append(trained.vector)
            step.update()
        if round_ in rounds:
            for job, vector, snapshots in zip(jobs, vectors, kept, strict=True):
                snapshots.append(Snapshot(round_, job.rate, vector.cpu()))
    return [tuple(snapshots) for snapshots in kept]


def initial_vector(knowledge: PublicKnowledge, rate: float, key: int) -> Tensor:
    """Flat vector of a freshly initialised network of one width."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(key)  # torch.manual_seed would also reseed the GPUs
        net = knowledge.prototype.scaled(rate)
    return ParameterSpace(net).read(net).to(knowledge.device, knowledge.dtype)


def _task(knowledge: PublicKnowledge, job: ShadowJob, vector: Tensor, round_: int) -> ClientTask:
    samples = torch.from_numpy(job.samples)
    owned = None
    if knowledge.local.mask_labels:
        labels = knowledge.store.labels[samples.to(knowledge.store.device)]
        owned = torch.bincount(labels, minlength=knowledge.classes).cpu() > 0
    return ClientTask(
        client=job.number,
        round=round_ - 1,
        capacity=job.rate,
        received=vector,
        key=None,
        lr=knowledge.local.client_lr(knowledge.learning_rates[round_ - 1], job.rate),
        train=samples,
        test=samples[:0],
        evaluate=False,
        owned=owned,
        seed=job.seed,
    )
