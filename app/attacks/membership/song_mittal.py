"""Song and Mittal 2021: what a model's answer gives away by one number and one threshold per class."""

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
from app.attacks.models import AttackedModel, Shadow
from app.attacks.responses import Ids, Responses
from app.errors import UserError
from app.metrics.membership import Array, MembershipScores
from app.metrics.roc import roc_curve
from app.metrics.thresholds import best_threshold


class SongMittal(MembershipAttack):
    """One number per answer, compared with a threshold of the sample's class; a subclass says which number.

    The thresholds are those of the highest balanced accuracy on the samples of all shadows.
    """

    threat = Threat(
        sees="probabilities of all classes", data="in-distribution, disjoint from the members", trains="shadow models"
    )
    shadows: ClassVar[ShadowKind | None] = "out"

    def __init__(self, fewest: int = 10) -> None:
        """Attack with thresholds by class.

        Args:
            fewest: members and non-members of a class, counted over all shadows, below which the class takes the
                threshold of all classes together; 1 or more.
        """
        if fewest < 1:
            raise UserError.of(f"fewest is {fewest}", "a threshold needs samples on both sides", "set it to 1 or more")
        self._fewest = fewest

    @abstractmethod
    def values(self, responses: Responses) -> Array:
        """(samples,) finite, the higher the more member-like."""

    def scores(self, target: AttackedModel, samples: Ids, context: AttackContext) -> Array:
        """How far the number lies above the threshold of the sample's class: 0 or more is called a member."""
        answers = context.query.responses(target, samples)
        if self.shadows is None:
            return self.values(answers)
        known, truth = known_answers(context, context.shadows(self.shadows))
        thresholds, common = class_thresholds(
            self.values(known), truth, known.labels, context.knowledge.classes, self._fewest
        )
        if common:
            context.note(
                f"{self.name}: {len(common)} of {context.knowledge.classes} classes share one threshold, for want of "
                f"{self._fewest} known members and non-members, or because none tells them apart"
            )
        return self.values(answers) - thresholds[answers.labels]


class Correctness(SongMittal):
    """Members are classified correctly."""

    name = "correctness"
    threat = Threat(sees="predicted class", data="none", trains="nothing")
    shadows = None

    def __init__(self) -> None:
        super().__init__()

    def values(self, responses: Responses) -> Array:
        """1 where the most probable class is the true one, else 0."""
        return (responses.logits.argmax(axis=1) == responses.labels).astype(np.float64)


class Confidence(SongMittal):
    """Members have a higher probability of the true class."""

    name = "confidence"

    def values(self, responses: Responses) -> Array:
        """Logarithm of the true class's probability, at most 0."""
        return responses.true_log_probabilities


class Entropy(SongMittal):
    """Members are answered with less doubt, whichever class the model is sure of."""

    name = "entropy"
    uses_labels = False

    def values(self, responses: Responses) -> Array:
        """Minus the entropy in nats: from -log(classes) to 0."""
        return (responses.probabilities * responses.log_probabilities).sum(axis=1)


class ModifiedEntropy(SongMittal):
    """Members are answered with less doubt about the true class."""

    name = "modified-entropy"

    def values(self, responses: Responses) -> Array:
        """Minus the modified entropy in nats, at most 0."""
        return -modified_entropy(responses)


def modified_entropy(responses: Responses) -> Array:
    """-(1 - p_y) log p_y - sum over the other classes of p_i log(1 - p_i), in nats, for each sample.

    It is 0 for a probability of 1 of the true class and rises without bound for the wrong ones; finite for two or more
    classes with finite logits.
    """
    rows = np.arange(len(responses.labels))
    own, other = _log_odds_parts(responses.log_probabilities)
    terms = np.exp(own) * other
    terms[rows, responses.labels] = np.exp(other[rows, responses.labels]) * own[rows, responses.labels]
    return -terms.sum(axis=1)


def _log_odds_parts(logarithms: Array) -> tuple[Array, Array]:
    """log p and log(1 - p), (samples, classes) each, with full precision for p near 0 and near 1."""
    own, rows, top = logarithms.copy(), np.arange(len(logarithms)), logarithms.argmax(axis=1)
    rest = logarithms.copy()
    rest[rows, top] = -np.inf
    # Only the largest p can exceed 1/2, where 1 - p and log p would lose their digits: the other classes have them.
    missing = np.minimum(logsumexp(rest, axis=1), 0.0)
    own[rows, top] = np.where(missing < -math.log(2), np.log1p(-np.exp(missing)), own[rows, top])
    other = np.log1p(-np.exp(rest))
    other[rows, top] = missing
    return own, other


def class_thresholds(
    values: Array, truth: NDArray[np.bool_], labels: Ids, classes: int, fewest: int
) -> tuple[Array, list[int]]:
    """Threshold of the highest balanced accuracy for every class, in units of the values.

    Args:
        values: known samples, the higher the more member-like.
        truth: whether each is a member.
        labels: class of each.
        classes: number of classes.
        fewest: members and non-members a class needs for a threshold of its own.

    Returns:
        One finite threshold per class, and the classes that take the one of all classes together; that one is 0 where
        no threshold is better than a coin.
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


def known_answers(context: AttackContext, shadows: Sequence[Shadow]) -> tuple[Responses, NDArray[np.bool_]]:
    """Answers of every shadow to its members and non-members, one below the other, and which rows are members.

    Raises:
        UserError: where there is no shadow.
    """
    if not shadows:
        raise UserError.of(
            "there is no shadow model left", "the attack cannot learn what members look like", "raise --shadows.count"
        )
    heard = [context.query.responses(shadow.model, shadow.samples) for shadow in shadows]
    together = Responses(
        np.concatenate([answers.logits for answers in heard]), np.concatenate([answers.labels for answers in heard])
    )
    return together, np.concatenate([shadow.trained_on(shadow.samples) for shadow in shadows])
