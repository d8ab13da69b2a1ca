"""Paired differences over few seeds: the variance of every row is moderated by those of all others (Smyth 2004).

Three seeds tell little about how much one row varies, but all rows of a table together tell how much rows vary at all.
Results are fitted by row and seed effects, since seeds change all rows alike. The variance of what is left of a row is
drawn towards the common one, as far as the variances of all rows agree, and the test gains the degrees of freedom of
what it is drawn to.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy import special, stats

from app.metrics.intervals import Interval


@dataclass(frozen=True)
class Effect:
    """Mean difference of two rows over their common seeds, in the unit of the results."""

    mean: float  # first minus second
    interval: Interval  # not corrected for multiple comparisons; infinite where nothing is known of the variance
    p_value: float  # two-sided, of no difference; NaN where nothing is known of the variance
    seeds: int  # that both rows have

    @property
    def lower(self) -> bool:
        """Whether the first row's results are lower, beyond chance."""
        return self.interval.high < 0

    @property
    def higher(self) -> bool:
        """Whether the first row's results are higher, beyond chance."""
        return self.interval.low > 0


@dataclass(frozen=True)
class Spread:
    """Variance of a row's results around row and seed effects, with its degrees of freedom."""

    variance: float
    freedom: float


def _effect(
    first: Mapping[int, float], second: Mapping[int, float], spreads: tuple[Spread, Spread] | None, most: float
) -> Effect | None:
    """Effect of one row against another; None where they share no seed.

    Args:
        first: results by seed.
        second: results by seed.
        spreads: moderated variances of the two rows; None where they are not known.
        most: degrees of freedom that the table has in all.
    """
    seeds = sorted(first.keys() & second.keys())
    if not seeds:
        return None
    mean = float(np.mean([first[seed] - second[seed] for seed in seeds]))
    parts = [spread.variance / len(seeds) for spread in spreads or ()]
    if spreads is None or sum(parts) == 0:
        return Effect(mean, Interval(-math.inf, math.inf), math.nan, len(seeds))
    # Satterthwaite's degrees of freedom of a sum of two variances
    uncertain = sum(part**2 / spread.freedom for part, spread in zip(parts, spreads, strict=True))
    freedom, error = min(sum(parts) ** 2 / uncertain if uncertain else math.inf, most), math.sqrt(sum(parts))
    reach = float(stats.t.ppf(0.975, freedom)) * error
    return Effect(
        mean, Interval(mean - reach, mean + reach), float(2 * stats.t.sf(abs(mean) / error, freedom)), len(seeds)
    )


def moderated_effects(
    rows: Mapping[str, Mapping[int, float]], against: Mapping[str, str], low: float = -math.inf, high: float = math.inf
) -> dict[str, Effect]:
    """Effects by name of the row, with intervals of 95 %.

    Args:
        rows: results by seed of all rows, which lend each other their variance.
        against: name of the row that each row is compared with.
        low: smallest possible difference, to which intervals are cut.
        high: largest possible difference.
    """
    own = {name: spread for name, spread in _own_spreads(rows).items() if spread.freedom > 0}
    known = [spread for spread in own.values() if spread.variance > 0]  # where it is 0, seeds did not change the row
    prior = _prior(known) if known else None
    spreads = {} if prior is None else {name: _drawn(spread, prior) for name, spread in own.items()}
    most = sum(spread.freedom for spread in own.values())
    effects = {}
    for name, other in against.items():
        both = (spreads[name], spreads[other]) if name in spreads and other in spreads else None
        effect = _effect(rows[name], rows[other], both, most)
        if effect is not None:
            bounds = Interval(max(low, effect.interval.low), min(high, effect.interval.high))
            effects[name] = Effect(effect.mean, bounds, effect.p_value, effect.seeds)
    return effects


def _own_spreads(rows: Mapping[str, Mapping[int, float]]) -> dict[str, Spread]:
    """Variances of the rows' residuals, each from its own results; rows share the degrees of freedom of the seeds."""
    names, seeds = list(rows), sorted({seed for row in rows.values() for seed in row})
    if len(names) < 2:
        return {}
    results = [(at, seeds.index(seed), value) for at, name in enumerate(names) for seed, value in rows[name].items()]
    design = np.zeros((len(results), len(names) + len(seeds)))
    for place, (row, seed, _) in enumerate(results):
        design[place, [row, len(names) + seed]] = 1
    values = np.array([value for *_, value in results])
    residuals = values - design @ np.linalg.lstsq(design, values, rcond=None)[0]
    residuals[np.abs(residuals) <= 1e-12 * np.abs(values).max(initial=0.0)] = 0.0  # rounding errors
    share, squares = (len(names) - 1) / len(names), np.zeros(len(names))
    np.add.at(squares, [row for row, *_ in results], residuals**2)
    freedom = [share * (len(rows[name]) - 1) for name in names]
    return {
        name: Spread(float(square) / degrees if degrees else 0.0, degrees)
        for name, square, degrees in zip(names, squares, freedom, strict=True)
    }


def _prior(spreads: list[Spread]) -> Spread:
    """The common variance and its degrees of freedom (section 6.2): infinitely many where the variances agree."""
    variances, freedom = (np.array([getattr(one, part) for one in spreads]) for part in ("variance", "freedom"))
    if len(spreads) == 1:
        return Spread(float(variances[0]), 0.0)
    logs = np.log(variances) - special.digamma(freedom / 2) + np.log(freedom / 2)
    excess = float(logs.var(ddof=1) - special.polygamma(1, freedom / 2).mean())
    if excess <= 0:
        return Spread(float(freedom @ variances / freedom.sum()), math.inf)
    degrees = 2 * _inverse_trigamma(excess)
    return Spread(math.exp(float(logs.mean() + special.digamma(degrees / 2)) - math.log(degrees / 2)), degrees)


def _drawn(own: Spread, prior: Spread) -> Spread:
    """A variance drawn towards the common one by the degrees of freedom of both."""
    if math.isinf(prior.freedom):
        return prior
    together = own.freedom + prior.freedom
    return Spread((own.freedom * own.variance + prior.freedom * prior.variance) / together, together)


def _inverse_trigamma(value: float) -> float:
    """The x > 0 with trigamma(x) = value > 0, by Newton's method (the appendix)."""
    x = 0.5 + 1 / value
    for _ in range(50):
        trigamma = float(special.polygamma(1, x))
        step = trigamma * (1 - trigamma / value) / float(special.polygamma(2, x))
        x += step
        if -step / x < 1e-10:
            break
    return x
