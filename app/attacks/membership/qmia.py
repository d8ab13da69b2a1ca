"""Bertran et al. 2023, QMIA: one regression predicts what the target responds to a non-member, without any shadow."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor, nn
from torch.nn.functional import one_hot
from torch.optim import Adam

from app.attacks.context import AttackContext
from app.attacks.membership import attack_net
from app.attacks.membership.base import MembershipAttack, Threat
from app.attacks.models import AttackedModel, Ids
from app.common.errors import UserError
from app.common.ranges import Count, Decay, Inside, Positive, Several
from app.common.seeding import derive_key, numpy_generator
from app.common.wording import counted
from app.metrics.membership import Array

FEWEST = 20
"""Samples of the population without which the regression has nothing to learn from."""

FINE = 1000
"""Samples of the population from which on a result has no remark on their number."""

HIDDEN = 128
"""Hidden units, from which both numbers are computed for each class."""


class QuantileNet(nn.Module):
    """Mean and log deviation of a Gaussian, of (rows, channels, height, width) images and (rows, classes) labels."""

    def __init__(self, images: Tensor, labels: Tensor, channels: int) -> None:
        super().__init__()
        self.picture = nn.Sequential(
            nn.Conv2d(images.shape[1], channels, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
        )
        height, width = ((size + 3) // 4 for size in images.shape[2:])
        self.head = attack_net.dense(2 * channels * height * width, HIDDEN, 2 * labels.shape[1])

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        by_class = self.head(self.picture(images)).unflatten(1, (-1, labels.shape[1]))
        return (by_class * labels[:, None]).sum(2)


class QMIA(MembershipAttack):
    """Distance of phi, the logit of the true class's probability, from its prediction, in predicted deviations.

    The target's phi on samples that no client has is fitted by a Gaussian whose mean and deviation depend on image and
    label: the paper's Gaussian variant, which gives all quantiles at once. A score above the standard normal's quantile
    1 - fpr is one above the sample's own quantile.

    Args:
        fpr: share of non-members, in (0, 1), that the attack's own threshold calls members.
        channels: of the first convolution.
        epochs: of the regression, at most.
        patience: epochs without progress on a held-out fifth after which training ends with the best epoch.
        batch_size: samples per step of the regression.
        lr: learning rate of the regression (Adam).
        weight_decay: of the regression, 0 or more, below 1.
        most: samples of the population that it learns from, at least 2.
    """

    name = "qmia"
    threat = Threat(
        sees="probability of the true class", data="a population, disjoint from the members", trains="one regression"
    )

    def __init__(
        self,
        *,
        fpr: Inside = 0.1,
        channels: Count = 16,
        epochs: Count = 50,
        patience: Count = 5,
        batch_size: Count = 128,
        lr: Positive = 1e-3,
        weight_decay: Decay = 1e-3,
        most: Several = 20_000,
    ) -> None:
        self.threshold = float(ndtri(1 - fpr))
        self._channels, self._epochs, self._patience, self._most = channels, epochs, patience, most
        self._batch_size, self._lr, self._weight_decay = batch_size, lr, weight_decay
        self._nets: attack_net.ResultCache[nn.Module] = attack_net.ResultCache(attack_net.parameters_of)

    def scores(self, target: AttackedModel, samples: Ids, context: AttackContext) -> Array:
        reference = self._reference(samples, context)
        known = context.query.responses(target, reference).margins
        centre, scale = known.mean(), max(known.std(), 1e-6)
        key = (target.key, target.last.round, reference.tobytes())
        net = self._nets.get(key, lambda: self._train(reference, (known - centre) / scale, context))
        mean, log_deviation = attack_net.outputs(net, _features(samples, context)).double().numpy().T
        phi = (context.query.responses(target, samples).margins - centre) / scale
        return (phi - mean) * np.exp(-log_deviation)

    def _reference(self, samples: Ids, context: AttackContext) -> Ids:
        """Samples of the population that are not audited; refused where there are too few."""
        unseen = np.setdiff1d(context.knowledge.population, samples)
        if len(unseen) < FEWEST:
            raise UserError.of(
                f"the attacker has a population of {counted(len(unseen), 'sample')} that no model is trained on",
                "the regression of qmia has too little to learn from",
                "keep more out of training with --data.holdout.population, such as 0.1",
            )
        if len(unseen) < FINE:
            context.note(
                f"qmia learns from {counted(len(unseen), 'sample')}: with {FINE} or more, it sees how hard a sample is"
            )
        return np.sort(numpy_generator(context.knowledge.seed, "qmia-reference").permutation(unseen)[: self._most])

    def _train(self, reference: Ids, values: Array, context: AttackContext) -> nn.Module:
        features, seed = _features(reference, context), derive_key(context.knowledge.seed, self.name)
        return attack_net.fit(
            lambda: QuantileNet(features[0], features[1], self._channels),
            features,
            torch.from_numpy(values).to(features[0]),
            epochs=self._epochs,
            batch_size=self._batch_size,
            optimizer=partial(Adam, lr=self._lr, weight_decay=self._weight_decay, fused=True),
            loss="gaussian",
            seed=seed,
            held_out=attack_net.hold_out([len(reference)], seed),
            patience=self._patience,
            cache=context.cache,
        )


def _features(samples: Ids, context: AttackContext) -> list[Tensor]:
    """Images and one-hot labels in single precision."""
    images, labels = context.knowledge.store.batch(torch.from_numpy(samples))
    return [images.float(), one_hot(labels, context.knowledge.classes).float()]
