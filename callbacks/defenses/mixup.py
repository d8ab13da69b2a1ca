"""Mixup as a defense: clients train on blends of two samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Self

import numpy as np
import torch
from lightning.pytorch import Trainer
from torch import Tensor

from app.common.errors import UserError
from app.common.ranges import NonNegative
from app.common.seeding import numpy_generator
from app.federation.client import Batch, ClientModule
from app.federation.hooks import FederatedCallback, Knob
from app.federation.module import FederatedModule
from app.privacy.traits import Trait


class MixedBatch(tuple[Tensor, Tensor]):
    """Blended images with the first labels, which also knows the second labels.

    Attributes:
        others: (batch) labels of the samples that were blended in.
        share: fraction of the first samples in the images, in [0, 1].
    """

    others: Tensor
    share: float

    def __new__(cls, images: Tensor, labels: Tensor, others: Tensor, share: float) -> Self:
        batch = super().__new__(cls, (images, labels))
        batch.others, batch.share = others, share
        return batch


class Mixup(FederatedCallback):
    """Trains on blends of two samples and of their labels, so that single samples are memorised less.

    Each batch is blended with a random permutation of itself: x = s x_i + (1 - s) x_j with s from Beta(alpha, alpha),
    one s for the whole batch, and the loss is blended alike (Zhang et al. 2018, section 2). Terms of other defenses
    stay as they are. It gives no formal guarantee against any attack.

    Example::

        rampart fit --defenses.mixup Mixup --defenses.mixup.alpha 0.4

    Args:
        alpha: both parameters of the Beta distribution, at least 0: 0 is no defense, 1 draws s uniformly, and the
            larger alpha, the nearer s is to one half.
    """

    knob = Knob("alpha", (0.1, 0.4, 1.0))

    def __init__(self, alpha: NonNegative = 1.0) -> None:
        self.alpha = alpha
        self.vectorisable = alpha == 0

    def traits(self) -> frozenset[Trait]:
        return frozenset({"trains-differently", "mixes-samples"}) if self.alpha > 0 else frozenset()

    def on_client_start(self, trainer: Trainer, federation: FederatedModule, client: ClientModule) -> None:
        if self.alpha > 0:
            draws = numpy_generator(federation.seed, "mixup", client.round, client.client)
            client.batches = self._mixed(client.batches, draws)

    def client_loss(
        self, federation: FederatedModule, client: ClientModule, batch: Batch, logits: Tensor, loss: Tensor
    ) -> Tensor:
        if self.alpha == 0:
            return loss
        if not isinstance(batch, MixedBatch):
            raise UserError.of(
                "another defense has replaced the batches that Mixup has blended",
                "their second labels are lost",
                "let Mixup act later (--defense_order), or leave one of the two out",
            )
        first, second = client.label_loss(logits, batch[1]), client.label_loss(logits, batch.others)
        return loss + (1 - batch.share) * (second - first)

    def _mixed(self, batches: Iterable[Batch], draws: np.random.Generator) -> Iterator[MixedBatch]:
        for images, labels in batches:
            share = float(draws.beta(self.alpha, self.alpha))
            order = torch.from_numpy(draws.permutation(len(labels))).to(labels.device)
            blended = share * images + (1 - share) * images[order]
            yield MixedBatch(blended, labels, labels[order], share)
