"""Correlations over clients, with bootstrap intervals: of data size and leakage, and of two attacks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from app.common.errors import Problem, raise_all
from app.common.seeding import numpy_generator
from app.metrics.bootstrap import BOOTSTRAP, LOST, Bootstrap, Replicates
from app.metrics.intervals import Estimate, bounded_interval
from app.metrics.membership import Array, NotAvailable

FEWEST_CLIENTS = 5
"""Smallest number of clients for which a correlation is reported."""

DIGITS = 12
"""Decimal places kept of a correlation, so that a perfect one is exactly 1 in every resample."""


@dataclass(frozen=True)
class SizeCorrelation:
    """Correlation of data size and leakage over clients; negative where small clients leak more."""

    pearson: Estimate  # of log10 size and leakage, -1 to 1
    spearman: Estimate  # of the ranks of size and leakage, -1 to 1
    clients: int  # number of clients used, 5 or more
    dropped: int  # number of clients left out as too small or without a value


def size_correlation(
    sizes: Sequence[int], leakage: Sequence[float], smallest_size: int = 1, bootstrap: Bootstrap = BOOTSTRAP
) -> SizeCorrelation | NotAvailable:
    """Pearson and Spearman correlation over clients, with intervals from a bootstrap of the clients.

    Args:
        sizes: training samples per client, 1 or more.
        leakage: one metric of every client in the same order, in any unit; clients with NaN are left out.
        smallest_size: leave out clients with fewer samples, 1 or more.
        bootstrap: settings; the unit is always the client.
    """
    raise_all(_problems(sizes, leakage))
    samples, values = np.asarray(sizes, dtype=np.float64), np.asarray(leakage, dtype=np.float64)
    used = (samples >= smallest_size) & ~np.isnan(values)
    size, value = np.log10(samples[used]), values[used]
    if size.size >= FEWEST_CLIENTS and (np.ptp(size) == 0 or np.ptp(value) == 0):
        return NotAvailable("all clients have the same " + ("size" if np.ptp(size) == 0 else "leakage"))
    pearson = value_correlation(size, value, bootstrap)
    if isinstance(pearson, NotAvailable):
        return pearson
    rows = _resamples(size.size, bootstrap)
    ranked = pearson_rows(stats.rankdata(size), stats.rankdata(value))
    resampled = pearson_rows(stats.rankdata(size[rows], axis=1), stats.rankdata(value[rows], axis=1))
    spearman = _estimate(ranked, resampled, size.size, bootstrap)
    return SizeCorrelation(pearson, spearman, size.size, len(sizes) - size.size)


def value_correlation(first: Array, second: Array, bootstrap: Bootstrap = BOOTSTRAP) -> Estimate | NotAvailable:
    """Pearson correlation of two finite values of each client, with an interval from a bootstrap of the clients."""
    if first.size < FEWEST_CLIENTS:
        return NotAvailable(f"a correlation needs at least {FEWEST_CLIENTS} clients, there are {first.size}")
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return NotAvailable("one of the two values is the same for all clients")
    rows = _resamples(first.size, bootstrap)
    return _estimate(pearson_rows(first, second), pearson_rows(first[rows], second[rows]), first.size, bootstrap)


def _resamples(clients: int, bootstrap: Bootstrap) -> NDArray[np.int64]:
    """(resamples, clients) positions, the same for every correlation of as many clients."""
    return numpy_generator(bootstrap.seed, "bootstrap").integers(0, clients, (bootstrap.resamples, clients))


def pearson_rows(first: Array, second: Array) -> Array:
    """Pearson correlation, -1 to 1, along the last axis; NaN where one of the two is constant."""
    one, two = (values - values.mean(axis=-1, keepdims=True) for values in (first, second))
    constant = (np.ptp(first, axis=-1) == 0) | (np.ptp(second, axis=-1) == 0)
    scale = np.sqrt(np.sum(one**2, axis=-1) * np.sum(two**2, axis=-1))
    ratio = np.sum(one * two, axis=-1) / np.where(constant, 1.0, scale)
    return np.where(constant, math.nan, np.round(np.clip(ratio, -1.0, 1.0), DIGITS))


def _estimate(value: Array, resampled: Array, clients: int, bootstrap: Bootstrap) -> Estimate:
    defined = resampled[~np.isnan(resampled)]
    if defined.size < (1 - LOST) * resampled.size:
        return Estimate(float(value), NotAvailable("too many resamples of the clients do not vary"))
    interval = bounded_interval(float(value), Replicates(defined, clients), bootstrap.confidence, -1.0, 1.0)
    return Estimate(float(value), interval)


def _problems(sizes: Sequence[int], leakage: Sequence[float]) -> Iterator[Problem]:
    if len(sizes) != len(leakage):
        cause = f"{len(sizes)} sizes and {len(leakage)} values of leakage"
        yield Problem(cause, "they cannot be paired", "give one of each per client")
    if any(size < 1 for size in sizes):
        yield Problem("some clients have no data", "their size has no logarithm", "leave them out")
    if any(math.isinf(value) for value in leakage):
        yield Problem("some leakage is infinite", "it has no mean", "use a bounded metric such as the AUC")
