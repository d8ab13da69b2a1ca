"""Early stopping as a defense: the run ends when the loss on the clients' reference sets stops falling."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_only
from tqdm import tqdm

from app.common.dealing import deal
from app.common.errors import Problem
from app.common.ranges import Count, NonNegative
from app.federation.evaluation import Score, evaluates_by_batch, score
from app.federation.execution.distributed import autocast_of, gather
from app.federation.hooks import FederatedCallback, Knob
from app.federation.module import FederatedModule
from app.privacy.traits import Trait


class LocalEarlyStopping(FederatedCallback):
    """Ends the run when the server's model no longer improves on the clients' reference sets.

    After every round all clients evaluate the server's model on their reference sets, and the mean loss over all these
    samples is compared with the lowest so far. Clients that train a narrow part must be able to run the whole model for
    that. Nothing is restored: the model of the last round is the one released. It limits overfitting and gives no
    formal
    guarantee: one loss per client and round leaves the clients, and the round in which the run ends depends on their
    data. It needs --data.holdout.reference.

    Example::

        rampart fit --data.holdout.reference 0.2 --defenses.stop LocalEarlyStopping --defenses.stop.patience 3

    Args:
        patience: the run ends after so many rounds in a row without a gain, at least 1.
        min_gain: a round gains if its loss lies more than this below the lowest so far, at least 0.
    """

    knob = Knob("patience", (5, 3, 1))
    may_stop = True
    unnoised: ClassVar = {"defense/reference_loss": "loss of the server's model on the clients' reference sets"}

    def __init__(self, patience: Count = 3, min_gain: NonNegative = 0.0) -> None:
        self.patience, self.min_gain = patience, min_gain
        self._lowest, self._loss = float("inf"), float("nan")
        self._stalled = 0

    def traits(self) -> frozenset[Trait]:
        return frozenset({"trains-differently", "stops-early"})

    def problems(self, federation: FederatedModule) -> Iterable[Problem]:
        if federation.personal_patterns:
            yield Problem(
                "LocalEarlyStopping with model.personal",
                "the server's model has parts that are never trained, so its loss does not tell when to stop",
                "fix the number of rounds with --trainer.max_epochs",
            )
        yield from federation.data.membership.reference_problems(2 if evaluates_by_batch(federation.net) else 1)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._stop(trainer, trainer.current_epoch)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, FederatedModule)
        self._loss = _reference_loss(pl_module)
        if self._loss < self._lowest - self.min_gain:
            self._lowest, self._stalled = self._loss, 0
        else:
            self._stalled += 1
        self._stop(trainer, trainer.current_epoch + 1)

    def _stop(self, trainer: Trainer, rounds: int) -> None:
        if self._stalled >= self.patience and rounds >= (trainer.min_epochs or 0):
            trainer.should_stop = True
            if rounds != trainer.max_epochs:
                rank_zero_only(tqdm.write)(
                    f"stopped early after round {rounds}: the loss on the clients' reference sets is {self._loss:.4f}; "
                    f"it was lowest after round {rounds - self._stalled}, {self._lowest:.4f}"
                )

    def measurements(self) -> Mapping[str, float]:
        return {"defense/reference_loss": self._loss}

    def state_dict(self) -> dict[str, Any]:
        return {"lowest": self._lowest, "loss": self._loss, "stalled": self._stalled}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._lowest, self._loss = state_dict["lowest"], state_dict["loss"]
        self._stalled = state_dict["stalled"]


def _reference_loss(federation: FederatedModule) -> float:
    """Mean cross-entropy of the server's model over all reference samples; each process evaluates some clients."""
    data, batch_size = federation.data, federation.evaluation.batch_size
    own: dict[int, Score] = {}
    sizes = [len(data.reference_indices(client)) for client in range(data.clients)]
    with autocast_of(federation.trainer)():
        for client in deal(sizes, federation.trainer.world_size)[federation.global_rank]:
            own[client] = score(federation.net, data.store, data.reference_indices(client), batch_size)
    scores = {client: result for part in gather(own) for client, result in part.items()}
    return sum((scores[client] for client in sorted(scores)), Score()).mean_loss
