"""Progress of the federation: a bar on a terminal, one line per round elsewhere."""

from __future__ import annotations

import sys
import time
from datetime import timedelta

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from tqdm import tqdm

from app.common.wording import TRAINED, counted
from app.federation.channels.base import Message
from app.federation.hooks import FederatedCallback
from app.federation.module import FederatedModule
from app.metrics.fairness import Spread


class FederationProgress(ProgressBar, FederatedCallback):
    """Shows the round, the clients done, the accuracies and the time left.

    Example::

        Trainer(callbacks=[FederationProgress()])
    """

    kind = "recorder"
    vectorisable = True

    def __init__(self) -> None:
        super().__init__()
        self._enabled = True
        self._bar: tqdm | None = None
        self._started = 0.0
        self._first = 0
        self._accuracy = ""

    def disable(self) -> None:
        self._enabled = False

    def enable(self) -> None:
        self._enabled = True

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, FederatedModule)
        self._started, self._first = time.monotonic(), trainer.current_epoch
        if self._enabled:
            print(_header(pl_module), flush=True)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, FederatedModule)
        # made only now, so that it stays below what others print before training
        if self._bar is None and self._enabled and sys.stderr.isatty():
            layout = "{n:.0f}/{total:.0f} rounds {bar:24} {desc}"
            self._bar = tqdm(total=pl_module.rounds, initial=self._first, bar_format=layout, dynamic_ncols=True)

    def on_message(self, trainer: Trainer, federation: FederatedModule, message: Message) -> None:
        if self._bar is not None:
            clients = len(federation.plan.participants)
            # the client whose message this is has not been reported yet
            self._show(federation, f"clients {min(federation.clients_done + 1, clients)}/{clients}")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, FederatedModule)
        self._accuracy = _accuracies(pl_module)
        if self._bar is not None:
            self._bar.update()
            self._show(pl_module, "")
        elif self._enabled:
            print(round_line(pl_module, self._left(trainer, pl_module)), flush=True)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _show(self, federation: FederatedModule, clients: str) -> None:
        assert self._bar is not None
        left = f"{self._left(federation.trainer, federation)} left"
        self._bar.set_description_str("  ".join(part for part in (clients, self._accuracy, left) if part))

    def _left(self, trainer: Trainer, federation: FederatedModule) -> str:
        return time_left(federation, self._started, self._first)


def round_line(federation: FederatedModule, left: str) -> str:
    """A round that has just ended, in one line: clients, accuracies, its seconds, and the time left."""
    report = federation.report
    clients = counted(len(report.clients), "client")
    return (
        f"round {report.round}/{federation.rounds}  {clients}  {_accuracies(federation)}  "
        f"{report.seconds['total']:.1f} s  {left} left"
    )


def time_left(federation: FederatedModule, started: float, first: int) -> str:
    """Time left at the pace since round `first` began, counting the part of the current round that is done."""
    part = federation.clients_done / max(1, len(federation.plan.participants))
    done = federation.trainer.current_epoch - first + part
    if not done:
        return "?"
    seconds = (time.monotonic() - started) / done * (federation.rounds - first - done)
    return str(timedelta(seconds=max(0, round(seconds))))


def _header(federation: FederatedModule) -> str:
    data, sizes = federation.data, federation.client_pool.sizes
    widths = " and ".join(f"{rate:g}" for rate in federation.widths)
    return (
        f"{type(data).__name__}: {counted(data.clients, 'client')} with {min(sizes)} to {max(sizes)} training samples, "
        f"{len(data.common_test)} common test samples\n"
        f"{type(federation.net).__name__}: {federation.space.trainable:,} parameters, widths {widths}, "
        f"clients trained by {federation.executor_name}"
    )


def _accuracies(federation: FederatedModule) -> str:
    report = federation.report
    own, where = Spread.of(client.trained_own for client in report.clients), ""
    if own.mean != own.mean:  # clients have no test sets of their own
        own, where = Spread.of(client.trained_common for client in report.clients), " on the common test set"
    parts = []
    if report.server.total:
        parts.append(f"server {report.server.accuracy:.1%}")
    if own.mean == own.mean:
        parts.append(f"{TRAINED}{where} {own.mean:.1%} (worst {own.worst:.1%})")
    if dropped := sum(client.dropped for client in report.clients):
        parts.append(f"{dropped} dropped")
    return "  ".join(parts)
