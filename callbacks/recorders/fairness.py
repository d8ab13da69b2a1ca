"""Evaluates every client of the federation: mean and worst accuracy, also of clients that do not take part."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from app.federation.all_clients import AllClients, Choice, LocalScore
from app.federation.hooks import FederatedCallback
from app.federation.module import FederatedModule
from app.result import restored
from app.results.run.fairness import FINE_TUNED, OWN, ClientAccuracies, FairnessResult, unplanned


class FairnessRecorder(FederatedCallback):
    """Evaluates the model that every client would use now on the client's own test set, also of those not taking part.

    Example::

        Trainer(callbacks=[FairnessRecorder()])
    """

    kind = "recorder"
    vectorisable = True

    def __init__(self) -> None:
        self._last: ClientAccuracies | None = None
        self._history: list[dict[str, float]] = []
        self._complete = False
        self._fresh = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """In a resumed run that goes on, its former end becomes a round like others."""
        assert isinstance(pl_module, FederatedModule)
        kept = [
            {name: value for name, value in record.items() if not self.unplanned(pl_module, int(record["round"]), name)}
            for record in self._history
        ]
        self._history = [record for record in kept if len(record) > 1]

    def unplanned(self, federation: FederatedModule, round_: int, metric: str) -> bool:
        return unplanned(metric, federation.evaluation.all_clients_due(round_ - 1, federation.rounds))

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._fresh = False

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, FederatedModule)
        round_ = pl_module.plan.round
        stops = trainer.should_stop and round_ + 1 >= (trainer.min_epochs or 0)
        last = stops or round_ + 1 == pl_module.rounds
        if last or pl_module.evaluation.all_clients_due(round_, pl_module.rounds):
            self._measure(pl_module, round_ + 1, last)
            self._fresh = self._last is not None

    def measurements(self) -> Mapping[str, float]:
        return self._last.metrics() if self._fresh and self._last is not None else {}

    def results(self, federation: FederatedModule) -> Iterator[FairnessResult]:
        done = federation.trainer.current_epoch
        if done and (self._last is None or self._last.round != done or not self._complete):
            self._measure(federation, done, last=True)
        if done and self._last is not None:
            yield FairnessResult.of(self._last, self._history)

    def _measure(self, federation: FederatedModule, round_: int, last: bool) -> None:
        """Evaluate all clients, on all processes; nothing is kept where no client has a test set."""
        all_clients = AllClients(federation, round_ - 1)
        choices: tuple[Choice, ...] = all_clients.choices if last else ("own",)
        with federation.clock.phase("evaluate"):
            scores: dict[str, tuple[LocalScore, ...]] = {choice: all_clients.scores(choice) for choice in choices}
            if last and federation.evaluation.fine_tune:
                scores[FINE_TUNED] = all_clients.fine_tuned()
        self._last, self._complete = _accuracies(scores, federation.data.groups, round_), last
        if self._last is not None:
            earlier = [record for record in self._history if record["round"] < round_]
            self._history = [*earlier, {"round": float(round_), **self._last.metrics()}]

    def state_dict(self) -> dict[str, Any]:
        last = None if self._last is None else _plain(self._last)
        return {"last": last, "complete": self._complete, "history": self._history}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        last = state_dict["last"]
        self._last = None if last is None else restored(ClientAccuracies, last)
        self._complete = state_dict["complete"]
        self._history = state_dict.get("history", [])  # version 0.2.0 kept none


def _accuracies(
    scores: Mapping[str, tuple[LocalScore, ...]], groups: list[str], round_: int
) -> ClientAccuracies | None:
    """The scores as a table; None where no client has a test set of its own."""
    own = [local for local in scores[OWN] if local.score.total]
    if not own:
        return None
    clients = tuple(local.client for local in own)
    by_client = {whose: {local.client: local.score.accuracy for local in row} for whose, row in scores.items()}
    return ClientAccuracies(
        round=round_,
        clients=clients,
        groups=tuple(groups[client] for client in clients),
        samples=tuple(local.score.total for local in own),
        holders=tuple(local.own for local in own),
        accuracies={whose: tuple(row[client] for client in clients) for whose, row in by_client.items()},
    )


def _plain(accuracies: ClientAccuracies) -> dict[str, Any]:
    """Lists, numbers and strings only, which a checkpoint may hold."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(accuracies)))
    return plain
