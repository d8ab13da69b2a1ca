"""Small federations whose every number can be checked: data with chosen share sizes, and a quiet trainer."""

import logging
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from torch import Tensor
from torch.optim import SGD

from app.federation.evaluation import Evaluation
from app.federation.hooks import FederatedCallback
from app.federation.local_training import LocalTraining
from app.federation.module import FederatedModule
from app.models import MLP, DataShape
from datamodules import CropFlip, FederatedDataModule, Holdout, Partition, RawData

warnings.filterwarnings("ignore", ".*does not have many workers.*")
logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)

LINEAR = partial(MLP, hidden=())
"""Softmax regression: no hidden axis, one layer."""

TINY_MLP = partial(MLP, hidden=(6, 4))


FOUR_PIXELS = DataShape(1, 2, 2, 3)

PICTURES = DataShape(1, 8, 8, 4)
"""The smallest images the CNN takes."""


class Shares(Partition):
    """Client k owns the next `sizes[k]` samples of the pool."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__(len(sizes))
        self.sizes = list(sizes)

    def deal(self, labels: np.ndarray, owners: np.ndarray | None, seed: int) -> list[np.ndarray]:
        """Consecutive pieces."""
        return np.split(np.arange(len(labels)), np.cumsum(self.sizes)[:-1])


class Blobs(FederatedDataModule):
    """Noisy pictures of `classes` random patterns, so that a linear model can learn them."""

    def __init__(
        self,
        sizes: Sequence[int] = (5, 8, 11),
        shape: DataShape = FOUR_PIXELS,
        tests: int = 20,
        nonmembers: float = 0.0,
        augment: CropFlip | None = None,
    ) -> None:
        super().__init__(Shares(sizes), Holdout(nonmembers, 0.0, 0.0), augment)
        self.pool, self.tests, self.picture = sum(sizes), tests, shape

    def load(self) -> RawData:
        """Patterns plus noise, on the 0..1 scale."""
        generator = np.random.default_rng(7)
        size = (self.picture.height, self.picture.width, self.picture.channels)
        patterns = generator.uniform(0.2, 0.8, (self.picture.classes, *size))
        count = self.pool + self.tests
        labels = torch.from_numpy(generator.integers(0, self.picture.classes, count))
        images = patterns[labels.numpy()] + generator.normal(0, 0.15, (count, *size))
        pixels = torch.from_numpy(images.clip(0, 1)).float()
        names = tuple(str(number) for number in range(self.picture.classes))
        mean, std = (0.5,) * self.picture.channels, (0.5,) * self.picture.channels
        return RawData(
            pixels[: self.pool], labels[: self.pool], pixels[self.pool :], labels[self.pool :], names, mean, std
        )


def sgd(lr: float = 0.5, **settings: Any) -> partial:
    """SGD as a setting of local training; instead of 0, which runs refuse, a learning rate that moves nothing."""
    return partial(SGD, lr=lr or 1e-300, **settings)


def whole_batch(lr: float = 0.5, epochs: int = 1, **settings: Any) -> LocalTraining:
    """Full-batch gradient descent: `epochs` steps per round."""
    return LocalTraining(batch_size=10_000, epochs=epochs, optimizer=sgd(lr), **settings)


def small_federation(net: Any = LINEAR, **settings: Any) -> FederatedModule:
    """A federation in sequence, without evaluation of the clients unless asked for."""
    settings.setdefault("local", whole_batch())
    settings.setdefault("executor", "sequence")
    settings.setdefault("evaluation", Evaluation(clients=False))
    return FederatedModule(net=net, **settings)


def make_trainer(rounds: int, precision: str = "64-true", callbacks: Sequence[Any] = (), **settings: Any) -> pl.Trainer:
    """A quiet trainer on one CPU process."""
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    fixed = {"enable_checkpointing": False, "num_sanity_val_steps": 0, "accelerator": "cpu", "devices": 1}
    return pl.Trainer(
        max_epochs=rounds, precision=precision, callbacks=list(callbacks), **{**quiet, **fixed, **settings}
    )


def run(
    federation: FederatedModule,
    data: FederatedDataModule | None = None,
    rounds: int = 2,
    callbacks: Sequence[Any] = (),
    **settings: Any,
) -> Tensor:
    """Train; returns the server's final flat vector."""
    trainer = make_trainer(rounds, callbacks=callbacks, **settings)
    trainer.fit(federation, datamodule=data if data is not None else Blobs())
    return federation.space.read(federation.net)


def initial(federation: FederatedModule, data: FederatedDataModule | None = None, **settings: Any) -> Tensor:
    """The server's vector before the first round."""
    trainer = make_trainer(1, **settings)
    trainer.datamodule = data if data is not None else Blobs()
    trainer.datamodule.setup()
    federation.trainer = trainer
    federation.prepare()
    return federation.space.read(federation.net)


class Recorder(FederatedCallback):
    """Keeps every update, message, aggregate and server vector of a run."""

    kind = "recorder"

    def __init__(self) -> None:
        self.updates, self.messages, self.aggregates, self.started = [], [], [], []

    def on_round_start(self, trainer, federation, plan):
        """The server's vector before the round."""
        self.started.append(federation.theta.clone())

    def on_client_update(self, trainer, federation, update):
        """What the client is about to send."""
        self.updates.append((update.client, update.vector.clone(), update.index.clone()))

    def on_message(self, trainer, federation, message):
        """What the server received."""
        self.messages.append(message)

    def on_server_update(self, trainer, federation, aggregate):
        """What it made of it."""
        self.aggregates.append((aggregate.mean.clone(), aggregate.weight.clone(), aggregate.updates))


class Reader(Recorder):
    """The same among the defenses, in the order in which it is given: it sees what those before it have done."""

    kind = "defense"


class Reports(pl.Callback):
    """Keeps the report of every round."""

    def __init__(self) -> None:
        self.rounds = []

    def on_train_epoch_end(self, trainer, pl_module):
        """The round is over, the server evaluated."""
        self.rounds.append(pl_module.report)
