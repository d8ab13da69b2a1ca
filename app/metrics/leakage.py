"""All metrics of a membership inference attack: AUC, decisions at a threshold, and TPR at low FPR, with intervals."""

from __future__ import annotations

from dataclasses import dataclass

from app.metrics.bootstrap import BOOTSTRAP, Bootstrap
from app.metrics.intervals import (
    Estimate,
    Interval,
    advantage_interval,
    auc_estimate,
    clopper_pearson,
    tpr_interval_at_target,
)
from app.metrics.membership import MembershipScores, NotAvailable
from app.metrics.roc import FPR_TARGETS, Decision, RocCurve, roc_curve, tpr_at_fpr
from app.metrics.thresholds import decide_optimistically, decide_with_knowledge


@dataclass(frozen=True)
class TprAtFpr:
    """TPR at one target FPR; intervals assume independent rows, also of several clients."""

    target: float  # FPR that must not be exceeded, 0 to 1
    decision: Decision  # the last point of the ROC curve not above it
    tpr: Interval  # Clopper-Pearson interval of the TPR at the threshold of that point, taken as given
    fpr: Interval  # Clopper-Pearson interval of the FPR at that threshold
    # interval of the TPR at the threshold whose population FPR is the target; wider, since that threshold is uncertain
    tpr_at_target: Interval


@dataclass(frozen=True)
class KnownThreshold:
    """Decision at a threshold chosen on samples the attacker knows, with intervals of its two measures."""

    decision: Decision
    advantage: Interval
    balanced_accuracy: Interval


@dataclass(frozen=True)
class Leakage:
    """How well an attack separates members from non-members."""

    members: int  # evaluated members, 1 or more
    nonmembers: int  # evaluated non-members, 1 or more
    auc: Estimate  # area under the ROC curve, 0 to 1; 0.5 is chance
    known: KnownThreshold | NotAvailable  # decision at a threshold chosen on other samples, or why there is none
    # decision at the best threshold of the evaluated samples: an upper bound, above chance even for random scores
    optimistic: Decision
    tpr: tuple[TprAtFpr | NotAvailable, ...]  # one entry per target FPR, or why there are too few non-members for it

    @property
    def inverted(self) -> bool:
        """Whether the AUC is significantly below 0.5: the sign of the score or the labels are probably swapped."""
        return isinstance(self.auc.interval, Interval) and self.auc.interval.high < 0.5


def measure_leakage(
    scores: MembershipScores, knowledge: MembershipScores | None = None, bootstrap: Bootstrap = BOOTSTRAP
) -> Leakage:
    """All metrics of one attack; `knowledge` are other samples, whose membership the attacker knows.

    The bootstrap is that of the AUC; its confidence level is that of every interval.
    """
    curve = roc_curve(scores)
    known: KnownThreshold | NotAvailable = NotAvailable("the attacker knows no samples to choose a threshold on")
    if knowledge is not None:
        known = known_threshold(decide_with_knowledge(scores, knowledge), bootstrap.confidence)
    return Leakage(
        members=scores.member_count,
        nonmembers=scores.nonmember_count,
        auc=auc_estimate(scores, bootstrap),
        known=known,
        optimistic=decide_optimistically(scores),
        tpr=tuple(tpr_with_intervals(curve, target, bootstrap.confidence) for target in FPR_TARGETS),
    )


def known_threshold(decision: Decision, confidence: float = 0.95) -> KnownThreshold:
    """A decision with Newcombe's interval of its advantage."""
    advantage = advantage_interval(decision, confidence)
    accuracy = Interval((1 + advantage.low) / 2, (1 + advantage.high) / 2, confidence)
    return KnownThreshold(decision, advantage, accuracy)


def tpr_with_intervals(curve: RocCurve, target: float, confidence: float = 0.95) -> TprAtFpr | NotAvailable:
    """TPR at a target FPR, in (0, 1), with its intervals, or why there are too few non-members for it."""
    decision = tpr_at_fpr(curve, target)
    if isinstance(decision, NotAvailable):
        return decision
    return TprAtFpr(
        target=target,
        decision=decision,
        tpr=clopper_pearson(decision.true_positives, decision.members, confidence),
        fpr=clopper_pearson(decision.false_positives, decision.nonmembers, confidence),
        tpr_at_target=tpr_interval_at_target(curve, target, confidence),
    )
