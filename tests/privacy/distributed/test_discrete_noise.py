"""Integer noise: the stated distributions, alone and in sums, to the stated precision."""

import mpmath
import numpy as np
import pytest
from scipy.signal import fftconvolve
from scipy.special import ive
from scipy.stats import chisquare, poisson

from app.privacy.distributed.discrete_noise import NoiseTable, noise_table
from app.privacy.noise import NoiseStream

MECHANISMS = ("gaussian", "skellam")
DRAWS = 100_000


def exact(mechanism, variance, reach):
    """Probabilities (2 reach + 1) of -reach..reach in floating point, from their definitions."""
    k = np.abs(np.arange(-reach, reach + 1))
    weights = np.exp(-(k**2) / (2 * variance)) if mechanism == "gaussian" else ive(k, variance)
    return weights / weights.sum()


def p_value(numbers, probabilities):
    """Chi-square test of integers against probabilities of -reach..reach; rare integers are pooled."""
    reach = len(probabilities) // 2
    assert np.abs(numbers).max() <= reach
    counts, expected = np.bincount(numbers + reach, minlength=2 * reach + 1), probabilities * len(numbers)
    often = expected > 10
    pooled = [np.append(values[often], values[~often].sum()) for values in (counts, expected)]
    if pooled[1][-1] < 1:
        pooled = [values[:-1] for values in pooled]
    return chisquare(pooled[0], pooled[1] * pooled[0].sum() / pooled[1].sum()).pvalue


def drawn(mechanism, variance, count=DRAWS, key=0):
    """Numbers of a fixed key."""
    return noise_table(mechanism, variance).draw(NoiseStream(bytes([key]) * 32), count)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("variance", [0.1, 1.0, 30.25, 2500.0])
def test_numbers_have_the_stated_distribution(mechanism, variance):
    """And the test can tell it from one with a tenth more variance."""
    numbers, reach = drawn(mechanism, variance), int(12 * variance**0.5) + 12
    assert p_value(numbers, exact(mechanism, variance, reach)) > 1e-3
    assert p_value(numbers, exact(mechanism, 1.1 * variance, reach)) < 1e-6


def test_the_two_distributions_are_told_apart():
    """At a variance of 1 they differ."""
    assert p_value(drawn("skellam", 1.0), exact("gaussian", 1.0, 30)) < 1e-6


def test_skellam_is_a_difference_of_poisson_numbers():
    """Cumulative probabilities against the convolution of two Poisson distributions."""
    table, k = noise_table("skellam", 5.0), np.arange(80)
    difference = np.convolve(poisson.pmf(k, 2.5), poisson.pmf(k, 2.5)[::-1])
    places = np.arange(table.lowest, 1 - table.lowest - 1) + 79
    upto = np.cumsum(difference)[places.clip(0)]
    np.testing.assert_allclose((table.high / 2.0**64)[places >= 0], upto[places >= 0], atol=1e-13)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_sums_over_clients_have_the_stated_distribution(mechanism):
    """Seven clients: Skellam with seven times the variance, discrete Gaussians by convolution."""
    total = sum(drawn(mechanism, 2.3, key=client) for client in range(7))
    one = exact(mechanism, 2.3, 20)
    together = one
    for _ in range(6):
        together = fftconvolve(together, one).clip(0)
    assert p_value(total, together) > 1e-3
    if mechanism == "skellam":
        assert p_value(total, exact(mechanism, 7 * 2.3, 60)) > 1e-3
    assert np.corrcoef(drawn(mechanism, 2.3), drawn(mechanism, 2.3, key=1))[0, 1] == pytest.approx(0, abs=0.02)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("variance", [0.01, 7.0, 90_000.0])
def test_cumulative_probabilities_are_right_to_the_stated_precision(mechanism, variance):
    """To 2^-110 against mpmath: theta functions and Bessel functions with 60 digits."""
    table = noise_table(mechanism, variance)
    with mpmath.workdps(60):
        v = mpmath.mpf(variance)
        if mechanism == "gaussian":
            none = 1 / mpmath.jtheta(3, 0, mpmath.exp(-1 / (2 * v)))
        else:
            none = mpmath.exp(-v) * mpmath.besseli(0, v)
        below = (1 - none) / 2  # the probability of a negative number
        place = -1 - table.lowest
        found = mpmath.mpf((int(table.high[place]) << 64) + int(table.low[place])) / 2**128
        assert abs(found - below) < mpmath.mpf(2) ** -110


def test_lower_halves_decide_where_upper_halves_are_equal():
    """A table whose ends share their upper half: 2^64 times too rare to be seen in draws."""
    ends = np.array([7, 7, 7, 9], dtype=np.uint64)
    table = NoiseTable(-2, ends, np.array([1, 5, 8, 0], dtype=np.uint64))
    high, low = (np.array(words, dtype=np.uint64) for words in ([6, 7, 7, 7, 7, 7, 8, 9], [9, 0, 1, 4, 5, 8, 0, 0]))
    assert table.find(high, low).tolist() == [-2, -2, -1, -1, 0, 1, 1, 2]
    top = np.array([2**64 - 1], dtype=np.uint64)
    assert table.find(top, top).tolist() == [2]


def test_keys_decide():
    """The same numbers from the same key, others from another one."""
    assert np.array_equal(drawn("gaussian", 9.0, 50), drawn("gaussian", 9.0, 50))
    assert not np.array_equal(drawn("gaussian", 9.0, 50), drawn("gaussian", 9.0, 50, key=1))


def test_impossible_variances_are_refused():
    """None, and one whose table would not fit."""
    for variance in (0.0, 1e10):
        with pytest.raises(ValueError, match="variance"):
            noise_table("gaussian", variance)
