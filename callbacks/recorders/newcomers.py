"""Lets new clients join a trained federation, and records their accuracies."""

from __future__ import annotations

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_only

from app.federation.all_clients import Joining, LocalScore
from app.federation.hooks import FederatedCallback
from app.federation.module import FederatedModule
from app.results.run.fairness import JoinedClients, write_newcomers
from app.results.run.folder import RunFolder, cannot_write


class NewcomerRecorder(FederatedCallback):
    """When training is over, newcomers fit their private part with everything shared frozen (WAFFLe, section 2.2).

    It belongs before the run recorder, which collects the summary.

    Example::

        rampart fit --config waffle --model.newcomers.clients 2

    Args:
        folder: the run's folder, which exists; None to keep the result in memory only.
    """

    kind = "observer"
    vectorisable = True

    def __init__(self, folder: RunFolder | None = None) -> None:
        self._folder = folder
        self.joined: JoinedClients | None = None

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, FederatedModule)
        if trainer.interrupted or not trainer.current_epoch or not pl_module.client_pool.absent:
            return
        self.joined = _joined(pl_module, trainer.current_epoch - 1)
        if self._folder is not None and self.joined.clients:
            self._write(self._folder, self.joined)

    @rank_zero_only
    def _write(self, folder: RunFolder, joined: JoinedClients) -> None:
        try:
            write_newcomers(folder, joined)
        except OSError as error:
            raise cannot_write(folder.path, error) from error


def _joined(federation: FederatedModule, round_: int) -> JoinedClients:
    joining = Joining(federation, round_)
    scores: dict[str, tuple[LocalScore, ...]] = {"server": joining.scores("none")}
    if federation.personal:
        scores |= {"mean": joining.scores("mean"), "fitted": joining.fitted()}
    scores["fine_tuned"] = joining.fine_tuned()
    clients = tuple(local.client for local in scores["server"])
    return JoinedClients(
        clients,
        tuple(federation.data.groups[client] for client in clients),
        federation.newcomers.visits,
        {stage: tuple(local.score.accuracy for local in own) for stage, own in scores.items()},
    )
