"""Song and Mittal 2021: one value per response, compared with a threshold per class."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from app.attacks.context import AttackContext, ShadowKind
from app.attacks.membership.base import MembershipAttack, Threat
from app.attacks.models import AttackedModel, Ids, Responses, Shadow
from app.common.errors import UserError
from app.common.ranges import Count
from app.metrics.membership import Array, MembershipScores
from app.metrics.roc import roc_curve
from app.metrics.thresholds import best_threshold


class SongMittal(MembershipAttack):
    """Value of a response minus the threshold of the sample's class: 0 or more is classified as a member.

    A subclass defines the value. The thresholds have the highest balanced accuracy on the samples of all shadows, and
    the reported balanced accuracy is that of these decisions.

    Args:
        fewest: members and non-members of a class, counted over all shadows, below which the class takes the threshold
            of all classes together; 1 or more.
    """

    threat = Threat(
        sees="probabilities of all classes", data="in-distribution, disjoint from the members", trains="shadow models"
    )
    shadows: ClassVar[ShadowKind | None] = "out"
    threshold = 0.0

    def __init__(self, fewest: Count = 10) -> None:
        self._fewest = fewest

    @abstractmethod
    def values(self, responses: Responses) -> Array:
        """(samples,) finite, higher for likelier members."""

    def scores(self, target: AttackedModel, samples: Ids, context: AttackContext) -> Array:
        responses = context.query.responses(target, samples)
        if self.shadows is None:
            return self.values(responses)
        known, truth = shadow_responses(context, context.shadows(self.shadows))
        thresholds, common = class_thresholds(
            self.values(known), truth, known.labels, context.knowledge.classes, self._fewest
        )
        if common:
            context.note(
                f"{self.name}: {len(common)} of {context.knowledge.classes} classes share one threshold, for want of "
                f"{self._fewest} known members and non-members, or because none tells them apart"
            )
        return self.values(responses) - thresholds[responses.labels]


class Correctness(SongMittal):
    """1 where the most probable class is the true one, which makes it a member, else 0."""

    name = "correctness"
    threat = Threat(sees="predicted class", data="none", trains="nothing")
    shadows = None
    threshold = 1.0

    def __init__(self) -> None:
        super().__init__()

    def values(self, responses: Responses) -> Array:
        return (responses.logits.argmax(axis=1) == responses.labels).astype(np.float64)


class Confidence(SongMittal):
    """Logarithm of the true class's probability, at most 0."""

    name = "confidence"

    def values(self, responses: Responses) -> Array:
        return responses.true_log_probabilities


class Entropy(SongMittal):
    """Minus the entropy of the response in nats, from -log(classes) to 0."""

    name = "entropy"
    uses_labels = False

    def values(self, responses: Responses) -> Array:
        return (responses.probabilities * responses.log_probabilities).sum(axis=1)


class ModifiedEntropy(SongMittal):
    """Minus the modified entropy -(1 - p_y) log p_y - sum over the other classes of p_i log(1 - p_i), in nats.

    It is 0 where the true class has probability 1 and unbounded where a wrong class has; finite for two or more classes
    with finite logits.
    """

    name = "modified-entropy"

    def values(self, responses: Responses) -> Array:
        rows, labels = np.arange(len(responses.labels)), responses.labels
        own, other = _log_odds_parts(responses.log_probabilities)
        terms = np.exp(own) * other
        terms[rows, labels] = np.exp(other[rows, labels]) * own[rows, labels]
        return np.asarray(terms.sum(axis=1))


def _log_odds_parts(logarithms: Array) -> tuple[Array, Array]:
    """log p and log(1 - p), (samples, classes) each, with full precision for p near 0 and near 1."""
    own, rows, top = logarithms.copy(), np.arange(len(logarithms)), logarithms.argmax(axis=1)
    rest = logarithms.copy()
    rest[rows, top] = -np.inf
    # Only the largest p can exceed 1/2, where 1 - p and log p lose precision: both are computed from the other classes.
    missing = np.minimum(logsumexp(rest, axis=1), 0.0)
    own[rows, top] = np.where(missing < -math.log(2), np.log1p(-np.exp(missing)), own[rows, top])
    other = np.log1p(-np.exp(rest))
    other[rows, top] = missing
    return own, other


def class_thresholds(
    values: Array, truth: NDArray[np.bool_], labels: Ids, classes: int, fewest: int
) -> tuple[Array, list[int]]:
    """Threshold of the highest balanced accuracy for every class, in units of the values.

    Values of known samples are higher for likelier members. A class with fewer than `fewest` members or non-members
    takes the common threshold, which is 0 where no threshold is better than chance.

    Returns:
        One finite threshold per class, and the classes that take the common one.
    """
    common = _threshold(values, truth)
    thresholds = np.full(classes, common if math.isfinite(common) else 0.0)
    sharing = []
    for label in range(classes):
        rows = labels == label
        inside = int(truth[rows].sum())
        enough = min(inside, int(rows.sum()) - inside) >= fewest
        own = _threshold(values[rows], truth[rows]) if enough else math.inf
        if math.isfinite(own):
            thresholds[label] = own
        else:
            sharing.append(label)
    return thresholds, sharing


def _threshold(values: Array, truth: NDArray[np.bool_]) -> float:
    return best_threshold(roc_curve(MembershipScores.of(values, truth)))


def shadow_responses(context: AttackContext, shadows: Sequence[Shadow]) -> tuple[Responses, NDArray[np.bool_]]:
    """Responses of every shadow to its members and non-members, one below the other, and which rows are members."""
    if not shadows:
        raise UserError.of(
            "there is no shadow model left", "the attack cannot learn what members look like", "raise --shadows.count"
        )
    responses = [context.query.responses(shadow.model, shadow.samples) for shadow in shadows]
    truth = np.concatenate([shadow.trained_on(shadow.samples) for shadow in shadows])
    return Responses.joined(responses), truth
