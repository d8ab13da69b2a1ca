"""Evaluates every client of the federation: mean and worst accuracy, also of clients that do not take part."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_only

from app.federation.all_clients import AllClients, Choice, LocalScore
from app.federation.hooks import FederatedCallback
from app.federation.module import FederatedModule
from app.files import write_figure
from app.results.run.fairness import FINE_TUNED, OWN, ClientAccuracies, forget_unplanned, write_fairness
from app.results.run.figures import draw_fairness
from app.results.run.files import restored
from app.results.run.folder import RunFolder, cannot_write


class FairnessRecorder(FederatedCallback):
    """Evaluates the model that every client would use now on the client's own test set, also of those not taking part.

    It belongs before the run recorder, which collects its measurements, and before the transcript recorder, whose
    attacks keep the first process busy while the others would wait.

    Example::

        Trainer(callbacks=[FairnessRecorder(), RunRecorder(folder)])

    Args:
        folder: the run's folder, which exists; None to measure only.
    """

    kind = "observer"
    vectorisable = True

    def __init__(self, folder: RunFolder | None = None) -> None:
        self._folder = folder
        self._last: ClientAccuracies | None = None
        self._complete = False
        self._fresh, self._tidy = False, False

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, FederatedModule)
        self._fresh = False
        # in the first round of a resumed run, its former end becomes a round like others
        if self._folder is not None and trainer.current_epoch and not self._tidy:
            rounds, due = pl_module.rounds, pl_module.evaluation.all_clients_due
            planned = [round_ + 1 for round_ in range(trainer.current_epoch) if due(round_, rounds)]
            try:
                rank_zero_only(forget_unplanned)(self._folder, planned)
            except OSError as error:
                raise cannot_write(self._folder.path, error) from error
        self._tidy = True

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

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, FederatedModule)
        done = trainer.current_epoch
        if trainer.interrupted or not done:
            return
        if self._last is None or self._last.round != done or not self._complete:
            self._measure(pl_module, done, last=True)
        if self._folder is not None and self._last is not None:
            self._write(self._folder, self._last)

    @rank_zero_only
    def _write(self, folder: RunFolder, accuracies: ClientAccuracies) -> None:
        records = folder.read_lines("metrics.jsonl")
        try:
            write_fairness(folder, accuracies, records)
            write_figure(folder.path / "fairness.png", draw_fairness(accuracies, records, folder.name))
        except OSError as error:
            raise cannot_write(folder.path, error) from error

    def _measure(self, federation: FederatedModule, round_: int, last: bool) -> None:
        """Evaluate all clients, on all processes; nothing is kept where no client has a test set."""
        all_clients = AllClients(federation, round_ - 1)
        choices: tuple[Choice, ...] = all_clients.choices if last else ("own",)
        with federation.clock.phase("evaluate"):
            scores: dict[str, tuple[LocalScore, ...]] = {choice: all_clients.scores(choice) for choice in choices}
            if last and federation.evaluation.fine_tune:
                scores[FINE_TUNED] = all_clients.fine_tuned()
        self._last, self._complete = _accuracies(scores, federation.data.groups, round_), last

    def state_dict(self) -> dict[str, Any]:
        return {"last": None if self._last is None else _plain(self._last), "complete": self._complete}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        last = state_dict["last"]
        self._last = None if last is None else restored(ClientAccuracies, last)
        self._complete = state_dict["complete"]


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
