"""An independent classifier, trained on the attacker's own data, that says what reconstructions show."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from app.attacks.model_query import ModelQuery
from app.attacks.models import Snapshot
from app.attacks.public_knowledge import PublicKnowledge
from app.attacks.responses import Ids
from app.attacks.shadows.central import ShadowJob, train_centrally
from app.federation.evaluation import evaluates_by_batch
from app.federation.local_training import merge_short
from app.metrics.membership import NotAvailable
from app.models.norms import posthoc_statistics
from app.seeding import derive_key, numpy_generator

FEWEST = 20
"""Samples of the attacker's own below which a classifier says nothing."""

HELD_OUT = 5
"""One in so many of the attacker's samples is kept to measure the classifier on."""


@dataclass(frozen=True, eq=False)
class Evaluator:
    """A trained classifier that neither the attack nor the federation has touched.

    Attributes:
        public: network, data and recipe.
        snapshot: its parameters.
        samples: ids it was trained on, ascending.
        accuracy: share, 0 to 1, of samples kept back that it classifies correctly: what its verdicts are worth.
    """

    public: PublicKnowledge
    snapshot: Snapshot
    samples: Ids
    accuracy: float = float("nan")

    @torch.no_grad()
    def predict(self, images: Tensor) -> Tensor:
        """(n,) int64 classes on the CPU, each image by itself.

        Args:
            images: (n, channels, height, width) as networks see them.
        """
        public = self.public
        net = ModelQuery(public).network(self.snapshot)
        batches = images.to(public.device, public.dtype).split(max(1, public.batch_size))
        with posthoc_statistics(net, self._own_batches() if evaluates_by_batch(net) else ()), public.precision():
            return torch.cat([net(batch).argmax(dim=1).cpu() for batch in batches])

    def _own_batches(self) -> list[Tensor]:
        """The training images: reconstructions must not be normalised by each other."""
        ids = merge_short(torch.from_numpy(self.samples).split(max(2, self.public.batch_size)), least=2)
        return [self.public.store.batch(batch, self.public.dtype)[0] for batch in ids]


def train_evaluator(public: PublicKnowledge, epochs: int = 30, most: int = 5000) -> Evaluator | NotAvailable:
    """Train a network of the federation's architecture, from other initial values, on the attacker's own data.

    It is trained as a client would be, with the first round's learning rate, without any defense and label masks.

    Args:
        public: network, recipe and the attacker's data.
        epochs: passes over the data, at least 1.
        most: largest number of samples that are used, drawn at random, which bounds the cost.
    """
    if len(public.auxiliary) < FEWEST:
        return NotAvailable(
            f"an independent classifier needs {FEWEST} samples of the attacker's own, there are "
            f"{len(public.auxiliary)}: set --data.holdout.shadow"
        )
    own = numpy_generator(public.seed, "evaluator data").permutation(public.auxiliary)[:most]
    kept, samples = own[: len(own) // HELD_OUT], own[len(own) // HELD_OUT :].copy()
    samples.sort()
    local = replace(public.local, epochs=epochs, steps=None, mask_labels=False, proximal=0.0)
    recipe = replace(public, local=local, learning_rates=public.learning_rates[:1])
    ((snapshot,),) = train_centrally(recipe, [ShadowJob(0, 1.0, samples)], (1,), derive_key(public.seed, "evaluator"))
    trained = Evaluator(public, snapshot, samples)
    images, labels = public.store.batch(torch.from_numpy(kept), public.dtype)
    return replace(trained, accuracy=float((trained.predict(images) == labels.cpu()).double().mean()))
