"""How a client trains: the settings, the learning rate of every round, and the order of the batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from app.common.errors import Problem
from app.common.ranges import Count, NonNegative, Positive, Share


@dataclass(frozen=True)
class LocalTraining:
    """How a client trains. The optimiser is new in every round: no state is carried over.

    Attributes:
        epochs: passes over the client's training set per round, at least 1.
        steps: optimiser steps per round, instead of whole epochs; `epochs` stays 1 then.
        batch_size: samples per step; the last batch of an epoch may be smaller.
        shuffle: whether every epoch goes through the samples in a new order.
        optimizer: torch optimiser by class path.
        lr_schedule: torch learning-rate scheduler by class path, stepped once per round.
        lr_factors: pairs of a width rate and what the learning rate of clients with that width is multiplied by, above
            0; 1 for widths that are not named. Haldankar et al. (2024, section 6.1) let cohorts converge at different
            speeds this way.
        proximal: FedProx: weight mu of mu/2 |theta - theta_received|^2 in the local loss, 0 = off.
        scaffold: SCAFFOLD: every step is corrected by control variates, so that clients whose data differ do not drift
            apart; needs plain SGD and equally many steps for all clients.
        mask_labels: HeteroFL: logits of classes the client has no samples of count as 0 in its loss, and it does not
            upload their rows of the classifier. This reveals to the server which classes a client has.
        clip_norm: clip the gradient of every step to this Euclidean norm.
        channels_last: keep images and convolutions in channels_last memory, which is faster on a CPU.
    """

    epochs: Count = 1
    steps: Count | None = None
    batch_size: Count = 128
    shuffle: bool = True
    optimizer: OptimizerCallable = Adam
    lr_schedule: LRSchedulerCallable | None = None
    lr_factors: tuple[tuple[Share, Positive], ...] = ()
    proximal: NonNegative = 0.0
    scaffold: bool = False
    mask_labels: bool = False
    clip_norm: Positive | None = None
    channels_last: bool = True

    @property
    def kept_vectors(self) -> tuple[str, ...]:
        """Vectors that the local objective needs beside the client's model: fields of `ClientTask`."""
        return (*(["anchor"] if self.proximal else []), *(["correction"] if self.scaffold else []))

    def problems(self) -> Iterator[Problem]:
        if self.steps is not None and self.epochs != 1:
            yield Problem(
                f"local.steps is {self.steps} and local.epochs is {self.epochs}",
                "steps take the place of epochs, which would have no effect",
                "leave out --model.local.steps, or set --model.local.epochs 1",
            )

    def build_optimizer(self, parameters: Iterable[Tensor], lr: float) -> Optimizer:
        """A fresh optimiser at the round's learning rate, fused where torch can."""
        optimizer = self.optimizer(list(parameters))
        for group in optimizer.param_groups:
            group["lr"] = lr
            if type(optimizer) in (SGD, Adam, AdamW) and group.get("fused") is None and not group.get("foreach"):
                group["fused"] = True
        return optimizer

    def learning_rates(self, rounds: int) -> list[float]:
        optimizer = self.optimizer([torch.nn.Parameter(torch.zeros(1))])
        if self.lr_schedule is None:
            return [float(optimizer.param_groups[0]["lr"])] * rounds
        schedule = self.lr_schedule(optimizer)
        rates = []
        for _ in range(rounds):
            rates.append(float(optimizer.param_groups[0]["lr"]))
            optimizer.step()
            schedule.step()
        return rates

    def client_lr(self, lr: float, rate: float) -> float:
        """Learning rate of a client with a width rate, in a round with learning rate `lr`."""
        return lr * next((factor for width, factor in self.lr_factors if abs(width - rate) < 1e-9), 1.0)

    def batches(self, samples: int, generator: torch.Generator, least: int = 1) -> Iterator[Tensor]:
        """Positions (int64) of every batch of one round; where samples are shuffled, each epoch is a new permutation.

        A last batch of fewer than `least` samples joins the one before (batch norm cannot use one sample).
        """
        limit = self.steps if self.steps is not None else self.epochs * self.steps_per_epoch(samples, least)
        done = 0
        while done < limit:
            order = torch.randperm(samples, generator=generator) if self.shuffle else torch.arange(samples)
            for batch in self._epoch(order, least):
                yield batch
                done += 1
                if done == limit:
                    return

    def steps_per_epoch(self, samples: int, least: int = 1) -> int:
        full, rest = divmod(samples, self.batch_size)
        return full + (rest >= least if full else rest > 0)

    def samples_trained(self, samples: int) -> int:
        """Samples of all steps of one round of a client that has so many, up to a last batch that is not full."""
        return self.epochs * samples if self.steps is None else self.steps * min(self.batch_size, samples)

    def _epoch(self, order: Tensor, least: int) -> tuple[Tensor, ...]:
        return merge_short(order.split(self.batch_size), least)


def merge_short(batches: tuple[Tensor, ...], least: int) -> tuple[Tensor, ...]:
    """The same batches, where a last one of fewer than `least` samples joins the one before."""
    if len(batches) > 1 and len(batches[-1]) < least:
        return (*batches[:-2], torch.cat(batches[-2:]))
    return batches
