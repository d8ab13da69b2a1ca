"""Fairness figures have their textbook values, and their intervals the size that theory gives."""

import math

import numpy as np
import pytest
from scipy import stats

from app.metrics.bootstrap import Bootstrap
from app.metrics.fairness import (
    Fairness,
    GroupMean,
    Spread,
    _resampled_means,
    gap_estimate,
    mean_estimate,
    swap_estimate,
)
from app.metrics.intervals import Interval, unseen_share
from app.metrics.membership import NotAvailable

TWO = ["majority", "majority", "minority", "minority"]


def test_figures_of_four_clients():
    """Every figure of 100, 50, 75 and 25 percent is the one worked out by hand."""
    found = Fairness.of([1.0, 0.5, 0.75, 0.25], TWO)
    assert (found.clients, found.mean, found.worst, found.best) == (4, 0.625, 0.25, 1.0)
    assert found.variance == (37.5**2 + 12.5**2 + 12.5**2 + 37.5**2) / 4 == 781.25
    assert found.groups == (GroupMean("majority", 2, 0.75), GroupMean("minority", 2, 0.5))
    assert found.gap == 0.25


@pytest.mark.parametrize(("clients", "counted"), [(1, 1), (9, 1), (10, 1), (11, 2), (20, 2), (21, 3), (120, 12)])
def test_a_tenth_is_rounded_up_to_whole_clients(clients, counted):
    """The worst and the best tenth are means over at least one client."""
    accuracies = [number / 128 for number in range(clients)]
    found = Fairness.of(accuracies, ["all"] * clients)
    assert found.worst_tenth == sum(accuracies[:counted]) / counted
    assert found.best_tenth == sum(accuracies[-counted:]) / counted


def test_gap_has_a_sign_where_it_is_the_published_one():
    """A minority that is ahead has a negative gap; groups of other names are compared best against worst."""
    accuracies = [0.5, 0.5, 0.75, 0.75]
    assert Fairness.of(accuracies, TWO).gap == -0.25
    assert Fairness.of(accuracies, ["west", "west", "east", "east"]).gap == 0.25
    assert Fairness.of(accuracies, ["majority", "minority", "other", "other"]).gap == 0.25
    assert math.isnan(Fairness.of(accuracies, ["all"] * 4).gap)


def test_order_of_clients_does_not_matter():
    """Shuffled clients give the same figures to the last bit."""
    generator = np.random.default_rng(0)
    accuracies, groups = generator.uniform(size=57), np.array(["a", "b", "a"] * 19)
    order = generator.permutation(57)
    found, shuffled = (Fairness.of(accuracies[rows].tolist(), groups[rows]) for rows in (slice(None), order))
    assert set(found.groups) == set(shuffled.groups)
    assert (found.mean, found.variance, found.gap) == (shuffled.mean, shuffled.variance, shuffled.gap)
    assert (found.worst_tenth, found.best_tenth) == (shuffled.worst_tenth, shuffled.best_tenth)


MANY = Bootstrap(resamples=4000)


def test_interval_of_the_mean_is_that_of_student():
    """Far from the bounds, the interval is as wide as that of a t-test on the same clients."""
    accuracies = np.random.default_rng(1).normal(0.5, 0.05, 40)
    interval = mean_estimate(accuracies.tolist(), ["all"] * 40, MANY).interval
    expected = stats.t.ppf(0.975, 39) * accuracies.std(ddof=1) / math.sqrt(40)
    assert interval.half_width == pytest.approx(expected, rel=0.05)
    assert (interval.low + interval.high) / 2 == pytest.approx(accuracies.mean(), abs=1e-3)


def test_groups_are_drawn_apart():
    """A gap between the groups widens the interval of no mean: only clients of one group stand for each other."""
    generator = np.random.default_rng(2)
    noise = generator.normal(0, 0.01, 60)
    apart = noise + np.repeat([0.8, 0.2], 30)
    groups = ["west"] * 30 + ["east"] * 30
    estimate = mean_estimate(apart.tolist(), groups, MANY)
    spread = math.hypot(noise[:30].std(ddof=1), noise[30:].std(ddof=1)) / math.sqrt(30) / 2
    assert estimate.interval.half_width == pytest.approx(stats.t.ppf(0.975, 58) * spread, rel=0.05)
    assert mean_estimate(apart.tolist(), ["all"] * 60, MANY).interval.half_width > 10 * spread


def test_interval_of_the_gap_adds_both_groups_errors():
    """The error of a difference of two independent means, with the quantile of the smaller group."""
    generator = np.random.default_rng(3)
    many, few = generator.normal(0.6, 0.05, 60), generator.normal(0.4, 0.1, 20)
    groups = ["majority"] * 60 + ["minority"] * 20
    estimate = gap_estimate([*many, *few], groups, MANY)
    error = math.hypot(many.std(ddof=1) / math.sqrt(60), few.std(ddof=1) / math.sqrt(20))
    assert estimate.value == pytest.approx(many.mean() - few.mean())
    assert estimate.interval.half_width == pytest.approx(stats.t.ppf(0.975, 19) * error, rel=0.06)


