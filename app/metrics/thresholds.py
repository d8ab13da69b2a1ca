"""Decisions at one threshold, chosen on samples the attacker knows or, optimistically, on the evaluated samples."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from app.common.errors import UserError
from app.metrics.membership import MembershipScores
from app.metrics.roc import Decision, RocCurve, roc_curve

Rule = Literal["best", "mean"]
"""Threshold on known samples: that of the highest balanced accuracy, or the mean score of the known members."""


def decide(
    scores: MembershipScores,
    threshold: float,
    chosen_on: Literal["knowledge", "evaluation", "elsewhere"] = "elsewhere",
) -> Decision:
    """Call every score >= threshold a member; the threshold may be infinite, not NaN."""
    if math.isnan(threshold):
        raise UserError.of("the threshold is NaN", "nobody would be called a member", "give a number")
    positive = scores.scores >= threshold
    true, false = int((positive & scores.members).sum()), int((positive & ~scores.members).sum())
    return Decision(threshold, true, scores.member_count, false, scores.nonmember_count, chosen_on)


def decide_with_knowledge(
    evaluation: MembershipScores, knowledge: MembershipScores, rule: Rule = "best", allow_overlap: bool = False
) -> Decision:
    """Decision on the evaluated samples at a threshold chosen on samples whose membership the attacker knows.

    `allow_overlap` accepts known samples among the evaluated ones, as some published code does; it is biased upwards.
    """
    shared = overlap(evaluation, knowledge)
    if shared and not allow_overlap:
        raise UserError.of(
            f"{shared} of the {knowledge.scores.size} known samples are also evaluated",
            "the attack would be evaluated on samples it was given",
            "take them out of one of the two sets, or allow the overlap to follow published code",
        )
    threshold = best_threshold(roc_curve(knowledge)) if rule == "best" else mean_threshold(knowledge)
    return decide(evaluation, threshold, "knowledge")


def decide_optimistically(evaluation: MembershipScores) -> Decision:
    """Decision at the best threshold of the evaluated samples: an upper bound that no attacker reaches.

    Its advantage is never negative, and above 0 even for random scores.
    """
    return decide(evaluation, best_threshold(roc_curve(evaluation)), "evaluation")


def best_threshold(curve: RocCurve) -> float:
    """Threshold of the highest balanced accuracy (Youden's J); of equally good ones, that with the fewest positives.

    It lies midway between two neighbouring scores; infinite where no sample, or every sample, is called a member.
    """
    # Whole numbers: TPR - FPR in floats would break ties by rounding.
    gain = curve.true_positives * curve.false_positives[-1] - curve.false_positives * curve.true_positives[-1]
    point = int(np.argmax(gain))
    if point == 0:
        return math.inf
    if point == gain.size - 1:
        return -math.inf
    above, below = float(curve.thresholds[point]), float(curve.thresholds[point + 1])
    middle = above / 2 + below / 2
    return middle if below < middle <= above else above


def mean_threshold(knowledge: MembershipScores) -> float:
    """Just above the mean score of the known members: with score = -loss, a member has less than their mean loss."""
    return float(np.nextafter(knowledge.scores[knowledge.members].mean(), math.inf))


def overlap(first: MembershipScores, second: MembershipScores) -> int:
    """Number of (client, sample) pairs that occur in both."""
    pairs = [set(zip(one.clients.tolist(), one.samples.tolist(), strict=True)) for one in (first, second)]
    return len(pairs[0] & pairs[1])
