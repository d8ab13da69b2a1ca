"""Lower bounds on epsilon from canaries that one run inserted by independent fair coins.

An adversary guesses of some canaries whether they were inserted, and abstains from the others; differential privacy
limits how many guesses are right. The bounds hold with the stated confidence for any scores. What one record means, and
whether a coin adds it or replaces it by another, is up to the coins: they must be those of the claim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, special, stats

CONFIDENCE = 0.95
"""Probability with which a bound does not exceed the true value."""

GUESSED = (1.0, 0.3, 0.1, 0.03)
"""Shares of the canaries that are guessed, fixed before any score is seen."""

_LARGEST = 100.0


@dataclass(frozen=True)
class Guesses:
    """Guesses of which canaries were inserted."""

    canaries: int  # inserted or not by independent fair coins, 1 or more
    made: int  # guesses, 1 to the number of canaries, whatever the scores are; the others are abstained from
    correct: int  # correct guesses


@dataclass(frozen=True)
class Bound:
    """A lower confidence bound, 0 or more, and the guesses that give it."""

    value: float
    guesses: Guesses


def guesses(scores: ArrayLike, inserted: ArrayLike, share: float) -> Guesses:
    """Guess the highest scores inserted and equally many of the lowest not; ties by the order of the canaries.

    Args:
        scores: one per canary, 2 or more, the higher the more likely inserted; from what was released, without the
            coins.
        inserted: whether it was, by an independent fair coin; of a pair, whether it was the first one.
        share: of the canaries, in (0, 1], that are guessed; at least one as inserted and one as not.
    """
    values, coins = np.asarray(scores, dtype=np.float64), np.asarray(inserted, dtype=bool)
    order = np.argsort(values, kind="stable")
    half = max(1, round(share * (len(coins) // 2)))
    correct = int((~coins[order[:half]]).sum() + coins[order[-half:]].sum())
    return Guesses(len(coins), 2 * half, correct)


def epsilon_bound(scores: ArrayLike, inserted: ArrayLike, delta: float = 0.0, confidence: float = CONFIDENCE) -> Bound:
    """Bound on epsilon at a delta in [0, 1), whatever the mechanism is (Steinke, Nasr and Jagielski 2023).

    Numbers of guesses share the confidence (Bonferroni), and the best of them counts; see `guesses`.
    """
    return _best(scores, inserted, confidence, lambda made, tail: refuted_epsilon(made, delta, tail))


def mu_bound(scores: ArrayLike, inserted: ArrayLike, confidence: float = CONFIDENCE) -> Bound:
    """Bound on mu where the mechanism is as private as a Gaussian one (Mahloujifar, Melis and Chaudhuri 2024).

    Scores may have any distribution. `gaussian_epsilon` turns mu into epsilon, also at a delta too small for
    `epsilon_bound`.
    """
    return _best(scores, inserted, confidence, refuted_mu)


def _best(
    scores: ArrayLike, inserted: ArrayLike, confidence: float, refuted: Callable[[Guesses, float], float]
) -> Bound:
    tail = (1 - confidence) / len(GUESSED)
    tried = [guesses(scores, inserted, share) for share in GUESSED]
    return max((Bound(refuted(made, tail), made) for made in tried), key=lambda bound: bound.value)


def refuted_epsilon(made: Guesses, delta: float, tail: float) -> float:
    """Largest epsilon under which so many correct guesses have a probability of at most `tail`; 0 where there is none.

    The bound says nothing where delta reaches 1 / (2 canaries).
    """
    if 2 * made.canaries * delta >= 1 or p_value(made, 0.0, delta) >= tail:
        return 0.0
    return float(optimize.brentq(lambda one: p_value(made, one, delta) - tail, 0.0, _LARGEST, xtol=1e-9))


def p_value(made: Guesses, epsilon: float, delta: float) -> float:
    """Largest probability of so many correct guesses under (epsilon, delta) (Steinke et al., theorem 5.2)."""
    right = special.expit(epsilon)  # how often randomised response is right
    at_least = float(stats.binom.sf(made.correct - 1, made.made, right))
    if delta == 0 or made.correct == 0:
        return at_least
    fewer = np.cumsum(stats.binom.pmf(np.arange(made.correct - 1, -1, -1), made.made, right))
    steepest = float(np.max(fewer / np.arange(1, made.correct + 1)))
    return min(1.0, at_least + 2 * made.canaries * delta * steepest)


def refuted_mu(made: Guesses, tail: float) -> float:
    """Largest mu of Gaussian differential privacy under which so many correct guesses have a probability below `tail`.

    Let p(j) be the probability of j correct guesses out of r, with m canaries and v observed ones. Turning the coin of
    one guess makes it wrong and leaves the release likely, so for every j, with A the sum of i p(i) over i >= j and R
    that of (r - i) p(i) over i >= j - 1, A / m <= F(R / m) for F(x) = Phi(Phi^-1(x) + mu). If the tail p(>= v) had the
    probability `tail`, all smaller counts would need so much of it that more than 1 were needed in total.
    """
    if not _needs_too_much(made, 0.0, tail):
        return 0.0
    low, high = 0.0, 1.0
    while _needs_too_much(made, high, tail):
        low, high = high, 2 * high
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if _needs_too_much(made, middle, tail) else (low, middle)
    return low


def _needs_too_much(made: Guesses, mu: float, tail: float) -> bool:
    """Whether so many correct guesses cannot have a probability of `tail` under mu."""
    return any(total > 1 for total in _least_totals(made, mu, tail))


def _least_totals(made: Guesses, mu: float, tail: float) -> Iterator[float]:
    """Least probability of j or more correct guesses, for ever smaller j."""
    right, wrong, total = made.correct * tail, (made.made - made.correct) * tail, tail
    for count in range(made.correct - 1, -1, -1):
        needed = made.canaries * float(special.ndtr(special.ndtri(right / made.canaries) - mu)) - wrong
        if needed > 0:
            own = needed / (made.made - count)
            right, wrong, total = right + count * own, wrong + needed, total + own
            yield total
