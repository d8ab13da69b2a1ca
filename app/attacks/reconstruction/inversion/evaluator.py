"""An independent classifier, trained on the attacker's own data, that checks the class of reconstructions."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from app.attacks.model_query import ModelQuery
from app.attacks.models import Ids, Snapshot
from app.attacks.public_knowledge import PublicKnowledge
from app.attacks.shadows.central import ShadowJob, train_centrally
from app.common.seeding import derive_key, numpy_generator
from app.federation.evaluation import evaluates_by_batch
from app.federation.local_training import merge_short
from app.metrics.membership import NotAvailable
from app.models.norms import posthoc_statistics

FEWEST = 20
"""Smallest number of the attacker's own samples that a classifier is trained on."""

HELD_OUT = 5
"""One in so many of the attacker's samples is held out to measure the classifier."""


@dataclass(frozen=True, eq=False)
class Evaluator:
    """A trained classifier, independent of the federation and of the attack."""

    knowledge: PublicKnowledge
    snapshot: Snapshot
    samples: Ids  # ids of its training samples, ascending
    accuracy: float = float("nan")  # accuracy, 0 to 1, on held-out samples

    @torch.no_grad()
    def predict(self, images: Tensor) -> Tensor:
        """(n,) int64 classes, on the CPU, of normalised images; predictions are independent of the batch."""
        knowledge = self.knowledge
        net = ModelQuery(knowledge).network(self.snapshot)
        batches = images.to(knowledge.device, knowledge.dtype).split(max(1, knowledge.batch_size))
        with posthoc_statistics(net, self._own_batches() if evaluates_by_batch(net) else ()), knowledge.precision():
            return torch.cat([net(batch).argmax(dim=1).cpu() for batch in batches])

    def _own_batches(self) -> list[Tensor]:
        """Batches of the training images: reconstructions must not be normalised by each other."""
        ids = merge_short(torch.from_numpy(self.samples).split(max(2, self.knowledge.batch_size)), least=2)
        return [self.knowledge.store.batch(batch, self.knowledge.dtype)[0] for batch in ids]


def train_evaluator(knowledge: PublicKnowledge, epochs: int = 30, most: int = 5000) -> Evaluator | NotAvailable:
    """Train a network of the federation's architecture, from another initialisation, on the attacker's own data.

    Training is that of a client, with the learning rate of the first round, without defenses and label masks.
    At most `most` samples, drawn at random, are used.
    """
    if len(knowledge.auxiliary) < FEWEST:
        return NotAvailable(
            f"an independent classifier needs {FEWEST} samples of the attacker's own, there are "
            f"{len(knowledge.auxiliary)}: set --data.holdout.shadow"
        )
    own = numpy_generator(knowledge.seed, "evaluator data").permutation(knowledge.auxiliary)[:most]
    kept, samples = own[: len(own) // HELD_OUT], own[len(own) // HELD_OUT :].copy()
    samples.sort()
    local = replace(knowledge.local, epochs=epochs, steps=None, mask_labels=False, proximal=0.0)
    recipe = replace(knowledge, local=local, learning_rates=knowledge.learning_rates[:1])
    job = ShadowJob(0, 1.0, samples, derive_key(knowledge.seed, "evaluator"))
    ((snapshot,),) = train_centrally(recipe, [job], (1,))
    trained = Evaluator(knowledge, snapshot, samples)
    images, labels = knowledge.store.batch(torch.from_numpy(kept), knowledge.dtype)
    return replace(trained, accuracy=float((trained.predict(images) == labels.cpu()).double().mean()))
