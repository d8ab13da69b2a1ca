"""Federated shadow models: the federation of a command, repeated with other members."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import SingleDeviceStrategy

from app.attacks.models import Ids
from app.errors import UserError
from app.federation.evaluation import Evaluation
from app.federation.execution.distributed import alone
from app.federation.module import FederatedModule
from app.federation.transcript import TranscriptSettings
from app.seeding import derive_key, numpy_generator
from callbacks.recorders.transcript_recorder import TranscriptRecorder
from datamodules.split import Membership

if TYPE_CHECKING:
    from app.commands.fit import FitCommand


class ShadowFederations:
    """Builds the federation anew from its configuration, defenses included, and trains it on other members.

    Shadow federations have the public plan and the data sizes of the attacked one; initial values, batches, noise and
    members are their own.
    """

    def __init__(self, command: FitCommand) -> None:
        """Take the command whose federation is attacked, with its federation built."""
        self._command = command
        settings = {key: command.plain_config.get(key) for key in ("model", "data", "defenses", "defense_order")}
        settings["precision"] = (command.plain_config.get("trainer") or {}).get("precision")
        text = json.dumps(settings, sort_keys=True, default=str)
        self.fingerprint = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def run(self, number: int, members: Sequence[Ids], rounds: tuple[int, ...], folder: Path) -> None:
        """Train one shadow federation; its transcript of the given rounds is kept in the folder."""
        attacked: FederatedModule = self._command.model
        federation, data, defenses = self._command.rebuilt()
        federation.seed = derive_key(attacked.seed, "shadow-federation", number)
        data.redealt(attacked.data, _membership(attacked.data.membership, members, federation.seed))
        federation.evaluation = Evaluation(clients=False)
        # a channel changes what is seen on the way, not what is learnt beyond its rounding, and takes its time
        defenses = [defense for defense in defenses if "channel" not in defense.traits()]
        keeper = TranscriptRecorder(folder, TranscriptSettings(last=0, rounds=list(rounds)), announce=False)
        trainer = self._trainer(attacked, rounds[-1], [*defenses, _SamePlan(attacked), keeper])
        with alone(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer.fit(federation, datamodule=data)

    def _trainer(self, attacked: FederatedModule, rounds: int, callbacks: list[Callback]) -> Trainer:
        quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        return Trainer(
            **quiet,
            max_epochs=rounds,
            min_epochs=rounds,  # everybody knows how long the attacked run went on, so a shadow does not stop earlier
            accelerator=attacked.device.type,
            strategy=SingleDeviceStrategy(device=attacked.device),
            devices=1,
            precision=attacked.trainer.precision,
            callbacks=callbacks,
            enable_checkpointing=False,
            num_sanity_val_steps=0,
            limit_val_batches=0,
            use_distributed_sampler=False,
        )


class _SamePlan(Callback):
    """Gives a shadow federation the clients and the plan of the attacked one; only the sizes are its own."""

    def __init__(self, attacked: FederatedModule) -> None:
        self._client_pool = attacked.client_pool

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        assert isinstance(pl_module, FederatedModule)
        pl_module.prepare()
        pl_module.client_pool = replace(self._client_pool, sizes=tuple(pl_module.data.sizes))


def _membership(attacked: Membership, members: Sequence[Ids], seed: int) -> Membership:
    """Sets of a shadow federation; of the attacked one it shares the common test set only."""
    empty = np.empty(0, dtype=np.int64)
    reference = _reference_sets(attacked, seed)
    return Membership(tuple(members), tuple(empty for _ in members), empty, empty, attacked.test, reference)


def _reference_sets(attacked: Membership, seed: int) -> tuple[Ids, ...]:
    """Reference sets of a shadow federation's clients, where those of the attacked one have any.

    The attacker does not own theirs, and shadow clients must not give up members, whom attacks count as such: so the
    population data are dealt out in equal parts, to each client at most as many samples as the attacked one keeps. They
    remain non-members of the shadow, whose network is not fitted to reference samples.
    """
    if not attacked.reference:
        return ()
    wanted = [len(own) for own in attacked.reference]
    order = numpy_generator(seed, "shadow-reference").permutation(attacked.population)
    parts = np.array_split(order, len(wanted))
    if any(size and not len(part) for size, part in zip(wanted, parts, strict=True)):
        raise UserError.of(
            f"the attacker has {len(order)} population samples for {len(wanted)} clients with reference sets",
            "a shadow federation could not repeat a defense that needs reference samples of every client",
            "raise --data.holdout.population and train again, or use --attacks.membership.shadows.mode central",
        )
    return tuple(np.sort(part[:size]) for part, size in zip(parts, wanted, strict=True))
