"""The work of a benchmark, the same for every competitor, and the record of a run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor
from torch.optim import Adam

from app.common.seeding import derive_key, torch_generator
from app.models.base import DataShape, ScalableNet
from app.models.cnn import CNN
from datamodules.base import FederatedDataModule, RawData
from datamodules.partitions import Iid
from datamodules.split import Holdout

LEARNING_RATE = 1e-3
SEED = 0
ADAM: OptimizerCallable = partial(Adam, lr=LEARNING_RATE)
EVALUATION_BATCH = 128
MEAN, STD = 0.5, 0.25


@dataclass(frozen=True)
class Work:
    """One setting: every client takes part in every round, trains one epoch, and the mean is taken."""

    clients: int
    samples: int  # training samples of each client
    batch_size: int  # samples per local step
    # evaluate the received model once, every client's trained model and the server's on the whole common test set
    evaluate: bool = False
    net: Callable[[DataShape], ScalableNet] = CNN
    shape: DataShape = DataShape(3, 32, 32, 10)  # noqa: RUF009  (frozen)
    tests: int = 1000  # samples of the common test set
    optimizer: OptimizerCallable = ADAM

    def data(self) -> SyntheticImages:
        data = SyntheticImages(self.clients, self.samples, self.shape, self.tests)
        data.setup()
        return data

    def initial_net(self) -> ScalableNet:
        """The server's first model, the same for all competitors."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_key(SEED, "initialisation"))
            return self.net(self.shape)

    def __str__(self) -> str:
        kind = "with evaluation" if self.evaluate else "training only"
        return f"{self.clients} clients x {self.samples} samples, batch {self.batch_size}, {kind}"

    def order(self, round_: int, client: int) -> tuple[Tensor, ...]:
        """Positions in the client's training set of each batch of a (0-based) round."""
        generator = torch_generator(SEED, "batches", round_, client)
        return torch.randperm(self.samples, generator=generator).split(self.batch_size)


@dataclass(frozen=True, eq=False)
class Run:
    """Time and result of a competitor."""

    seconds: tuple[float, ...]  # wall-clock seconds of every round but the first, which warms up
    # seconds of all cores in the same rounds, which neighbours disturb less; empty where they are not known
    cpu_seconds: tuple[float, ...]
    vector: Tensor  # the server's parameters after the last round, flat, in the order of `net.parameters()`
    correct: int = 0  # correct answers in all evaluations of the last round, 0 without evaluation


Competitor = Callable[[Work, int], Run]
"""Does the work for a number of rounds; the first is not timed."""


class Stopwatch:
    """Collects the time at the end of every round."""

    def __init__(self) -> None:
        self._ends: list[tuple[float, float]] = []
        self._elsewhere = 0.0

    def lap(self, elsewhere: float = 0.0) -> None:
        """Record the end of a round, in which other processes worked for `elsewhere` CPU seconds."""
        self._elsewhere += elsewhere
        self._ends.append((time.perf_counter(), time.process_time() + self._elsewhere))

    def run(self, vector: Tensor, correct: int = 0) -> Run:
        """The rounds after the first."""
        clocks = zip(*self._ends, strict=True)
        wall, cpu = (tuple(end - start for start, end in pairwise(ends)) for ends in clocks)
        return Run(wall, cpu, vector, correct)


class SyntheticImages(FederatedDataModule):
    """Uniformly random images and labels, the same in every run; all clients have equally many samples."""

    def __init__(self, clients: int, samples: int, shape: DataShape, tests: int) -> None:
        super().__init__(partition=Iid(clients), holdout=Holdout(clients=0, shadow=0, population=0))
        self.pool, self.tests, self.image_shape = clients * samples, tests, shape

    def load(self) -> RawData:
        shape, generator = self.image_shape, torch.Generator().manual_seed(SEED)
        size = (self.pool + self.tests, shape.height, shape.width, shape.channels)
        images = torch.randint(0, 256, size, dtype=torch.uint8, generator=generator)
        labels = torch.randint(0, shape.classes, (len(images),), generator=generator)
        test = torch.arange(len(images)) >= self.pool
        names = tuple(map(str, range(shape.classes)))
        mean, std = (MEAN,) * shape.channels, (STD,) * shape.channels
        return RawData.divided(images, labels, test, class_names=names, mean=mean, std=std)
