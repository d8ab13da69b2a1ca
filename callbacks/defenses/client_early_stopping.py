"""Early stopping of clients that train alone: each stops when its own model no longer improves (MaPP-FL's Local)."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, ClassVar, Literal

import torch
from lightning.pytorch import LightningModule, Trainer

from app.common.errors import Problem
from app.common.ranges import Count, NonNegative
from app.federation.client import ClientModule
from app.federation.evaluation import evaluates_by_batch, score, statistics_context
from app.federation.execution.distributed import gather
from app.federation.hooks import FederatedCallback, federated_callbacks, overriding
from app.federation.module import FederatedModule
from app.privacy.traits import Trait


class ClientEarlyStopping(FederatedCallback):
    """Ends the training of a client whose own model no longer improves; for clients that share nothing.

    After every round a client evaluates the model it has trained. After `patience` rounds in a row without a gain it
    takes no further step and keeps the model of that round, while the others go on. Nothing is restored. With one local
    epoch per round this is the Local baseline of MaPP-FL: at most 150 epochs with a patience of 5. It needs
    --model.personal '["*"]', and --data.holdout.reference or `validation: test`.

    Example::

        rampart fit --config local --data.holdout.reference 0.1 --defenses.stop ClientEarlyStopping

    Args:
        patience: a client stops after so many rounds in a row without a gain, at least 1.
        min_gain: a round gains if its loss lies more than this below the client's lowest so far, at least 0.
        validation: what a client evaluates its model on: its own reference set, or the common test set, as MaPP-FL's
            code does. The test set is then no longer unseen, and accuracies on it are optimistic.
    """

    unnoised: ClassVar = {"defense/clients_stopped": "number of clients whose validation loss stopped falling"}

    def __init__(
        self, patience: Count = 5, min_gain: NonNegative = 0.0, validation: Literal["reference", "test"] = "reference"
    ) -> None:
        self.patience, self.min_gain, self.validation = patience, min_gain, validation
        self._lowest: dict[int, float] = {}
        self._stalled: dict[int, int] = {}
        self._train_losses: dict[int, float] = {}
        self._measured: dict[int, float] = {}  # validation losses of this process's clients in the current round

    def traits(self) -> frozenset[Trait]:
        return frozenset({"trains-differently", "stops-early"})

    def problems(self, federation: FederatedModule) -> Iterable[Problem]:
        if not federation.personal.everything:
            yield Problem(
                "ClientEarlyStopping in a federation",
                "a client that has stopped would upload the server's own model and hold the others back",
                "let clients train alone with --config local, or end the whole run with LocalEarlyStopping",
            )
        others = overriding(federated_callbacks(federation.trainer), "on_client_start")
        if names := [type(other).__name__ for other in others if other is not self]:
            yield Problem(
                f"ClientEarlyStopping with {', '.join(names)}",
                "both decide which steps a client takes, and a client that has stopped might go on",
                "take one of them out",
            )
        if self.validation == "reference":
            yield from federation.data.membership.reference_problems(2 if evaluates_by_batch(federation.net) else 1)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.validation == "test" and trainer.is_global_zero:
            warnings.warn(
                "ClientEarlyStopping decides on the common test set, as MaPP-FL's code does: accuracies on that set "
                "are optimistic. Remedy: validation reference, with --data.holdout.reference.",
                stacklevel=2,
            )

    def stopped(self, client: int) -> bool:
        return self._stalled.get(client, 0) >= self.patience

    def on_client_start(self, trainer: Trainer, federation: FederatedModule, client: ClientModule) -> None:
        """A client that has stopped takes no step, and reports the training loss of its last one."""
        if self.stopped(client.client):
            loss = torch.tensor(self._train_losses[client.client], device=client.share.device)
            client.batches, client.take_step = islice(client.batches, 1), lambda batch: loss

    def on_client_end(self, trainer: Trainer, federation: FederatedModule, client: ClientModule) -> None:
        if self.stopped(client.client):
            return
        data, batch_size = federation.data, federation.evaluation.batch_size
        ids = data.common_test if self.validation == "test" else data.reference_indices(client.client)
        with statistics_context(client.net, data.store, data.train_indices(client.client), batch_size):
            self._measured[client.client] = score(client.net, data.store, ids, batch_size).mean_loss

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count the rounds without a gain, on all processes."""
        assert isinstance(pl_module, FederatedModule)
        for client, loss in sorted(item for part in gather(self._measured) for item in part.items()):
            gain = loss < self._lowest.get(client, float("inf")) - self.min_gain
            self._lowest[client] = loss if gain else self._lowest.get(client, float("inf"))
            self._stalled[client] = 0 if gain else self._stalled.get(client, 0) + 1
        self._measured = {}
        self._train_losses = {report.client: report.loss for report in pl_module.report.clients}

    def measurements(self) -> Mapping[str, float]:
        return {"defense/clients_stopped": float(sum(map(self.stopped, self._stalled)))}

    def state_dict(self) -> dict[str, Any]:
        return {"lowest": self._lowest, "stalled": self._stalled, "train_losses": self._train_losses}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._lowest, self._stalled = dict(state_dict["lowest"]), dict(state_dict["stalled"])
        self._train_losses = dict(state_dict["train_losses"])
