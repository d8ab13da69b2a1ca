"""Measured epsilon per sample: labelled canary images among the clients' training data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Literal

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from app.attacks.canaries import (
    CanaryImages,
    SampleCanaries,
    clipped_rows,
    clipped_sum,
    decoded,
    sample_gradients,
    sample_losses,
)
from app.common.errors import Problem, UserError
from app.common.ranges import Inside, Several
from app.common.wording import counted
from app.federation.channels.base import Message
from app.federation.checks.federation import stack_traits
from app.federation.module import FederatedModule
from app.federation.parameters import WidthNets
from app.federation.promises import statements
from app.models.norms import uses_batch_statistics
from app.privacy.traits import Trait
from callbacks.canary_audit import Adversary, CanaryAudit


class SampleCanaryAudit(CanaryAudit):
    """Measures epsilon per sample by canary images in the clients' data, inserted by fair coins, in one run.

    One-run audit of Steinke, Nasr and Jagielski (2023). Every client has its own canaries; they belong to no test or
    audit set. The adversary knows all samples and models, and scores each canary: by how much of its gradient the
    change of the model holds (`gradient`, summed over the rounds), or by its loss (`loss`).

    Example::

        rampart fit --config dp-sgd --attacks.canaries SampleCanaryAudit --attacks.canaries.count 1000

    Args:
        count: canaries of all clients together, 2 or more. More of them measure more of epsilon: a thousand right
            guesses show 5.8.
        score: `gradient` is stronger where clients take few steps per round, `loss` needs the models alone.
        images: independent random pixels (`noise`), or images of the population set (`mislabelled`); both with labels
            drawn at random.
        adversary: who measures: the `server`, which sees every upload, or those `outside`, who see the model of every
            round; without a choice the one against whom the claim is made.
        delta: in (0, 1), at which epsilon is measured; without one, that of the claim, or 1e-5.
    """

    unit = "sample"
    trait: Trait = "sample-canaries"  # type: ignore[misc]

    def __init__(
        self,
        count: Several = 500,
        score: Literal["gradient", "loss"] = "gradient",
        images: CanaryImages = "noise",
        adversary: Adversary | None = None,
        delta: Inside | None = None,
    ) -> None:
        super().__init__(count, adversary, delta)
        self.score, self.images = score, images
        self._canaries: SampleCanaries | None = None

    def on_data(self, federation: FederatedModule) -> None:
        if self.images == "mislabelled" and not len(federation.data.membership.population):
            raise UserError.of(
                "mislabelled canaries, and the data have no population set",
                "there are no images that no client owns",
                "set --data.holdout.population 0.1, or --attacks.NAME.images noise",
            )
        drawn = (self.count, self.images, self.pairs(federation), federation.seed)
        self._canaries = SampleCanaries.drawn(federation.data, *drawn)
        self._canaries.insert_into(federation.data)

    @property
    def canaries(self) -> SampleCanaries:
        assert self._canaries is not None
        return self._canaries

    @property
    def inserted(self) -> np.ndarray:
        return self.canaries.inserted

    @property
    def groups(self) -> np.ndarray:
        return self.canaries.clients

    def sees(self, federation: FederatedModule) -> Adversary:
        if self.adversary is not None:
            return self.adversary
        hidden = federation.channel.form in ("masked", "ciphertext")
        return "outside" if hidden or "client-dp" in stack_traits(federation) else "server"

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, FederatedModule)
        store = self.canaries.store_like(pl_module.data.store)
        everything = torch.arange(len(store)).to(store.device)
        self._images = store.batch(everything, pl_module.space.read(pl_module.net).dtype)[0]
        self._labels = self.canaries.labels.to(store.device)
        self._nets = WidthNets(pl_module.net)
        self._clip = min((one.clip for one in statements(pl_module) if one.unit == "sample"), default=math.inf)

    def on_message(self, trainer: Trainer, federation: FederatedModule, message: Message) -> None:
        if self.sees(federation) == "server" and message.payload is not None:
            index = federation.plan.index(message.client)
            self._score(federation, message.client, index, message.index, message.payload)

    def on_round_end(
        self,
        trainer: Trainer,
        federation: FederatedModule,
        metrics: Mapping[str, float],
        costs: Mapping[str, float],
    ) -> None:
        if self.sees(federation) == "outside" and trainer.is_global_zero:
            model = federation.space.read(federation.net)
            for client in federation.plan.participants:
                index = federation.plan.index(client)
                self._score(federation, client, index, index, model[index])
        super().on_round_end(trainer, federation, metrics, costs)

    def _score(
        self, federation: FederatedModule, client: int, index: Tensor, coordinates: Tensor, values: Tensor
    ) -> None:
        """Score a client's canaries by new values at some coordinates of its submodel, which are `index`."""
        own = np.flatnonzero(self.canaries.clients == client)
        if not len(own):
            return
        before = federation.theta[index]
        positions = torch.searchsorted(index, coordinates)
        after = before.clone()
        after[positions] = values.to(after)
        rows = torch.from_numpy(own)
        if self.score == "loss":
            scores = self._loss_scores(federation.plan.rate(client), after, rows)
        else:
            trained = positions[coordinates < federation.space.trainable]
            directions, known = (part[:, trained] for part in self._directions(federation, client, before, rows))
            scores = decoded((before - after)[trained], directions, known)
        self.record_scores(own, scores.double().cpu().numpy())

    def _loss_scores(self, rate: float, model: Tensor, rows: Tensor) -> Tensor:
        """Minus the loss, or by how much the loss with the second label exceeds that with the first."""
        net, flat = self._nets.of(rate)
        flat.write(model)
        net.eval()
        first, *second = (sample_losses(net, self._images[rows], labels) for labels in self._labels_of(rows))
        return (second[0] if second else 0) - first

    def _directions(
        self, federation: FederatedModule, client: int, model: Tensor, rows: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Gradients of canaries as they enter a step (of pairs, how the two differ), and what else enters it.

        The adversary of differential privacy knows everything but the coins, so also the client's members.
        """
        net, flat = self._nets.of(federation.plan.rate(client))
        flat.write(model)
        net.eval()
        gradients = (sample_gradients(net, self._images[rows], labels) for labels in self._labels_of(rows))
        found = [clipped_rows(one, self._clip) for one in gradients]
        members = torch.from_numpy(federation.data.membership.members[client])
        others = clipped_sum(net, *federation.data.store.batch(members, model.dtype), self._clip)
        known = torch.stack([others, sum(found[1:], found[0]).sum(dim=0)])
        return (found[0] - found[1] if len(found) > 1 else found[0]), known

    def _labels_of(self, rows: Tensor) -> list[Tensor]:
        labels = self._labels[rows.to(self._labels.device)]
        return list(labels.unbind(1)) if self.canaries.pairs else [labels]

    def notes(self, federation: FederatedModule) -> Iterator[str]:
        yield from super().notes(federation)
        if not self.canaries.pairs:
            yield "how many canaries a client was given shows in its number of samples, which scores do not use"

    def nothing_seen(self, federation: FederatedModule) -> str:
        if self.sees(federation) == "server" and federation.channel.form in ("masked", "ciphertext"):
            return f"the server sees no single upload, only {federation.channel.form} values"
        return super().nothing_seen(federation)

    def problems(self, federation: FederatedModule) -> Iterator[Problem]:
        if self.score == "gradient" and uses_batch_statistics(federation.net):
            yield Problem(
                "canaries scored by gradients of single samples, with a network that has batch norm",
                "a sample has no gradient of its own there",
                "set --attacks.NAME.score loss, or --model.net.norm group",
            )
        if self.count < 2 * federation.data.clients:
            yield Problem(
                f"{self.count} canaries for {counted(federation.data.clients, 'client')}",
                "most clients would have none or one, so that nothing is measured of them",
                f"set --attacks.NAME.count to {20 * federation.data.clients} or more",
            )
