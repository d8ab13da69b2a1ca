"""Confidence intervals: Clopper-Pearson and Wilson of a proportion, Newcombe of TPR - FPR, bootstrap of the AUC.

Confidence levels are fractions such as 0.95; intervals are two-sided with equal tails.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from scipy import special, stats

from app.common.errors import Problem, raise_all
from app.metrics.bootstrap import BOOTSTRAP, AllResamples, Bootstrap, Replicates, confidence_problems
from app.metrics.membership import MembershipScores, NotAvailable
from app.metrics.roc import Decision, RocCurve, last_point, roc_curve


@dataclass(frozen=True)
class Interval:
    """Closed interval, in the unit of the estimated quantity."""

    low: float
    high: float
    confidence: float = 0.95

    def contains(self, value: float) -> bool:
        return self.low <= value <= self.high

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2


@dataclass(frozen=True)
class Estimate:
    """A point estimate with its confidence interval, or the reason why there is none."""

    value: float
    interval: Interval | NotAvailable


def clopper_pearson(successes: int, trials: int, confidence: float = 0.95) -> Interval:
    """Clopper-Pearson (exact binomial) interval of a proportion: coverage is never below the confidence level."""
    raise_all(_share_problems(successes, trials, confidence))
    tail = (1 - confidence) / 2
    low = special.betaincinv(successes, trials - successes + 1, tail) if successes else 0.0
    high = special.betaincinv(successes + 1, trials - successes, 1 - tail) if successes < trials else 1.0
    return Interval(float(low), float(high), confidence)


def wilson(successes: int, trials: int, confidence: float = 0.95) -> Interval:
    """Wilson score interval of a proportion: narrower than Clopper-Pearson, right coverage on average only."""
    raise_all(_share_problems(successes, trials, confidence))
    share, squared = successes / trials, float(special.ndtri((1 + confidence) / 2)) ** 2
    centre = (share + squared / (2 * trials)) / (1 + squared / trials)
    spread = math.sqrt(squared * (share * (1 - share) / trials + squared / (4 * trials**2))) / (1 + squared / trials)
    low = centre - spread if successes else 0.0
    return Interval(low, centre + spread if successes < trials else 1.0, confidence)


def advantage_interval(decision: Decision, confidence: float = 0.95) -> Interval:
    """Newcombe's interval (1998, method 10) of TPR - FPR, -1 to 1; the threshold must not depend on these samples."""
    tpr = wilson(decision.true_positives, decision.members, confidence)
    fpr = wilson(decision.false_positives, decision.nonmembers, confidence)
    below = math.hypot(decision.tpr - tpr.low, fpr.high - decision.fpr)
    above = math.hypot(tpr.high - decision.tpr, decision.fpr - fpr.low)
    return Interval(max(-1.0, decision.advantage - below), min(1.0, decision.advantage + above), confidence)


def tpr_interval_at_target(curve: RocCurve, target: float, confidence: float = 0.95) -> Interval:
    """Interval of the TPR, 0 to 1, at the unknown threshold whose population FPR is the target, in (0, 1).

    Binomial bounds of the rank of that threshold among the non-members, then Clopper-Pearson bounds of the TPR at
    these ranks; Bonferroni over the four bounds, so that coverage is at least the confidence level.
    """
    members, nonmembers = int(curve.true_positives[-1]), int(curve.false_positives[-1])
    wrong = Problem(f"the target FPR is {target:g}", "no threshold can be placed", "give a fraction between 0 and 1")
    raise_all([wrong] * (not 0 < target < 1), confidence_problems(confidence))
    tail = (1 - confidence) / 4
    fewest, most = _rank_bounds(nonmembers, target, tail)
    low, high = 0.0, 1.0
    if fewest >= 0:
        true = int(curve.true_positives[last_point(curve, fewest)])
        low = clopper_pearson(true, members, 1 - 2 * tail).low
    if most <= nonmembers:
        true = int(curve.true_positives[last_point(curve, most - 1) + 1])
        high = clopper_pearson(true, members, 1 - 2 * tail).high
    return Interval(low, high, confidence)


@cache
def _rank_bounds(nonmembers: int, target: float, tail: float) -> tuple[int, int]:
    """Bounds of the number of non-members above the threshold whose population FPR is the target."""
    low, high = stats.binom.ppf(tail, nonmembers, target), stats.binom.isf(tail, nonmembers, target)
    return int(low) - 1, int(high) + 1


def auc_estimate(scores: MembershipScores, bootstrap: Bootstrap = BOOTSTRAP) -> Estimate:
    """Area under the ROC curve, 0 to 1, with its bootstrap interval (`bounded_interval`); none with fewer than 2 units.

    With few units or areas near 1, the percentile interval of the bootstrap would have too low a coverage.
    """
    curve = roc_curve(scores)
    resamples = bootstrap.area(scores, curve)
    if isinstance(resamples, NotAvailable):
        return Estimate(curve.auc, resamples)
    return Estimate(curve.auc, bounded_interval(curve.auc, resamples, bootstrap.confidence))


def bounded_interval(
    value: float,
    resamples: Replicates | AllResamples,
    confidence: float,
    lowest: float = 0.0,
    highest: float = 1.0,
) -> Interval:
    """Interval of a quantity between two bounds: bootstrap standard error and Student's t on the logit scale."""
    below, above = value - lowest, highest - value
    if resamples.constant or below <= 0 or above <= 0:
        # Perfect separation or constant scores: the bootstrap shows no spread, so an exact bound takes its place.
        unseen = unseen_share(resamples.units, confidence)
        return Interval(value - unseen * below, value + unseen * above, confidence)
    error = resamples.standard_error * (highest - lowest) / (below * above)
    centre, reach = math.log(below / above), student_quantile(resamples.units, confidence) * error
    low, high = special.expit([centre - reach, centre + reach])
    return Interval(float(lowest + (highest - lowest) * low), float(lowest + (highest - lowest) * high), confidence)


@cache
def student_quantile(units: int, confidence: float) -> float:
    """Two-sided quantile of Student's t distribution with units - 1 degrees of freedom."""
    return float(stats.t.ppf((1 + confidence) / 2, units - 1))


def unseen_share(units: int, confidence: float) -> float:
    """Exact upper bound, 0 to 1, of a proportion of which no success was seen in so many independent trials."""
    return float(1 - ((1 - confidence) / 2) ** (1 / units))


def _share_problems(successes: int, trials: int, confidence: float) -> Iterator[Problem]:
    if trials < 1 or not 0 <= successes <= trials:
        cause = f"{successes} successes in {trials} trials"
        yield Problem(cause, "they have no share", "give 1 or more trials and at most as many successes")
    yield from confidence_problems(confidence)
