"""Decisions at one threshold: chosen by an attacker from samples it knows, or, flattering it, on the evaluated ones."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from app.errors import UserError
from app.metrics.membership import MembershipScores
from app.metrics.roc import Decision, RocCurve, roc_curve

Rule = Literal["best", "mean"]
"""How a threshold follows from known samples: highest balanced accuracy, or mean score of the known members."""


def decide(
    scores: MembershipScores,
    threshold: float,
    chosen_on: Literal["knowledge", "evaluation", "elsewhere"] = "elsewhere",
) -> Decision:
    """Call every score >= threshold a member.

    Args:
        scores: evaluated samples.
        threshold: in units of the score; may be infinite, not NaN.
        chosen_on: where the threshold comes from.
    """
    called = called_members(scores, threshold)
    found, alarms = int((called & scores.members).sum()), int((called & ~scores.members).sum())
    return Decision(threshold, found, scores.member_count, alarms, scores.nonmember_count, chosen_on)


def called_members(scores: MembershipScores, threshold: float) -> NDArray[np.bool_]:
    """Which rows have a score >= threshold, in units of the score."""
    if math.isnan(threshold):
        raise UserError.of("the threshold is NaN", "nobody would be called a member", "give a number")
    return scores.scores >= threshold


def decide_with_knowledge(
    evaluation: MembershipScores, knowledge: MembershipScores, rule: Rule = "best", allow_overlap: bool = False
) -> Decision:
    """Decision on the evaluated samples at a threshold chosen on other samples whose membership the attacker knows.

    Args:
        evaluation: samples the attack is judged on.
        knowledge: samples the attacker knows.
        rule: how the threshold follows from them.
        allow_overlap: accept known samples among the evaluated ones, as some published code does; flatters the attack.
    """
    shared = overlap(evaluation, knowledge)
    if shared and not allow_overlap:
        raise UserError.of(
            f"{shared} of the {knowledge.scores.size} known samples are also evaluated",
            "the attack would be judged on what it was told",
            "take them out of one of the two sets, or allow the overlap to follow published code",
        )
    threshold = best_threshold(roc_curve(knowledge)) if rule == "best" else mean_threshold(knowledge)
    return decide(evaluation, threshold, "knowledge")


def decide_optimistically(evaluation: MembershipScores) -> Decision:
    """Decision at the threshold that turns out best on the evaluated samples: an upper bound no attacker reaches.

    Its advantage is never negative, and above 0 even for scores that know nothing.
    """
    return decide(evaluation, best_threshold(roc_curve(evaluation)), "evaluation")


def best_threshold(curve: RocCurve) -> float:
    """Threshold of the highest balanced accuracy; of equally good ones, the one that calls the fewest members.

    It lies midway between the lowest score called a member and the next lower one; infinite where nobody or everybody
    is called a member.
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
    """Number of pairs of client and sample that occur in both."""
    pairs = [set(zip(one.clients.tolist(), one.samples.tolist(), strict=True)) for one in (first, second)]
    return len(pairs[0] & pairs[1])
