"""ROC curve of an attack and its TPR at low FPR.

Rates and areas are fractions from 0 to 1. Only the order of the scores matters; equal scores are ties.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from app.common.errors import UserError
from app.metrics.membership import Array, MembershipScores, NotAvailable

FPR_TARGETS = (0.001, 0.01, 0.1)
"""False positive rates at which every attack is reported."""

ROUND_OFF = 1e-9
"""Slack in counts, so that 0.29 of 100 non-members is 29 of them and not 28."""


@dataclass(frozen=True)
class Decision:
    """Confusion counts of the rule that calls every score >= threshold a member."""

    threshold: float  # in units of the score; infinite where no sample is called a member
    true_positives: int  # members called members
    members: int  # all members, 1 or more
    false_positives: int  # non-members called members
    nonmembers: int  # all non-members, 1 or more
    # where the threshold comes from: samples whose membership the attacker knows, the evaluated samples themselves
    # (optimistic), or elsewhere
    chosen_on: Literal["knowledge", "evaluation", "elsewhere"]

    @property
    def tpr(self) -> float:
        return self.true_positives / self.members

    @property
    def fpr(self) -> float:
        return self.false_positives / self.nonmembers

    @property
    def balanced_accuracy(self) -> float:
        """Mean of TPR and TNR, 0 to 1; 0.5 is chance."""
        return (1 + self.advantage) / 2

    @property
    def advantage(self) -> float:
        """TPR - FPR, -1 to 1; 0 is chance. Times 100, the Adv = 2 (accuracy - 50) in percent of balanced sets."""
        return self.tpr - self.fpr


@dataclass(frozen=True, eq=False)
class RocCurve:
    """One point per distinct score, from no sample called a member to all of them."""

    thresholds: Array  # falling, in units of the score; the first is infinite
    true_positives: NDArray[np.int64]  # counts, rising from 0 to all members
    false_positives: NDArray[np.int64]  # counts, rising from 0 to all non-members

    @property
    def tpr(self) -> Array:
        return self.true_positives / self.true_positives[-1]

    @property
    def fpr(self) -> Array:
        return self.false_positives / self.false_positives[-1]

    @property
    def auc(self) -> float:
        """Area under the curve, 0 to 1: probability that a member outscores a non-member, ties counting one half."""
        heights = self.true_positives[1:] + self.true_positives[:-1]
        doubled = int(np.sum(np.diff(self.false_positives) * heights))
        return doubled / (2 * int(self.true_positives[-1]) * int(self.false_positives[-1]))

    def decision(self, point: int) -> Decision:
        members, nonmembers = int(self.true_positives[-1]), int(self.false_positives[-1])
        true, false = int(self.true_positives[point]), int(self.false_positives[point])
        return Decision(float(self.thresholds[point]), true, members, false, nonmembers, "evaluation")


def roc_curve(scores: MembershipScores) -> RocCurve:
    """Exact ROC curve; tied scores form one slanted segment."""
    order = np.argsort(-scores.scores, kind="stable")
    ranked = scores.scores[order]
    ends = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True))
    true = np.append(0, np.cumsum(scores.members[order])[ends])
    return RocCurve(np.append(math.inf, ranked[ends]), true, np.append(0, ends + 1) - true)


def tpr_at_fpr(curve: RocCurve, target: float) -> Decision | NotAvailable:
    """The last point of the curve whose FPR is not above the target, 0 to 1.

    Not available with fewer than 1 / target non-members, where not a single false positive would be allowed; a target
    of 0 allows none, whatever the number of non-members.
    """
    if not 0 <= target <= 1:
        raise UserError.of(f"the target FPR is {target:g}", "no point of a curve has it", "give a fraction from 0 to 1")
    nonmembers = int(curve.false_positives[-1])
    needed = math.ceil(1 / target - ROUND_OFF) if target > 0 else 0
    if nonmembers < needed:
        return NotAvailable(f"TPR at {target:.3g} FPR needs at least {needed} non-members, there are {nonmembers}")
    return curve.decision(last_point(curve, math.floor(target * nonmembers + ROUND_OFF)))


def last_point(curve: RocCurve, false_positives: int) -> int:
    """Index of the last point with at most so many false positives."""
    return int(np.searchsorted(curve.false_positives, false_positives, side="right")) - 1


def log_log_roc(curve: RocCurve, points: int = 200) -> tuple[Array, Array]:
    """FPR, evenly spaced on a logarithmic axis from 1 / non-members to 1, and TPR of a log-log ROC curve.

    The TPR is NaN where it is 0, which a logarithmic axis cannot show.
    """
    nonmembers = int(curve.false_positives[-1])
    fpr = np.geomspace(1 / nonmembers, 1, points)
    allowed = np.floor(fpr * nonmembers + ROUND_OFF)
    tpr = curve.tpr[np.searchsorted(curve.false_positives, allowed, side="right") - 1]
    return fpr, np.where(tpr > 0, tpr, math.nan)
