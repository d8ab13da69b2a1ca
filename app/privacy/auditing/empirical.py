"""Measured epsilon beside the claimed one: what canaries and attacks show, and what it says about a statement."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import special, stats

from app.metrics.intervals import clopper_pearson
from app.metrics.membership import Array, MembershipScores
from app.privacy.accounting import analytic_epsilon
from app.privacy.auditing.one_run import CONFIDENCE, epsilon_bound, mu_bound
from app.privacy.statements import PrivacyStatement

STRICT = 0.999
"""Confidence of a fit that refutes a claim: it may come close to the true epsilon, and should rarely exceed it."""

_FAR = 1e3
"""Distance of two Gaussians, in standard deviations, from which on the exact formula loses its digits."""

_QUANTILES = 101
"""Thresholds that are tried on the half of the scores on which one is chosen."""


@dataclass(frozen=True)
class GaussianFit:
    """Distance of the scores of inserted and other canaries in standard deviations, as if they were normal.

    A mechanism whose output is scored like that is mu-Gaussian differentially private (Dong et al. 2022) for no smaller
    mu. It is an estimate: nobody knows the far tails of the scores, on which a small delta rests.
    """

    mu: float  # 0 or more
    low: float  # lower confidence limit, 0 or more


@dataclass(frozen=True)
class MeasuredEpsilon:
    """What canaries show about epsilon at one delta; all at the confidence of `one_run`."""

    delta: float
    bound: float  # lower bound on epsilon, whatever the mechanism is
    gaussian_bound: float  # lower bound on epsilon where the mechanism is as private as a Gaussian one, by mu
    fitted: float  # estimate of epsilon from scores that are taken to be normal; NaN without a fit
    fitted_low: float  # its lower confidence limit; NaN without a fit
    fitted_least: float  # its lower limit at `STRICT` confidence, by which claims are judged; NaN without a fit
    mu: float  # estimated distance in standard deviations; NaN without a fit
    canaries: int
    inserted: int  # canaries that were inserted; of pairs, those whose first one was
    guessed: int  # guesses of the lower bound
    correct: int  # correct ones

    @property
    def most(self) -> float:
        """The largest lower bound that does not take scores to be normal."""
        return max(self.bound, self.gaussian_bound)


Verdict = Literal["consistent", "refuted", "refuted as a Gaussian mechanism", "refuted if scores are normal"]
"""What a measurement says about a claim: nothing against it, or that it is false, with or without an assumption."""


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Epsilon of a mu-Gaussian differentially private mechanism (Dong et al. 2022, corollary 2.13)."""
    if mu > _FAR:  # there the second term of the corollary has no weight, and no digits
        return float(mu * (mu / 2 - special.ndtri(delta)))
    return analytic_epsilon(1 / mu, delta) if mu > 0 else 0.0


def measured_epsilon(scores: ArrayLike, inserted: ArrayLike, delta: float) -> MeasuredEpsilon:
    """All measures of epsilon from one run's canaries; see `one_run.guesses` for the scores."""
    bound, mu = epsilon_bound(scores, inserted, delta), mu_bound(scores, inserted)
    fit, strict = gaussian_fit(scores, inserted), gaussian_fit(scores, inserted, STRICT)
    coins = np.asarray(inserted, dtype=bool)
    return MeasuredEpsilon(
        delta=delta,
        bound=bound.value,
        gaussian_bound=gaussian_epsilon(mu.value, delta),
        fitted=math.nan if fit is None else gaussian_epsilon(fit.mu, delta),
        fitted_low=math.nan if fit is None else gaussian_epsilon(fit.low, delta),
        fitted_least=math.nan if strict is None else gaussian_epsilon(strict.low, delta),
        mu=math.nan if fit is None else fit.mu,
        canaries=len(coins),
        inserted=int(coins.sum()),
        guessed=bound.guesses.made,
        correct=bound.guesses.correct,
    )


def gaussian_fit(scores: ArrayLike, inserted: ArrayLike, confidence: float = CONFIDENCE) -> GaussianFit | None:
    """The fit to scores of one common variance; None with fewer than two canaries of a kind, or without any spread.

    The lower limit joins one of the difference of the means and an upper one of the variance (Bonferroni).
    """
    values, coins = np.asarray(scores, dtype=np.float64), np.asarray(inserted, dtype=bool)
    present, absent = values[coins], values[~coins]
    if min(len(present), len(absent)) < 2:
        return None
    freedom, tail = len(values) - 2, (1 - confidence) / 2
    squares = float(((present - present.mean()) ** 2).sum() + ((absent - absent.mean()) ** 2).sum())
    if squares <= 0:
        return None
    distance, error = float(present.mean() - absent.mean()), math.sqrt(1 / len(present) + 1 / len(absent))
    low = distance / math.sqrt(squares / float(stats.chi2.ppf(tail, freedom))) - float(stats.norm.isf(tail)) * error
    return GaussianFit(max(0.0, distance / math.sqrt(squares / freedom)), max(0.0, low))


def rates_epsilon(
    true_positives: int,
    members: int,
    false_positives: int,
    nonmembers: int,
    delta: float = 0.0,
    confidence: float = CONFIDENCE,
) -> float:
    """Lower bound on epsilon, 0 or more, by Clopper-Pearson limits of TPR and FPR (Nasr et al. 2021).

    Trials must be independent, and the threshold fixed before they are seen.
    """
    tpr = clopper_pearson(true_positives, members, confidence).low
    fpr = clopper_pearson(false_positives, nonmembers, confidence).high
    ratios = ((tpr - delta, fpr), (1 - fpr - delta, 1 - tpr))
    return max([0.0, *(math.log(above / below) for above, below in ratios if above > 0 and below > 0)])


def attack_epsilon(scores: MembershipScores, delta: float, generator: np.random.Generator) -> float:
    """Lower bound on epsilon from an attack; its threshold is chosen on one half of the samples, judged on the other.

    It is an estimate: the samples of one run are taken to be independent trials, which they are not.
    """
    judged = np.zeros(len(scores.scores), dtype=bool)
    for kind in (scores.members, ~scores.members):
        rows = generator.permutation(np.flatnonzero(kind))
        judged[rows[len(rows) // 2 :]] = True
    seen, inside = scores.scores[~judged], scores.members[~judged]
    if not len(seen):
        return 0.0
    candidates = np.unique(np.quantile(seen, np.linspace(0, 1, _QUANTILES), method="nearest"))
    best = max(candidates.tolist(), key=lambda one: _epsilon_at(seen, inside, one, delta))
    return _epsilon_at(scores.scores[judged], scores.members[judged], best, delta)


def verdict_on(statement: PrivacyStatement, measured: MeasuredEpsilon) -> Verdict:
    """What was measured under a statement's unit and adjacency says about it."""
    if measured.bound > statement.epsilon:
        return "refuted"
    if measured.gaussian_bound > statement.epsilon:
        return "refuted as a Gaussian mechanism"
    return "refuted if scores are normal" if measured.fitted_least > statement.epsilon else "consistent"


def _epsilon_at(scores: Array, members: np.ndarray, threshold: float, delta: float) -> float:
    if members.all() or not members.any():
        return 0.0
    called = scores >= threshold
    true, false = int((called & members).sum()), int((called & ~members).sum())
    return rates_epsilon(true, int(members.sum()), false, int((~members).sum()), delta)
