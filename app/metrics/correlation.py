"""Whether clients with little data leak more."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from app.errors import Problem, raise_all
from app.metrics.bootstrap import BOOTSTRAP, LOST, Bootstrap, Replicates
from app.metrics.intervals import Estimate, bounded_interval
from app.metrics.membership import Array, NotAvailable
from app.seeding import numpy_generator

FEWEST_CLIENTS = 5
"""Clients below which a correlation says nothing."""

DIGITS = 12
"""Decimal places kept of a correlation, so that rounding does not make a perfect one look uncertain."""


@dataclass(frozen=True)
class SizeCorrelation:
    """How leakage goes with the size of a client's data; negative where small clients leak more.

    Attributes:
        pearson: of log10 size and leakage, -1 to 1.
        spearman: of the ranks of size and leakage, -1 to 1.
        clients: clients it is computed from, 5 or more.
        dropped: clients left out as too small or without a value.
    """

    pearson: Estimate
    spearman: Estimate
    clients: int
    dropped: int


def size_correlation(
    sizes: Sequence[int], leakage: Sequence[float], smallest_size: int = 1, bootstrap: Bootstrap = BOOTSTRAP
) -> SizeCorrelation | NotAvailable:
    """Correlation of data size and leakage over clients, with intervals from resampling the clients.

    Args:
        sizes: training samples per client, 1 or more.
        leakage: a metric per client in the same order, in any unit; clients with NaN are left out.
        smallest_size: leave out clients with fewer samples, 1 or more.
        bootstrap: how to resample; its unit is always the client.
    """
    raise_all(_problems(sizes, leakage))
    every, values = np.asarray(sizes, dtype=np.float64), np.asarray(leakage, dtype=np.float64)
    used = (every >= smallest_size) & ~np.isnan(values)
    size, value = np.log10(every[used]), values[used]
    if size.size < FEWEST_CLIENTS:
        return NotAvailable(f"a correlation needs at least {FEWEST_CLIENTS} clients, there are {size.size}")
    if np.ptp(size) == 0 or np.ptp(value) == 0:
        return NotAvailable("all clients have the same " + ("size" if np.ptp(size) == 0 else "leakage"))
    rows = numpy_generator(bootstrap.seed, "bootstrap").integers(0, size.size, (bootstrap.resamples, size.size))
    pearson = _estimate(pearson_rows(size, value), pearson_rows(size[rows], value[rows]), size.size, bootstrap)
    ranked = pearson_rows(stats.rankdata(size), stats.rankdata(value))
    again = pearson_rows(stats.rankdata(size[rows], axis=1), stats.rankdata(value[rows], axis=1))
    spearman = _estimate(ranked, again, size.size, bootstrap)
    return SizeCorrelation(pearson, spearman, size.size, len(sizes) - size.size)


def pearson_rows(first: Array, second: Array) -> Array:
    """Pearson correlation, -1 to 1, along the last axis; NaN where one of the two does not vary."""
    one, two = (values - values.mean(axis=-1, keepdims=True) for values in (first, second))
    constant = (np.ptp(first, axis=-1) == 0) | (np.ptp(second, axis=-1) == 0)
    scale = np.sqrt(np.sum(one**2, axis=-1) * np.sum(two**2, axis=-1))
    ratio = np.sum(one * two, axis=-1) / np.where(constant, 1.0, scale)
    return np.where(constant, math.nan, np.round(np.clip(ratio, -1.0, 1.0), DIGITS))


def _estimate(value: Array, resampled: Array, clients: int, bootstrap: Bootstrap) -> Estimate:
    """A correlation with its interval."""
    defined = resampled[~np.isnan(resampled)]
    if defined.size < (1 - LOST) * resampled.size:
        return Estimate(float(value), NotAvailable("too many resamples of the clients do not vary"))
    interval = bounded_interval(float(value), Replicates(defined, clients), bootstrap.confidence, -1.0, 1.0)
    return Estimate(float(value), interval)


def _problems(sizes: Sequence[int], leakage: Sequence[float]) -> Iterator[Problem]:
    """Why sizes and leakage cannot be correlated."""
    if len(sizes) != len(leakage):
        cause = f"{len(sizes)} sizes and {len(leakage)} values of leakage"
        yield Problem(cause, "they cannot be paired", "give one of each per client")
    if any(size < 1 for size in sizes):
        yield Problem("some clients have no data", "their size has no logarithm", "leave them out")
    if any(math.isinf(value) for value in leakage):
        yield Problem("some leakage is infinite", "it has no mean", "use a bounded metric such as the AUC")
