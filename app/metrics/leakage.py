"""Everything an attack is reported with: area, decisions, and the share of members found at low false alarm rates."""

from __future__ import annotations

from collections.abc import Sequence
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
from app.metrics.thresholds import Rule, decide_optimistically, decide_with_knowledge


@dataclass(frozen=True)
class TprAtFpr:
    """Share of the members found at one target FPR; its intervals take the rows of several clients as independent.

    Attributes:
        target: FPR that must not be exceeded, 0 to 1.
        decision: the last point not above it.
        tpr: exact binomial interval of the TPR at the threshold of that point, as if it had been given.
        fpr: exact binomial interval of the FPR at that threshold.
        tpr_at_target: interval of the TPR at the threshold that truly has the target FPR; wider, since few non-members
            place that threshold badly.
    """

    target: float
    decision: Decision
    tpr: Interval
    fpr: Interval
    tpr_at_target: Interval


@dataclass(frozen=True)
class KnownThreshold:
    """Decision at a threshold the attacker chose on samples it knows.

    Attributes:
        decision: on the evaluated samples.
        advantage: interval of TPR - FPR, -1 to 1.
        balanced_accuracy: interval of the balanced accuracy, 0 to 1.
    """

    decision: Decision
    advantage: Interval
    balanced_accuracy: Interval


@dataclass(frozen=True)
class Leakage:
    """How well members and non-members are told apart.

    Attributes:
        members: evaluated members, 1 or more.
        nonmembers: evaluated non-members, 1 or more.
        auc: area under the ROC curve, 0 to 1; 0.5 is chance.
        known: decision at a threshold chosen on other samples, or why there is none.
        optimistic: decision at the best threshold of the evaluated samples: an upper bound, above chance even for
            scores that know nothing.
        tpr: one entry per target FPR, or why it cannot be resolved.
    """

    members: int
    nonmembers: int
    auc: Estimate
    known: KnownThreshold | NotAvailable
    optimistic: Decision
    tpr: tuple[TprAtFpr | NotAvailable, ...]

    @property
    def smallest_fpr(self) -> float:
        """Smallest FPR above 0 that these non-members can show."""
        return 1 / self.nonmembers

    @property
    def inverted(self) -> bool:
        """Whether the area lies below chance beyond its interval: the score or the labels are probably swapped."""
        return isinstance(self.auc.interval, Interval) and self.auc.interval.high < 0.5


def measure_leakage(
    scores: MembershipScores,
    knowledge: MembershipScores | None = None,
    *,
    rule: Rule = "best",
    allow_overlap: bool = False,
    targets: Sequence[float] = FPR_TARGETS,
    bootstrap: Bootstrap = BOOTSTRAP,
) -> Leakage:
    """All metrics of one attack.

    Args:
        scores: evaluated samples.
        knowledge: samples whose membership the attacker knows, for its threshold.
        rule: how the threshold follows from them.
        allow_overlap: accept known samples among the evaluated ones.
        targets: false positive rates, above 0 and below 1.
        bootstrap: how to resample for the interval of the area; its confidence is that of every interval.
    """
    curve = roc_curve(scores)
    known: KnownThreshold | NotAvailable = NotAvailable("the attacker knows no samples to choose a threshold on")
    if knowledge is not None:
        known = known_threshold(decide_with_knowledge(scores, knowledge, rule, allow_overlap), bootstrap.confidence)
    return Leakage(
        members=scores.member_count,
        nonmembers=scores.nonmember_count,
        auc=auc_estimate(scores, bootstrap),
        known=known,
        optimistic=decide_optimistically(scores),
        tpr=tuple(tpr_with_intervals(curve, target, bootstrap.confidence) for target in targets),
    )


def known_threshold(decision: Decision, confidence: float = 0.95) -> KnownThreshold:
    """A decision with its intervals (confidence between 0 and 1)."""
    advantage = advantage_interval(decision, confidence)
    accuracy = Interval((1 + advantage.low) / 2, (1 + advantage.high) / 2, confidence)
    return KnownThreshold(decision, advantage, accuracy)


def tpr_with_intervals(curve: RocCurve, target: float, confidence: float = 0.95) -> TprAtFpr | NotAvailable:
    """TPR at a target FPR (above 0 and below 1) with its intervals, or why it cannot be resolved."""
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
