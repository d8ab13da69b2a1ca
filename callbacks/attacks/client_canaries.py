"""Measured epsilon per client: canary clients whose updates are random directions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from app.attacks.canaries import random_directions
from app.common.errors import Problem
from app.common.ranges import Inside, Positive, Several
from app.common.seeding import derive_key, numpy_generator
from app.federation.channels.base import Update
from app.federation.channels.tapped import InsertingChannel
from app.federation.module import FederatedModule
from app.federation.plan import ClientPool, Plan
from app.federation.promises import statements
from app.privacy.traits import Trait
from callbacks.canary_audit import Adversary, CanaryAudit


class ClientCanaryAudit(CanaryAudit):
    """Measures epsilon per client by canary clients that upload random directions, inserted by fair coins, in one run.

    Gradient canaries for whole clients (Maddock et al. 2023; Andrew et al. 2024). Canary clients have no data. Each
    has a direction of its own, uniform on the sphere, takes part like the others by a coin of every round, and its
    update passes all defenses. Those who see the model of every round score it by how much of the direction the changes
    hold. Where every upload is noised by itself (NbAFL), the server sees the uploads of canary clients whose coins
    choose between a direction and its opposite, and the federation does not get them.

    Example::

        rampart fit --config dp-fedavg --attacks.canaries ClientCanaryAudit --attacks.canaries.count 1000

    Args:
        count: canary clients, 2 or more.
        strength: length of their updates, above 0, as a multiple of the clipping norm, or where nothing is clipped of
            the mean length of the clients' updates; above 1 so that clipping shows.
        delta: in (0, 1), at which epsilon is measured; without one, that of the claim, or 1e-5.
    """

    unit = "client"
    trait: Trait = "client-canaries"  # type: ignore[misc]

    def __init__(self, count: Several = 500, strength: Positive = 10.0, delta: Inside | None = None) -> None:
        super().__init__(count, None, delta)
        self.strength = strength
        self._lengths: list[float] = []
        self._coins: np.ndarray | None = None
        self._clip: float | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        assert isinstance(pl_module, FederatedModule)
        pl_module.prepare()
        self._coins = numpy_generator(pl_module.seed, "client canaries").random(self.count) < 0.5
        if not self.pairs(pl_module) and not isinstance(pl_module.channel, InsertingChannel):
            pl_module.channel = InsertingChannel(pl_module.channel, lambda: self._updates(pl_module))

    @property
    def inserted(self) -> np.ndarray:
        assert self._coins is not None
        return self._coins

    def sees(self, federation: FederatedModule) -> Adversary:
        return "server" if self.pairs(federation) else "outside"

    def on_round_start(self, trainer: Trainer, federation: FederatedModule, plan: Plan) -> None:
        """Where every upload is noised by itself: score the uploads of canary clients at once."""
        self._lengths = []
        clips = [one.clip for one in statements(federation) if one.unit != "sample" and math.isfinite(one.clip)]
        self._clip = max(clips, default=None)
        if not self.pairs(federation) or not trainer.is_global_zero:
            return
        taking_part = np.flatnonzero(self._taking_part(federation))
        scores = []
        for number, direction in self._directions(federation, taking_part):
            update = self._update(federation, number, direction if self.inserted[number] else -direction)
            trained = slice(update.trainable)
            scores.append(float((update.vector - update.received)[trained].double() @ direction))
        self.record_scores(taking_part, np.asarray(scores))

    def on_client_update(self, trainer: Trainer, federation: FederatedModule, update: Update) -> None:
        self._lengths.append(float((update.vector - update.received)[: update.trainable].norm()))

    def on_round_end(
        self,
        trainer: Trainer,
        federation: FederatedModule,
        metrics: Mapping[str, float],
        costs: Mapping[str, float],
    ) -> None:
        """Score all canary clients by the change of the model."""
        if not self.pairs(federation) and trainer.is_global_zero:
            index, trainable = self._coordinates(federation)
            moved = (federation.space.read(federation.net) - federation.theta)[index[:trainable]].double()
            everyone = np.arange(self.count)
            scores = [float(moved @ direction) for _, direction in self._directions(federation, everyone)]
            self.record_scores(everyone, np.asarray(scores))
        super().on_round_end(trainer, federation, metrics, costs)

    def _updates(self, federation: FederatedModule) -> Iterator[Update]:
        """Updates of the inserted canary clients that take part in the round, from the first process."""
        if federation.trainer.is_global_zero:
            present = np.flatnonzero(self.inserted & self._taking_part(federation))
            for number, direction in self._directions(federation, present):
                yield self._update(federation, number, direction)

    def _taking_part(self, federation: FederatedModule) -> np.ndarray:
        """(count) bool: a draw of the round like that of the other clients, and independent of it."""
        seed = derive_key(federation.seed, "canary participation")
        pool = ClientPool((1,) * self.count, (), federation.participation, seed, sampling=federation.sampling)
        present = np.zeros(self.count, dtype=bool)
        present[list(pool.participants(federation.plan.round))] = True
        return present

    def _directions(self, federation: FederatedModule, chosen: np.ndarray) -> Iterator[tuple[int, Tensor]]:
        """Numbers of some canary clients, and their directions over the parameters that clients upload."""
        _, trainable = self._coordinates(federation)
        wanted = set(chosen.tolist())
        for number, direction in enumerate(random_directions(trainable, self.count, federation.seed)):
            if number in wanted:
                yield number, direction.to(federation.theta.device)

    def _coordinates(self, federation: FederatedModule) -> tuple[Tensor, int]:
        """Coordinates that clients upload, and how many of them are parameters."""
        index = torch.arange(federation.space.size, device=federation.theta.device)
        index = index[federation.personal.shared(index)]
        return index, int((index < federation.space.trainable).sum())

    def _update(self, federation: FederatedModule, number: int, direction: Tensor) -> Update:
        """The update of a canary client after the defenses, which take it for one more client."""
        index, trainable = self._coordinates(federation)
        received = federation.theta[index]
        vector = received.clone()
        vector[:trainable] += self._length(federation) * direction.to(vector)
        client = len(federation.client_pool.sizes) + number
        about = {"samples": 1, "lr": federation.learning_rate, "loss": 0.0, "received_loss": math.nan}
        update = Update(client, federation.plan.round, index, vector, received, trainable, **about)  # type: ignore[arg-type]
        for callback in federation.hooks.callbacks:
            if callback.kind == "defense":
                callback.on_client_update(federation.trainer, federation, update)
        return update

    def _length(self, federation: FederatedModule) -> float:
        usual = sum(self._lengths) / len(self._lengths) if self._lengths else 1.0
        return self.strength * (usual if self._clip is None else self._clip)

    def problems(self, federation: FederatedModule) -> Iterator[Problem]:
        if federation.weighting == "samples":
            yield Problem(
                "canary clients where clients count by their samples",
                "they have none",
                "set --model.weighting uniform",
            )
