"""Defenses with a privacy budget: what they release is in their ledger before it leaves."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from lightning.pytorch import LightningModule, Trainer

from app.common.errors import UserError
from app.federation.execution.distributed import from_first
from app.federation.hooks import FederatedCallback, overriding
from app.privacy.accounting import Steps
from app.privacy.ledger import Ledger, Spend
from app.privacy.noise import NoiseSource

if TYPE_CHECKING:
    from app.federation.module import FederatedModule

KEPT_IN_CHECKPOINTS = (
    "the ledger is kept in checkpoints only: an attempt at a round that was interrupted before the next checkpoint is "
    "not counted, although its noise was another; a RunRecorder keeps every attempt"
)


class AccountedDefense(FederatedCallback):
    """A defense whose epsilon is composed of what its ledger says was released.

    Call `spend` before anything of a round leaves, and `settle` once it is known who has really released something.
    Recorders get every spend first (`on_spend`), and give it back when the run goes on after an interruption.

    Attributes:
        ledger: what was spent, over all rounds and attempts.
    """

    ledger: Ledger
    _source: NoiseSource
    _attempt = ""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._attempt = from_first(secrets.token_hex(8)) if self._source.secret else ""
        self.ledger.rewind(trainer.current_epoch)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn == "fit" and self.state_key not in checkpoint["callbacks"]:
            name = type(self).__name__
            raise UserError.of(
                f"the checkpoint says nothing of {name}: it is of a run without it, or of version 0.3 or earlier",
                "the privacy budget that its rounds have spent is not known",
                f"start afresh with {name}: --run.overwrite true, or another --run.name",
            )

    def spend(self, federation: FederatedModule, steps: Mapping[int, Steps]) -> None:
        """Enter what the current round will release at most; on all processes, with equal steps."""
        round_ = federation.plan.round
        self.ledger.enter(round_, self._attempt, steps)
        federation.hooks.call("on_spend", Spend(self.state_key, round_, self._attempt, steps))

    def settle(self, federation: FederatedModule, clients: Iterable[int]) -> None:
        """Take back the steps of clients that have released nothing in the current round."""
        entered = self.ledger.entered(federation.plan.round, self._attempt)
        present = set(clients)
        if not present >= set(entered):
            self.spend(federation, {client: steps for client, steps in entered.items() if client in present})

    def restore_spends(self, spends: Iterable[Spend]) -> None:
        for spend in spends:
            if spend.mechanism == self.state_key:
                self.ledger.enter(spend.round, spend.attempt, spend.steps)

    def ledger_notes(self, federation: FederatedModule) -> tuple[str, ...]:
        """Where secret noise and no recorder would leave attempts uncounted."""
        kept = overriding(federation.hooks.callbacks, "on_spend")
        return (KEPT_IN_CHECKPOINTS,) if self._source.secret and not kept else ()


def bounded_weight(federation: FederatedModule, client: int, max_samples: int | None) -> float:
    """Weight of a client, at most 1: 1, or its samples over `max_samples`, by default those of the largest client."""
    sizes = federation.client_pool.sizes
    if federation.weighting == "uniform":
        return 1.0
    return min(1.0, sizes[client] / (max_samples or max(sizes)))


def client_delta(federation: FederatedModule, delta: float | None) -> float:
    """Delta of clients: as set, or a tenth of one over their number, at most 1e-5."""
    return delta if delta is not None else min(1e-5, 0.1 / len(federation.client_pool.sizes))
