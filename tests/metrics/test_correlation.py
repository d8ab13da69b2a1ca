"""Correlation of data size and leakage against scipy and known answers."""

import math

import numpy as np
import pytest
from scipy import stats

from app.common.errors import UserError
from app.common.seeding import numpy_generator
from app.metrics.bootstrap import Bootstrap, Replicates
from app.metrics.correlation import pearson_rows, size_correlation, value_correlation
from app.metrics.intervals import bounded_interval
from app.metrics.membership import NotAvailable

FAST = Bootstrap(resamples=300)
SIZES = [60, 120, 250, 490, 900, 1700, 3300, 6100]
LEAKAGE = [0.31, 0.35, 0.22, 0.26, 0.17, 0.19, 0.08, 0.11]


def test_agrees_with_scipy():
    """Pearson on log10 of the size, Spearman on ranks; small clients leak more here."""
    found = size_correlation(SIZES, LEAKAGE, bootstrap=FAST)
    assert found.pearson.value == pytest.approx(stats.pearsonr(np.log10(SIZES), LEAKAGE).statistic)
    assert found.spearman.value == pytest.approx(stats.spearmanr(SIZES, LEAKAGE).statistic)
    assert found.pearson.interval.high < 0
    assert (found.clients, found.dropped) == (8, 0)


def test_small_clients_and_missing_values_are_left_out():
    """As in the published study, which drops clients with fewer than 400 samples."""
    found = size_correlation([*SIZES, 5000, 400], [*LEAKAGE, math.nan, 0.2], smallest_size=400, bootstrap=FAST)
    assert (found.clients, found.dropped) == (6, 4)
    kept = [(size, leak) for size, leak in zip([*SIZES, 400], [*LEAKAGE, 0.2], strict=True) if size >= 400]
    assert found.pearson.value == pytest.approx(stats.pearsonr(*np.log10(kept).T[:1], [b for _, b in kept]).statistic)


def test_resampled_correlations_agree_with_scipy():
    """Row by row, ties included."""
    rng = np.random.default_rng(0)
    first, second = rng.integers(0, 5, (2, 20, 8)).astype(float)
    expected = [stats.pearsonr(a, b).statistic for a, b in zip(first, second, strict=True)]
    np.testing.assert_allclose(pearson_rows(first, second), expected, atol=1e-11)
    assert math.isnan(pearson_rows(np.ones(4), np.arange(4.0)))


def test_interval_comes_from_resampled_clients():
    """Size and leakage of a client are drawn together, and ranked anew in every resample."""
    found = size_correlation(SIZES, LEAKAGE, bootstrap=FAST)
    rows = numpy_generator(FAST.seed, "bootstrap").integers(0, 8, (FAST.resamples, 8))
    size, leak = np.log10(SIZES)[rows], np.array(LEAKAGE)[rows]
    for estimate, reference in ((found.pearson, stats.pearsonr), (found.spearman, stats.spearmanr)):
        values = np.array([reference(a, b).statistic for a, b in zip(size, leak, strict=True)])
        expected = bounded_interval(estimate.value, Replicates(values, 8), 0.95, -1.0, 1.0)
        assert (estimate.interval.low, estimate.interval.high) == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize(("truth", "clients"), [(0.0, 10), (-0.7, 10), (-0.7, 40)])
def test_interval_covers(truth, clients):
    """At least about as often as it says, also with ten clients."""
    rng = np.random.default_rng(6)
    covered = []
    for _ in range(150):
        size = rng.normal(size=clients)
        leak = truth * size + math.sqrt(1 - truth**2) * rng.normal(size=clients)
        found = size_correlation((10 ** (size + 6)).astype(int).tolist(), leak.tolist(), bootstrap=FAST)
        covered.append(found.pearson.interval.contains(truth))
    assert np.mean(covered) >= 0.91


def test_perfect_order_is_not_certainty():
    """Five clients in perfect order: -1, with an interval that says how little that is."""
    found = size_correlation([10, 100, 1000, 10_000, 100_000], [0.5, 0.4, 0.3, 0.2, 0.1], bootstrap=FAST)
    for estimate in (found.pearson, found.spearman):
        assert estimate.value == pytest.approx(-1)
        assert estimate.interval.low == pytest.approx(-1)
        assert estimate.interval.high == pytest.approx(-1 + 2 * (1 - 0.025**0.2))


def test_what_cannot_be_correlated():
    """Too few clients, or nothing that varies."""
    assert "at least 5 clients, there are 4" in size_correlation(SIZES[:4], LEAKAGE[:4]).reason
    assert "same size" in size_correlation([100] * 6, LEAKAGE[:6]).reason
    assert "same leakage" in size_correlation(SIZES, [0.5] * 8).reason
    assert isinstance(size_correlation(SIZES, LEAKAGE, smallest_size=5000), NotAvailable)


def test_impossible_input():
    """All at once."""
    with pytest.raises(UserError) as error:
        size_correlation([0, 10], [math.inf])
    assert len(error.value.problems) == 3


def test_two_values_of_every_client():
    """SciPy's coefficient, with the interval of the same resamples as for sizes."""
    first, second = np.log10(SIZES), np.array(LEAKAGE)
    found = value_correlation(first, second, FAST)
    assert found.value == pytest.approx(stats.pearsonr(first, second).statistic)
    assert found.interval == size_correlation(SIZES, LEAKAGE, bootstrap=FAST).pearson.interval
    assert "at least 5 clients" in value_correlation(first[:4], second[:4]).reason
    assert "the same for all clients" in value_correlation(first, np.zeros(8)).reason
