"""Federated shadow models: the attacked federation, repeated with other members."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import SingleDeviceStrategy

from app.attacks.models import Ids
from app.attacks.shadows.federated import Repetition
from app.common.described import described
from app.common.errors import UserError
from app.common.progress import track
from app.common.seeding import derive_key, numpy_generator
from app.common.wording import counted
from app.federation.evaluation import Evaluation
from app.federation.execution.distributed import alone
from app.federation.hooks import FederatedCallback, federated_callbacks
from app.federation.module import FederatedModule
from app.federation.transcript import TranscriptSettings
from app.federation.transcript_recorder import TranscriptRecorder
from datamodules.split import Membership


class ShadowFederations:
    """Builds an attacked federation anew, defenses included, and trains it on other members.

    Shadow federations have the public plan and the data sizes of the attacked one; initial values, batches, noise and
    members are their own.
    """

    def __init__(self, attacked: FederatedModule) -> None:
        """Take the attacked federation, with its data and its trainer."""
        self._attacked = attacked

    @cached_property
    def fingerprint(self) -> str:
        """Equal for federations with equal settings."""
        attacked = self._attacked
        model = attacked.configuration or described(attacked)
        settings = [model, described([attacked.data, *self._defenses()]), attacked.trainer.precision]
        text = json.dumps(settings, sort_keys=True, default=str)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def run(self, repetitions: Sequence[Repetition]) -> None:
        """Train shadow federations, on all processes of the attacked run; each is marked as soon as it is finished."""
        helpers = self._attacked.helpers
        if helpers.available and len(repetitions) > 1:
            helpers.share(train_repetitions, repetitions, [1.0] * len(repetitions))
        else:
            train_repetitions(self._attacked, repetitions)

    def train(self, repetition: Repetition) -> None:
        """Train one shadow federation on this process; its transcript is kept in its folder."""
        from app.run import Run  # which adds attacks to runs

        attacked, rounds = self._attacked, repetition.rounds
        federation, data = attacked.fresh(), attacked.data.fresh()
        federation.seed = derive_key(attacked.seed, "shadow-federation", repetition.number)
        data.redealt(attacked.data, _membership(attacked.data.membership, repetition.members, federation.seed))
        federation.evaluation = Evaluation(clients=False)
        if attacked.trainer.world_size > 1:
            federation.workers = attacked.worker_count  # other processes use the other cores
        keeper = TranscriptRecorder(repetition.folder, TranscriptSettings(last=0, rounds=list(rounds)), announce=False)
        defenses = [defense.fresh() for defense in self._defenses()]
        recorders = [_SamePlan(attacked), keeper]
        with alone(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            Run(federation, data, defenses, recorders=recorders, trainer=self._options(rounds[-1])).fit()
        repetition.finish()

    def _defenses(self) -> list[FederatedCallback]:
        """Defenses of the attacked run but for channels.

        A channel changes what is seen on the way, not what is learnt beyond its rounding, and takes its time.
        """
        callbacks = federated_callbacks(self._attacked.trainer)
        return [one for one in callbacks if one.kind == "defense" and "channel" not in one.traits()]

    def _options(self, rounds: int) -> dict[str, Any]:
        attacked = self._attacked
        return {
            "max_epochs": rounds,
            "min_epochs": rounds,  # a shadow goes on as long as the attacked run did, which is public
            "accelerator": attacked.device.type,
            "strategy": SingleDeviceStrategy(device=attacked.device),
            "devices": 1,
            "precision": attacked.trainer.precision,
            "enable_progress_bar": False,
            "limit_val_batches": 0,
        }


def train_repetitions(attacked: FederatedModule, repetitions: Sequence[Repetition]) -> list[None]:
    """Train shadow federations of an attacked one, one after the other on this process."""
    shadows = ShadowFederations(attacked)
    for repetition in track(repetitions, "shadow federations", delay=0):
        shadows.train(repetition)
    return [None for _ in repetitions]


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
            f"the attacker has {counted(len(order), 'population sample')} for {counted(len(wanted), 'client')} with "
            "reference sets",
            "a shadow federation could not repeat a defense that needs reference samples of every client",
            "raise --data.holdout.population and train again, or use --attacks.membership.shadows.mode central",
        )
    return tuple(np.sort(part[:size]) for part, size in zip(parts, wanted, strict=True))
