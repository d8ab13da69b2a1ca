"""Whether two runs differ, paired by sample: the same samples, members of the same clients, under two defenses.

Differences are first minus second. Runs without a significant difference are indistinguishable, not equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats

from app.errors import Problem, raise_all
from app.metrics.intervals import Interval, bounded_interval, normal_quantile, student_quantile
from app.metrics.membership import Array, MembershipScores, NotAvailable
from app.metrics.resampling import BOOTSTRAP, Bootstrap, Ranking, Weights, confidence_problems
from app.metrics.roc import roc_curve, tpr_at_fpr
from app.metrics.thresholds import called_members

Verdict = Literal["better", "worse", "indistinguishable"]


@dataclass(frozen=True)
class PairedDifference:
    """Difference of two runs.

    Attributes:
        difference: first minus second, in the unit of what is compared.
        interval: of the difference; of this comparison alone, also where it is one of several.
        p_value: chance, 0 to 1, of a difference at least as large between runs that do not differ.
        test: name of the test.
        lower_is_better: as for leakage; False for accuracy.
    """

    difference: float
    interval: Interval
    p_value: float
    test: str
    lower_is_better: bool = True

    @property
    def verdict(self) -> Verdict:
        """Whether the first run is better than the second; follows the p-value."""
        if self.p_value >= 1 - self.interval.confidence or self.difference == 0:
            return "indistinguishable"
        return "better" if (self.difference < 0) == self.lower_is_better else "worse"


def compare_auc(
    first: MembershipScores, second: MembershipScores, bootstrap: Bootstrap = BOOTSTRAP
) -> PairedDifference | NotAvailable:
    """Paired bootstrap of the difference of two areas under the ROC curve, -1 to 1.

    Args:
        first: one run.
        second: the other run, with the same samples, clients and membership in any order.
        bootstrap: how to resample.
    """
    one, two = aligned(first, second)
    left, right = Ranking.of(one), Ranking.of(two)

    def difference(weights: Weights) -> Array:
        return left.auc(weights) - right.auc(weights)

    return _paired_bootstrap(roc_curve(one).auc - roc_curve(two).auc, difference, one, bootstrap)


def compare_tpr(
    first: MembershipScores, second: MembershipScores, target: float, bootstrap: Bootstrap = BOOTSTRAP
) -> PairedDifference | NotAvailable:
    """Paired bootstrap of the difference of two TPRs, -1 to 1, at one target FPR.

    Both thresholds are chosen anew in every resample. McNemar's test at the two observed thresholds takes them as
    given, and calls runs different that are not far more often than it says.

    Args:
        first: one run.
        second: the other run, with the same samples, clients and membership in any order.
        target: false positive rate, 0 to 1.
        bootstrap: how to resample.
    """
    one, two = aligned(first, second)
    before, after = tpr_at_fpr(roc_curve(one), target), tpr_at_fpr(roc_curve(two), target)
    if isinstance(before, NotAvailable):
        return before
    assert not isinstance(after, NotAvailable), "aligned runs have equally many non-members"
    left, right = Ranking.of(one), Ranking.of(two)

    def difference(weights: Weights) -> Array:
        return left.tpr(weights, target) - right.tpr(weights, target)

    return _paired_bootstrap(before.tpr - after.tpr, difference, one, bootstrap)


def compare_decisions(
    first: MembershipScores,
    second: MembershipScores,
    thresholds: tuple[float, float],
    rows: Literal["members", "all"] = "all",
    confidence: float = 0.95,
) -> PairedDifference:
    """McNemar's exact test of two decisions on the same samples, at thresholds that were not chosen on them.

    The interval is that of Bonett and Price (2012), which also stands where no decision differs.

    Args:
        first: one run.
        second: the other run, with the same samples, clients and membership in any order.
        thresholds: of the first and of the second run; scores >= threshold are called members.
        rows: compare the shares of correct decisions (accuracy) of all rows, or of members only (TPR); -1 to 1.
        confidence: between 0 and 1.
    """
    one, two = aligned(first, second)
    used = one.members if rows == "members" else np.ones_like(one.members)
    raise_all(confidence_problems(confidence))
    before = (called_members(one, thresholds[0]) == one.members)[used]
    after = (called_members(two, thresholds[1]) == two.members)[used]
    gained, lost, total = int((before & ~after).sum()), int((after & ~before).sum()), before.size
    p_value = float(stats.binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0
    interval = _paired_shares(gained, lost, total, confidence)
    return PairedDifference((gained - lost) / total, interval, p_value, "McNemar exact")


def aligned(first: MembershipScores, second: MembershipScores) -> tuple[MembershipScores, MembershipScores]:
    """Both runs with their rows ordered by client and sample; refused unless they audit the same rows."""
    one, two = (run.select(np.lexsort((run.samples, run.clients))) for run in (first, second))
    raise_all(_pairing_problems(one, two))
    return one, two


def _paired_bootstrap(
    difference: float, statistic: Callable[[Weights], Array], rows: MembershipScores, bootstrap: Bootstrap
) -> PairedDifference | NotAvailable:
    """Comparison from the resampled differences."""
    replicates = bootstrap.run(statistic, rows)
    if isinstance(replicates, NotAvailable):
        return replicates
    error, units, name = replicates.standard_error, replicates.units, "paired bootstrap"
    if replicates.constant:
        # No resample shows a spread: a sign test of as many pairs as there are units, and bounds for what was not seen.
        interval = bounded_interval(difference, replicates, bootstrap.confidence, -1.0, 1.0)
        return PairedDifference(difference, interval, 1.0 if difference == 0 else min(1.0, 2 * 0.5**units), name)
    reach = student_quantile(units, bootstrap.confidence) * error
    interval = Interval(max(-1.0, difference - reach), min(1.0, difference + reach), bootstrap.confidence)
    return PairedDifference(difference, interval, float(2 * stats.t.sf(abs(difference) / error, units - 1)), name)


def _paired_shares(gained: int, lost: int, total: int, confidence: float) -> Interval:
    """Interval of (gained - lost) / total, adjusted by one imagined change in each direction."""
    up, down = (gained + 1) / (total + 2), (lost + 1) / (total + 2)
    reach = normal_quantile(confidence) * math.sqrt((up + down - (up - down) ** 2) / (total + 2))
    return Interval(max(-1.0, up - down - reach), min(1.0, up - down + reach), confidence)


def _pairing_problems(one: MembershipScores, two: MembershipScores) -> Iterator[Problem]:
    """Why two ordered runs cannot be paired row by row."""
    same = one.samples.size == two.samples.size
    if not same or np.any(one.samples != two.samples) or np.any(one.clients != two.clients):
        yield Problem(
            "the two runs audit different samples or clients",
            "their scores cannot be paired",
            "attack both with the same audit set, or compare them over seeds",
        )
    elif changed := int(np.sum(one.members != two.members)):
        yield Problem(
            f"{changed} samples are members in one run only",
            "a difference could come from the samples",
            "train both runs with the same seed of membership, or compare them over seeds",
        )
