"""Label smoothing as a defense against overconfident predictions."""

from __future__ import annotations

from torch import Tensor

from app.common.ranges import Fraction
from app.federation.client import Batch, ClientModule
from app.federation.hooks import FederatedCallback, Knob
from app.federation.module import FederatedModule
from app.privacy.traits import Trait


class LabelSmoothing(FederatedCallback):
    """Trains on labels that give a fraction of their weight to all classes, so that networks are less confident.

    The target of the true class is 1 - smoothing + smoothing/C and that of every other class smoothing/C (Szegedy et
    al. 2016, section 7). Only the loss on the labels changes; terms of other defenses, and FjORD's distillation, stay
    as they are. It gives no formal guarantee against any attack.

    Example::

        rampart fit --defenses.smoothing LabelSmoothing --defenses.smoothing.smoothing 0.1

    Args:
        smoothing: fraction of a label that is spread over all classes, in [0, 1]: 0 is no defense, at 1 the labels do
            not matter any more.
    """

    knob = Knob("smoothing", (0.1, 0.3, 0.6))
    vectorisable = True

    def __init__(self, smoothing: Fraction = 0.1) -> None:
        self.smoothing = smoothing

    def traits(self) -> frozenset[Trait]:
        return frozenset({"trains-differently"}) if self.smoothing > 0 else frozenset()

    def client_loss(
        self, federation: FederatedModule, client: ClientModule, batch: Batch, logits: Tensor, loss: Tensor
    ) -> Tensor:
        if self.smoothing == 0:
            return loss
        labels = batch[1]
        return loss + client.label_loss(logits, labels, self.smoothing) - client.label_loss(logits, labels)
