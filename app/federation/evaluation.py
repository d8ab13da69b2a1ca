"""Accuracy and loss of a network on chosen samples, and of the server's model on the common test set."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from app.common.ranges import Count, Whole
from app.federation.execution.distributed import gather, precise
from app.federation.local_training import merge_short
from app.models.base import ScalableNet
from app.models.norms import posthoc_statistics, uses_batch_statistics
from datamodules.base import FederatedDataModule
from datamodules.store import ImageStore

LARGE_BATCH = 1024
"""Samples per batch where the result does not depend on it."""


@dataclass(frozen=True)
class Evaluation:
    """What is measured during the run, and how often.

    Attributes:
        every: evaluate the clients every so many rounds, and always in the last one; the server is evaluated as often
            as Lightning validates (--trainer.check_val_every_n_epoch).
        clients: evaluate the model every participant received and the one it trained, on the common test set and on
            its own.
        batch_size: samples per batch for networks that normalise by the statistics of the batch (the papers use 128);
            others are evaluated in larger batches, which does not change the result.
        limit: evaluate clients on at most so many samples of the common test set; the server always on all of them.
        everyone: every so many rounds, and always in the last one, evaluate all clients of the federation,
            participants or not, on their own test sets; 0 for the last round only.
        fine_tune: in the last round, also evaluate all clients after one more local training.
    """

    every: Count = 1
    clients: bool = True
    batch_size: Count = 128
    limit: Count | None = None
    everyone: Whole = 0
    fine_tune: bool = False

    def all_clients_due(self, round_: int, rounds: int) -> bool:
        """Whether all clients of the federation are evaluated after this (0-based) round."""
        return round_ + 1 == rounds or (self.everyone > 0 and (round_ + 1) % self.everyone == 0)

    def due(self, round_: int, rounds: int) -> bool:
        return self.clients and ((round_ + 1) % self.every == 0 or round_ + 1 == rounds)


@dataclass(frozen=True)
class Score:
    """Counts of one evaluation, which add up over parts."""

    correct: int = 0
    loss: float = 0.0  # sum of the cross-entropy over the samples
    total: int = 0

    def __add__(self, other: Score) -> Score:
        return Score(self.correct + other.correct, self.loss + other.loss, self.total + other.total)

    @property
    def accuracy(self) -> float:
        """Fraction correct, in [0, 1]; NaN without samples."""
        return self.correct / self.total if self.total else float("nan")

    @property
    def mean_loss(self) -> float:
        """Mean cross-entropy; NaN without samples."""
        return self.loss / self.total if self.total else float("nan")


def evaluates_by_batch(net: nn.Module) -> bool:
    """Whether the samples of an evaluation batch influence each other, because a batch norm keeps no statistics."""
    return any(isinstance(layer, nn.BatchNorm2d) and not layer.track_running_stats for layer in net.modules())


def evaluation_batches(net: nn.Module, indices: Tensor, batch_size: int) -> tuple[Tensor, ...]:
    """The sample ids cut into batches: `batch_size` where the batch's own statistics matter, larger elsewhere."""
    if evaluates_by_batch(net):
        return merge_short(indices.split(batch_size), least=2)
    return indices.split(max(batch_size, LARGE_BATCH))


class Counts(NamedTuple):
    """An evaluation whose numbers are still on the device, so that the host need not wait for them."""

    sums: Tensor  # (batches, 2) samples of a batch that are classified correctly, and the sum of their losses
    total: int  # samples


def score_batch(net: nn.Module, store: ImageStore, indices: Tensor) -> Score:
    """Score of a network, in the mode it is in, on one batch."""
    return scores_of([Counts(_sums(net, store, indices)[None], len(indices))])[0]


@torch.no_grad()
def _sums(net: nn.Module, store: ImageStore, indices: Tensor) -> Tensor:
    """(2,) samples of a batch that are classified correctly, and the sum of their losses."""
    images, labels = store.batch(indices, next(net.parameters()).dtype)
    logits = net(images)
    loss = cross_entropy(logits.to(precise(logits.device)), labels, reduction="sum")
    return torch.stack([(logits.argmax(1) == labels).sum().to(loss.dtype), loss])


def scores_of(evaluations: Sequence[Counts]) -> list[Score]:
    """The scores of evaluations, with one transfer from the device for all of them."""
    counted = [counts.sums for counts in evaluations if len(counts.sums)]
    batches = iter(torch.cat(counted).tolist() if counted else ())
    return [_score(list(islice(batches, len(counts.sums))), counts.total) for counts in evaluations]


def _score(batches: Sequence[Sequence[float]], total: int) -> Score:
    return Score(sum(int(correct) for correct, _ in batches), sum((loss for _, loss in batches), 0.0), total)


def score(net: nn.Module, store: ImageStore, indices: Tensor, batch_size: int) -> Score:
    """Score of a network in evaluation mode on the given samples, in their order."""
    return scores_of([evaluate(net, store, indices, batch_size)])[0]