@pytest.mark.parametrize("clients", [3, 8, 1500])
def test_resamples_are_those_drawn_one_by_one(clients):
    """To the last bit, also where memory holds only some of them at a time."""
    values, draw = np.random.default_rng(0).random(clients), np.random.default_rng(1)
    expected = [values[draw.integers(0, clients, clients)].mean() for _ in range(300)]
    assert _resampled_means(values, 300, np.random.default_rng(1)).tolist() == expected


def test_gaps_without_an_interval():
    """One group has no gap; a group of one client shows no spread; of several groups the extremes are picked."""
    alone = gap_estimate([0.5, 0.6], ["all", "all"])
    assert math.isnan(alone.value)
    assert "2 groups" in alone.interval.reason
    single = gap_estimate([0.5, 0.75, 0.25], ["majority", "majority", "minority"])
    assert single.value == 0.375
    assert "2 clients in every group" in single.interval.reason
    several = gap_estimate([0.5, 0.5, 0.75, 0.75, 0.25, 0.25], ["a", "a", "b", "b", "c", "c"])
    assert several.value == 0.5
    assert "picked by their results" in several.interval.reason


def test_mean_without_an_interval():
    """One client, or one in some group, tells nothing about others."""
    assert isinstance(mean_estimate([0.5], ["all"]).interval, NotAvailable)
    assert isinstance(mean_estimate([0.5, 0.6, 0.7], ["majority", "majority", "minority"]).interval, NotAvailable)


def test_equal_clients_have_an_interval_all_the_same():
    """Where no client differs, the bound is on the share of clients that were not seen."""
    interval = mean_estimate([1.0] * 50, ["all"] * 50).interval
    assert interval == Interval(1 - unseen_share(50, 0.95), 1.0)


def test_intervals_repeat():
    """The same clients give the same interval, however often one asks."""
    accuracies = np.random.default_rng(4).uniform(size=30).tolist()
    groups = ["majority"] * 20 + ["minority"] * 10
    assert mean_estimate(accuracies, groups) == mean_estimate(accuracies, groups)
    assert gap_estimate(accuracies, groups) == gap_estimate(accuracies, groups)


def test_intervals_cover():
    """Of 200 federations, about 95 in 100 have an interval that holds the true mean."""
    generator, quick = np.random.default_rng(5), Bootstrap(resamples=100)
    drawn = generator.beta(18, 2, (200, 25))
    held = [mean_estimate(row.tolist(), ["all"] * 25, quick).interval.contains(0.9) for row in drawn]
    assert 0.9 <= np.mean(held) <= 0.99


def test_swap_that_costs_nothing():
    """Equal accuracies, or differences without a direction, are not personal; the verdict says so."""
    own = np.random.default_rng(6).uniform(0.4, 0.6, 40)
    same = swap_estimate(own.tolist(), own.tolist())
    assert (same.clients, same.cost.value, same.personal) == (40, 0.0, False)
    assert same.verdict == "the models are not personal: another client's choice does as well"
    tilted = own + np.tile([0.05, -0.06], 20)
    unsure = swap_estimate(own.tolist(), tilted.tolist())
    assert unsure.cost.value == pytest.approx(0.005)
    assert unsure.personal is False


def test_swap_that_costs():
    """Pairing finds a cost far smaller than the clients' spread; the same cost with the wrong sign is not one."""
    generator = np.random.default_rng(7)
    own = generator.uniform(0.2, 0.9, 40)
    another = own - 0.02 + generator.normal(0, 0.02, 40)
    swap = swap_estimate(own.tolist(), another.tolist(), MANY)
    changes = own - another
    assert swap.personal is True
    assert swap.verdict == "the models are personal"
    assert swap.cost.value == pytest.approx(changes.mean())
    reach = stats.t.ppf(0.975, 39) * changes.std(ddof=1) / math.sqrt(40)
    assert swap.cost.interval.half_width == pytest.approx(reach, rel=0.05)
    assert swap_estimate(another.tolist(), own.tolist()).personal is False


@pytest.mark.parametrize("clients", [0, 1])
def test_swap_of_too_few(clients):
    """Nobody, or one client, cannot tell."""
    swap = swap_estimate([0.9] * clients, [0.1] * clients)
    assert (swap.clients, swap.personal) == (clients, None)
    assert "too few clients" in swap.verdict


@pytest.mark.parametrize("values", [[1e200, 3.0], [1.7e308, 1.7e308]])
def test_a_spread_too_large_for_a_number_is_infinite(values):
    """Losses before a client diverges; they ended the run in an error."""
    assert Spread.of(values).std == math.inf
    assert Spread.of(values).worst == min(values)
