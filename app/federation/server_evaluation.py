"""Evaluation of the server's model on the common test set, shared out over processes and workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack

import torch
from torch import Tensor

from app.federation.evaluation import Score, evaluation_batches, score, score_batch, statistics_context
from app.federation.processes import gather
from app.models.base import ScalableNet
from datamodules.base import FederatedDataModule

Map = Callable[[Callable[[Tensor], Score], Iterable[Tensor]], Iterable[Score]]


class ServerEvaluation:
    """One evaluation after another of the server's network; the network itself changes in between."""

    def __init__(self, net: ScalableNet, data: FederatedDataModule, batch_size: int) -> None:
        """Evaluate a network.

        Args:
            net: the server's network.
            data: owner of the common test set.
            batch_size: samples per batch where the batch's own statistics matter.
        """
        self._net, self._data, self._batch_size = net, data, batch_size
        self._statistics = ExitStack()
        self.score = Score()

    def share(self, rank: int, ranks: int) -> list[Tensor]:
        """The batches (sample ids) that one of several processes evaluates; batches are never cut in two."""
        return list(evaluation_batches(self._net, self._data.common_test, self._batch_size)[rank::ranks])

    def start(self) -> None:
        """Begin at zero; gather post-hoc statistics over all clients' data where the network wants them."""
        self.score = Score()
        everyone = torch.cat([self._data.train_indices(client) for client in range(self._data.clients)])
        self._statistics.enter_context(statistics_context(self._net, self._data.store, everyone, self._batch_size))

    def add(self, batches: list[Tensor], each: Map, precision: Callable[[], AbstractContextManager[None]]) -> None:
        """Score batches.

        Args:
            batches: sample ids.
            each: maps a function over the batches, perhaps in parallel.
            precision: makes the context in which the network runs.
        """

        def score_one(indices: Tensor) -> Score:
            with precision():
                return score_batch(self._net, self._data.store, indices)

        self.score = sum(each(score_one, batches), self.score)

    def of_members(self, precision: Callable[[], AbstractContextManager[None]]) -> Score:
        """The present model on all training data: how far it is ahead of the test set is overfitting."""
        everyone = torch.cat([self._data.train_indices(client) for client in range(self._data.clients)])
        with precision(), statistics_context(self._net, self._data.store, everyone, self._batch_size):
            return score(self._net, self._data.store, everyone, self._batch_size)

    def finish(self) -> Score:
        """The score over all processes."""
        self._statistics.close()
        self.score = sum(gather(self.score), Score())
        return self.score