def evaluate(net: nn.Module, store: ImageStore, indices: Tensor, batch_size: int) -> Counts:
    """What `score` computes, left on the device."""
    was_training = net.training
    net.eval()
    least = 2 if evaluates_by_batch(net) else 1  # one sample has no batch statistics
    batches = [batch for batch in evaluation_batches(net, indices, batch_size) if len(batch) >= least]
    sums = [_sums(net, store, batch) for batch in batches]
    net.train(was_training)
    return Counts(torch.stack(sums) if sums else nothing(store.device).sums, sum(map(len, batches)))


def nothing(device: torch.device) -> Counts:
    """The evaluation of no samples."""
    return Counts(torch.zeros(0, 2, dtype=precise(device), device=device), 0)


@torch.no_grad()
def score_each(net: nn.Module, store: ImageStore, parts: Sequence[Tensor], batch_size: int) -> list[Score]:
    """Scores of a network in evaluation mode on several sets of samples, in batches that run across the sets.

    Only for networks in which the samples of a batch do not influence each other.
    """
    was_training = net.training
    net.eval()
    measured = [_measured(net, store, batch) for batch in evaluation_batches(net, torch.cat(list(parts)), batch_size)]
    net.train(was_training)
    correct, losses = (torch.cat(column).cpu() for column in zip(*measured, strict=True))  # one transfer each
    sizes = [len(part) for part in parts]
    owners = torch.arange(len(parts)).repeat_interleave(torch.tensor(sizes))
    counts = torch.zeros(len(parts), dtype=torch.long).index_add_(0, owners, correct.long())
    totals = torch.zeros(len(parts), dtype=losses.dtype).index_add_(0, owners, losses)
    return [Score(*counted) for counted in zip(counts.tolist(), totals.tolist(), sizes, strict=True)]


def _measured(net: nn.Module, store: ImageStore, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Whether each sample is classified correctly (bool), and its loss."""
    images, labels = store.batch(indices, next(net.parameters()).dtype)
    logits = net(images)
    return logits.argmax(1) == labels, cross_entropy(logits.to(precise(logits.device)), labels, reduction="none")


def wants_posthoc(net: nn.Module) -> bool:
    """Whether a network is to be evaluated with statistics gathered after training."""
    return getattr(net, "hparams", {}).get("statistics") == "posthoc" and uses_batch_statistics(net)


def statistics_context(
    net: nn.Module, store: ImageStore, indices: Tensor, batch_size: int
) -> AbstractContextManager[None]:
    """Within it, a network built with `statistics: posthoc` normalises by the statistics of the given samples.

    This is HeteroFL's static batch norm; for other networks the context does nothing.
    """
    if not wants_posthoc(net):
        return nullcontext()
    dtype = next(net.parameters()).dtype
    return posthoc_statistics(
        net, (store.batch(batch, dtype)[0] for batch in merge_short(indices.split(batch_size), least=2))
    )


Map = Callable[[Callable[[Tensor], Score], Iterable[Tensor]], Iterable[Score]]


class ServerEvaluation:
    """Evaluates the server's network, whose values change between evaluations, on the common test set."""

    def __init__(self, net: ScalableNet, data: FederatedDataModule, batch_size: int) -> None:
        self._net, self._data, self._batch_size = net, data, batch_size
        self._statistics = ExitStack()
        self.score = Score()

    def share(self, rank: int, ranks: int) -> list[Tensor]:
        """The batches (sample ids) that one of several processes evaluates; batches are never split."""
        return list(evaluation_batches(self._net, self._data.common_test, self._batch_size)[rank::ranks])

    def start(self) -> None:
        """Reset the score; gather post-hoc statistics over all clients' data where the network needs them."""
        self.score = Score()
        context = statistics_context(self._net, self._data.store, self._members(), self._batch_size)
        self._statistics.enter_context(context)

    def add(self, batches: list[Tensor], each: Map, precision: Callable[[], AbstractContextManager[None]]) -> None:
        """Score batches of sample ids; `each` maps a function over them, perhaps in parallel."""

        def score_one(indices: Tensor) -> Score:
            with precision():
                return score_batch(self._net, self._data.store.rightly_labelled, indices)

        self.score = sum(each(score_one, batches), self.score)

    def of_members(self, precision: Callable[[], AbstractContextManager[None]]) -> Score:
        """Score on all training data; its lead over the test score measures overfitting."""
        members = self._members()
        with precision(), statistics_context(self._net, self._data.store, members, self._batch_size):
            return score(self._net, self._data.store, members, self._batch_size)

    def _members(self) -> Tensor:
        return torch.cat([torch.from_numpy(own) for own in self._data.membership.members])

    def finish(self) -> Score:
        self._statistics.close()
        self.score = sum(gather(self.score), Score())
        return self.score
