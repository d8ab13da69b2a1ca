"""Comparisons over seeds against scipy, and the correction for several of them."""

import numpy as np
import pytest
from scipy import stats

from app.errors import UserError
from app.metrics.membership import NotAvailable
from app.metrics.repetitions import compare_over_seeds, holm, rank_over_seeds

TESTS = pytest.mark.parametrize("compare", [compare_over_seeds, rank_over_seeds])


def runs(seeds, gain=0.0, seed=0, noise=0.02):
    """Results of two runs by seed, the first larger by a gain; seeds have a common part."""
    rng = np.random.default_rng(seed)
    common, own = rng.normal(0.6, 0.1, seeds), rng.normal(0, noise, (2, seeds))
    return [dict(enumerate((common + own[k] + gain * (k == 0)).tolist())) for k in (0, 1)]


@pytest.mark.parametrize("seeds", [3, 5, 12])
def test_paired_t_agrees_with_scipy(seeds):
    """Difference, interval and p-value."""
    first, second = runs(seeds, 0.02)
    ours = compare_over_seeds(first, second)
    theirs = stats.ttest_rel(list(first.values()), list(second.values()))
    assert ours.p_value == pytest.approx(theirs.pvalue, rel=1e-6)
    assert ours.difference == pytest.approx(np.mean(list(first.values())) - np.mean(list(second.values())))
    interval = theirs.confidence_interval(0.95)
    assert (ours.interval.low, ours.interval.high) == pytest.approx((interval.low, interval.high))


@pytest.mark.parametrize("seeds", [6, 9, 25])
@pytest.mark.parametrize("gain", [0.0, 0.01])
def test_wilcoxon_agrees_with_scipy(seeds, gain):
    """The exact p-value without ties."""
    first, second = runs(seeds, gain, seed=seeds)
    theirs = stats.wilcoxon(list(first.values()), list(second.values()), method="exact")
    assert rank_over_seeds(first, second).p_value == pytest.approx(theirs.pvalue, rel=1e-9)


def test_wilcoxon_with_ties_counts_every_sign():
    """All 2^n sign patterns of the observed ranks, differences of 0 left out."""
    changes = [0.3, 0.1, 0.1, -0.1, 0.2, 0.0, 0.3, 0.2]
    first = {seed: 0.5 + change for seed, change in enumerate(changes)}
    ours = rank_over_seeds(first, dict.fromkeys(first, 0.5))
    ranks = stats.rankdata(np.abs([round(change, 6) for change in changes if change]))
    signs = (np.arange(2**7)[:, None] >> np.arange(7)) & 1
    sums = signs @ ranks
    observed = ranks[[change > 0 for change in changes if change]].sum()
    tail = np.mean(sums >= observed)
    assert ours.p_value == pytest.approx(2 * tail)


@pytest.mark.parametrize("seeds", [6, 8])
def test_wilcoxon_interval_holds_what_the_test_does_not_reject(seeds):
    """Just inside each end the test keeps the shift, just outside it rejects it."""
    first, second = runs(seeds, 0.03, seed=1)
    interval = rank_over_seeds(first, second).interval
    for end, outward in ((interval.low, -1), (interval.high, 1)):
        for step, kept in ((-1e-6, True), (1e-6, False)):
            moved = {seed: value + end + outward * step for seed, value in second.items()}
            assert (rank_over_seeds(first, moved).p_value >= 0.05) == kept
    assert interval.low < rank_over_seeds(first, second).difference < interval.high


@TESTS
def test_chance_and_difference(compare):
    """Equal runs differ in 5 % of the cases, unequal ones are found, and the interval covers."""
    equal = [compare(*runs(8, 0.0, seed)) for seed in range(200)]
    assert np.mean([one.verdict != "indistinguishable" for one in equal]) <= 0.09
    assert np.mean([one.interval.contains(0) for one in equal]) >= 0.91
    unequal = [compare(*runs(8, 0.06, seed)) for seed in range(50)]
    assert np.mean([one.verdict == "worse" for one in unequal]) > 0.9
    assert compare(*runs(8, 0.06), lower_is_better=False).verdict == "better"


def test_pairing_by_seed_matters():
    """What all runs of a seed share does not blur the difference; the order of the seeds does not matter."""
    first, second = runs(6, 0.03, noise=0.005)
    assert compare_over_seeds(first, second).verdict == "worse"
    assert stats.ttest_ind(list(first.values()), list(second.values())).pvalue > 0.05
    backwards = dict(reversed(second.items()))
    assert compare_over_seeds(first, backwards) == compare_over_seeds(first, second)


def test_too_few_seeds():
    """No outcome of 5 seeds is significant by ranks, and 2 show no spread worth the name."""
    assert "needs 6 seeds, there are 5" in rank_over_seeds(*runs(5)).reason
    assert "needs 5 seeds" in rank_over_seeds(*runs(4), confidence=0.9).reason
    assert "at least 3 seeds, there are 2" in compare_over_seeds(*runs(2)).reason
    shifted = rank_over_seeds({seed: 1.0 + seed for seed in range(6)}, dict.fromkeys(range(6), 0.5))
    assert shifted.p_value == pytest.approx(2 / 2**6)
    assert shifted.verdict == "worse"


def test_equal_differences():
    """Equal runs are indistinguishable; the same difference every time is a sign that the seed did nothing."""
    first, _ = runs(4)
    same = compare_over_seeds(first, first)
    assert (same.difference, same.p_value, same.verdict) == (0, 1, "indistinguishable")
    lifted = compare_over_seeds({seed: value + 0.1 for seed, value in first.items()}, first)
    assert isinstance(lifted, NotAvailable)
    assert "same for every seed" in lifted.reason
    assert rank_over_seeds(*[runs(7)[0]] * 2).p_value == 1


@TESTS
def test_results_that_cannot_be_paired(compare):
    """Missing seeds, missing values and a percentage, all at once."""
    with pytest.raises(UserError) as error:
        compare({1: 0.5, 2: float("nan"), 3: 0.1}, {2: 0.3, 3: 0.1, 4: 0.2}, confidence=95)
    assert len(error.value.problems) == 3
    assert "seeds 1, 4 exist for one run only" in str(error.value)


def test_holm_by_hand():
    """Smallest times n, next times n - 1, never falling, at most 1, in the given order."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx((0.03, 0.06, 0.06, 0.02))
    assert holm([0.5, 0.9]) == (1.0, 1.0)
    assert holm([0.2]) == (0.2,)
    assert holm([]) == ()


def test_holm_keeps_the_family_honest():
    """Among ten true null hypotheses, any is rejected in about 5 % of the families; without correction in 40 %."""
    families = np.random.default_rng(0).random((2000, 10))
    assert np.mean([min(holm(family)) < 0.05 for family in families.tolist()]) == pytest.approx(0.05, abs=0.015)
    assert np.mean(families.min(axis=1) < 0.05) > 0.35
