"""Shokri et al. 2017: attack models trained on the responses of shadow models to members and non-members."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler

from app.attacks.context import AttackContext
from app.attacks.membership.attack_net import ResultCache
from app.attacks.membership.base import MembershipAttack, Threat
from app.attacks.membership.song_mittal import shadow_responses
from app.attacks.models import AttackedModel, Ids, Responses, Shadow
from app.common.progress import track
from app.common.ranges import Count, Several
from app.common.seeding import derive_key, numpy_generator
from app.metrics.membership import Array

HIDDEN, EPOCHS, PENALTY = 64, 60, 1e-3
"""Hidden units of an attack model, most epochs, and L2 penalty."""

MOST_ROWS = 20_000
"""Most rows that the model of all classes is trained on."""


class Shokri(MembershipAttack):
    """One attack model per class on the probabilities of all classes; scores are log-odds of membership, in nats.

    Args:
        sort: sort the probabilities of each response, as some later work does.
        shadows_used: learn from so many shadows, 1 or more; without a number, from all.
        fewest: members and non-members of a class, counted over the shadows, below which the class takes the model of
            all classes together; 2 or more.
    """

    name = "shokri"
    threat = Threat(
        sees="probabilities of all classes",
        data="in-distribution, disjoint from the members",
        trains="shadow models and attack models",
    )
    shadows = "out"

    def __init__(self, sort: bool = False, shadows_used: Count | None = None, fewest: Several = 20) -> None:
        self._sort, self._shadows_used, self._fewest = sort, shadows_used, fewest
        self._trained: ResultCache[tuple[_Model | None, ...]] = ResultCache(lambda _: 1, most=8)

    def scores(self, target: AttackedModel, samples: Ids, context: AttackContext) -> Array:
        models = self._models(context)
        responses = context.query.responses(target, samples)
        features, common = attack_features(responses, self._sort), models[-1]
        labels, scores = responses.labels, np.zeros(len(samples))
        for label in np.unique(labels):
            rows, model = labels == label, models[label]
            if model is not None:
                scores[rows] = model.log_odds(features[rows])
            elif common is not None:
                scores[rows] = common.log_odds(_with_label(features[rows], labels[rows], context.knowledge.classes))
        return scores

    def _models(self, context: AttackContext) -> tuple[_Model | None, ...]:
        """A model for every class with enough samples, and last the one of all classes, where any class needs it."""
        shadows = tuple(self._chosen(context))
        models = self._trained.get(shadows, lambda: self._train(context, shadows))
        if lacking := sum(model is None for model in models[:-1]):
            context.note(
                f"shokri: {lacking} of {context.knowledge.classes} classes share one attack model, for want of "
                f"{self._fewest} known members and non-members"
            )
        return models

    def _chosen(self, context: AttackContext) -> list[Shadow]:
        used = self._shadows_used
        if used is None:
            return context.shadows("out")
        shadows = context.shadows("out", used + 1)[:used]  # one of them may be attacked itself
        if len(shadows) < used:
            context.note(f"shokri learns from {len(shadows)} shadows: there are no {used}")
        return shadows

    def _train(self, context: AttackContext, shadows: Sequence[Shadow]) -> tuple[_Model | None, ...]:
        known, truth = shadow_responses(context, shadows)
        features, classes = attack_features(known, self._sort), context.knowledge.classes
        models: list[_Model | None] = []
        for label in track(range(classes), "attack models", "classes"):
            rows = known.labels == label
            few = min(truth[rows].sum(), (~truth[rows]).sum()) < self._fewest
            key = derive_key(context.knowledge.seed, "shokri", label)
            models.append(None if few else _train(features[rows], truth[rows], key))
        if None in models:
            order = numpy_generator(context.knowledge.seed, "shokri-rows").permutation(truth.size)
            rows = np.sort(order[:MOST_ROWS])
            wide = _with_label(features[rows], known.labels[rows], classes)
            return (*models, _train(wide, truth[rows], derive_key(context.knowledge.seed, "shokri", classes)))
        return (*models, None)


def attack_features(responses: Responses, sort: bool = False) -> Array:
    """(samples, classes) logarithms of the probabilities, from -30 to 0; sorted, the largest comes first.

    Lower values are practically 0 and would only stretch the scale.
    """
    features = np.maximum(responses.log_probabilities, -30.0)
    return -np.sort(-features, axis=1) if sort else features


@dataclass(frozen=True, eq=False)
class _Model:
    scale: StandardScaler
    net: MLPClassifier

    def log_odds(self, features: Array) -> Array:
        """(rows,) log-odds of membership; finite, while the net's probabilities round to 0 or 1."""
        (first, second), (shift, offset) = self.net.coefs_, self.net.intercepts_
        hidden = np.maximum(self.scale.transform(features) @ first + shift, 0)
        return np.asarray((hidden @ second + offset)[:, 0])


def _train(features: Array, truth: NDArray[np.bool_], key: int) -> _Model:
    scale = StandardScaler().fit(features)
    net = MLPClassifier((HIDDEN,), alpha=PENALTY, max_iter=EPOCHS, learning_rate_init=3e-3, random_state=key % 2**32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # training ends by the number of epochs
        net.fit(scale.transform(features), truth)
    return _Model(scale, net)


def _with_label(features: Array, labels: Ids, classes: int) -> Array:
    """The features with the true class as further columns, one per class."""
    return np.concatenate([features, np.eye(classes)[labels]], axis=1)
