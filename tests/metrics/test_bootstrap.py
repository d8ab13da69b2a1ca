"""Weights of resamples, and the statistics of weighted rows against rows written out."""

import math
from itertools import product

import numpy as np
import pytest
from score_kit import clustered, delong_variance, gaussian, pair_wins, tied

from app.common.errors import UserError
from app.metrics import bootstrap as module
from app.metrics.bootstrap import Bootstrap, Ranking, Replicates, area_deviation, draw_weights
from app.metrics.membership import NO_CLIENT, MembershipScores, NotAvailable
from app.metrics.roc import roc_curve


def written_out(scores, weights):
    """Rows repeated as often as they were drawn."""
    rows = np.repeat(np.arange(weights.size), weights)
    return MembershipScores.of(scores.scores[rows], scores.members[rows])


def drawn(scores, unit, resamples=200, seed=0):
    """All weights of so many resamples."""
    return np.concatenate(list(draw_weights(scores, unit, resamples, np.random.default_rng(seed))))


@pytest.mark.parametrize("scores", [tied(2), gaussian(1.0, 30, 50), clustered(4, 20, 1.0, np.random.default_rng(1))])
@pytest.mark.parametrize("unit", ["row", "client"])
def test_weighted_rows_are_repeated_rows(scores, unit):
    """The area of every resample equals that of the repeated rows, ties included."""
    ranking, weights = Ranking.of(scores), drawn(scores, unit, 30)
    for row, area in zip(weights, ranking.auc(weights), strict=True):
        assert area == pytest.approx(roc_curve(written_out(scores, row)).auc, abs=1e-14)
    once = np.ones((1, scores.scores.size), dtype=np.int64)
    assert ranking.auc(once)[0] == roc_curve(scores).auc


@pytest.mark.parametrize("levels", [2, 3, 100])
def test_spread_over_all_resamples(levels):
    """All 3^3 * 4^4 resamples of 3 members and 4 non-members, written out; with ties and without."""
    scores = tied(levels, 3, 4, levels)
    wins = pair_wins(scores)
    chosen = [np.array(list(product(range(size), repeat=size))) for size in (3, 4)]
    counts = [np.stack([np.bincount(row, minlength=len(row)) for row in rows]) for rows in chosen]
    areas = counts[0] @ wins @ counts[1].T / 12
    assert areas.size == 27 * 256
    assert area_deviation(roc_curve(scores)) == pytest.approx(areas.std(), rel=1e-12)


@pytest.mark.parametrize("scores", [gaussian(1.0, 300, 200), tied(1, 200, 300), gaussian(3.0, 40, 400)])
def test_spread_is_that_of_many_draws(scores):
    """4000 drawn resamples of rows agree within four standard errors of a deviation, DeLong's formula in the limit."""
    drawn = Bootstrap("row", resamples=4000).run(Ranking.of(scores).auc, scores)
    spread = Bootstrap("row").area(scores, roc_curve(scores))
    assert spread.units == drawn.units
    assert spread.standard_error == pytest.approx(drawn.standard_error, rel=4 / math.sqrt(2 * 4000))
    assert spread.standard_error == pytest.approx(math.sqrt(delong_variance(scores)), rel=0.03)


def test_scores_without_spread():
    """Exactly 0, where all resamples give the same area: perfect scores, inverted ones and equal ones."""
    truth = np.arange(70) < 23
    for values, constant in ((truth, True), (~truth, True), (np.full(70, 0.1), True), (np.arange(70) < 24, False)):
        scores = MembershipScores.of(values, truth)
        assert Bootstrap().area(scores, roc_curve(scores)).constant is constant


@pytest.mark.parametrize("scores", [clustered(7, 60, 1.0, np.random.default_rng(2)), tied(5, 300, 200)])
def test_pairs_of_clients_give_the_areas_of_rows(scores, monkeypatch):
    """Bit for bit, from the same draws: by the matrix of pairs, and by rows written out."""
    owners = scores.clients if scores.client_ids.size > 1 else np.arange(500) % 9 * 3
    scores = MembershipScores.of(scores.scores, scores.members, clients=owners)
    by_rows = Bootstrap("client").run(Ranking.of(scores).auc, scores)
    by_pairs = Bootstrap("client").area(scores, roc_curve(scores))
    np.testing.assert_array_equal(by_pairs.values, by_rows.values)
    monkeypatch.setattr(module, "MATRIX", 2)
    np.testing.assert_array_equal(Bootstrap("client").area(scores, roc_curve(scores)).values, by_rows.values)


def test_rows_of_no_client_are_drawn_as_rows_beside_clients():
    """So they are not in the matrix of pairs of clients."""
    owners = np.where(np.arange(200) < 120, np.arange(200) % 6, NO_CLIENT)
    scores = MembershipScores.of(gaussian(1.0, 100, 100).scores, np.arange(200) < 100, clients=owners)
    drawn = Bootstrap().run(Ranking.of(scores).auc, scores)
    np.testing.assert_array_equal(Bootstrap().area(scores, roc_curve(scores)).values, drawn.values)


def test_rows_are_drawn_within_each_class():
    """As many members and non-members as there are, each row once on average."""
    scores = gaussian(1.0, 30, 70)
    weights = drawn(scores, "row", 2000)
    assert np.all(weights[:, scores.members].sum(axis=1) == 30)
    assert np.all(weights[:, ~scores.members].sum(axis=1) == 70)
    assert np.abs(weights.mean(axis=0) - 1).max() < 5 / math.sqrt(2000)
    assert weights.var() == pytest.approx(1 - 1 / 50, abs=0.05)


def test_clients_are_drawn_whole():
    """All rows of a client have one weight; non-members of nobody are drawn as rows."""
    scores = MembershipScores.of(
        np.arange(12.0), np.arange(12) % 2 == 0, clients=[8, NO_CLIENT, 8, 8, 2, 2, 2, NO_CLIENT, 5, 5, 5, NO_CLIENT]
    )
    weights = drawn(scores, "client", 500)
    for client in (2, 5, 8):
        own = weights[:, scores.clients == client]
        assert np.ptp(own, axis=1).max() == 0
        assert own.mean() == pytest.approx(1, abs=0.15)
    assert np.all(sum(weights[:, scores.clients == client][:, 0] for client in (2, 5, 8)) == 3)
    nobody = weights[:, scores.clients == NO_CLIENT]
    assert np.all(nobody.sum(axis=1) == 3)
    assert np.ptp(nobody, axis=1).max() > 0


def test_draws_depend_on_the_seed_only():
    """The same again with the same seed, other ones with another; chunks change nothing about the number."""
    scores = gaussian(1.0, 2000, 3000)
    ranking = Ranking.of(scores)
    first, again, other = (Bootstrap(resamples=450, seed=seed).run(ranking.auc, scores) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.values, again.values)
    assert np.any(first.values != other.values)
    assert first.values.size == 450
    assert np.unique(first.values).size > 400, "chunks must not repeat each other"


def test_several_clients_are_drawn_as_clients():
    """Unless rows are asked for; the standard error then misses how clients differ."""
    scores = clustered(10, 100, 1.0, np.random.default_rng(3))
    ranking = Ranking.of(scores)
    assert Bootstrap().run(ranking.auc, scores).units == 10
    assert Bootstrap(unit="row").run(ranking.auc, scores).units == 500
    rows, clients = (Bootstrap(unit=unit).run(ranking.auc, scores).standard_error for unit in ("row", "client"))
    assert clients > 2 * rows


def test_what_cannot_be_resampled():
    """A single unit has no spread; clients of one class only leave resamples without the other."""
    lone = MembershipScores.of([1.0, 2.0, 3.0], [True, False, False])
    assert "at least 2 members" in Bootstrap().run(Ranking.of(lone).auc, lone).reason
    assert "at least 2 clients" in Bootstrap(unit="client").run(Ranking.of(lone).auc, lone).reason
    split = MembershipScores.of(np.arange(8.0), np.arange(8) < 4, clients=np.arange(8) // 4)
    assert isinstance(Bootstrap(unit="client").run(Ranking.of(split).auc, split), NotAvailable)
    undefined = np.array([[1, 1, 1, 1, 0, 0, 0, 0]])
    assert np.isnan(Ranking.of(split).auc(undefined)[0])


def test_standard_error():
    """Undoes the (n - 1) / n of the variance of resampled means."""
    values = np.array([1.0, 2.0, 3.0])
    assert Replicates(values, 2).standard_error == pytest.approx(math.sqrt(2))
    assert not Replicates(values, 2).constant
    assert Replicates(values[:1].repeat(3), 2).constant


def test_settings_are_checked():
    """All at once."""
    with pytest.raises(UserError) as error:
        Bootstrap(confidence=95, resamples=1)
    assert len(error.value.problems) == 2


@pytest.mark.parametrize(("clients", "units"), [(1, 60), (4, 60), (5, 5), (12, 12)])
def test_few_clients_are_not_drawn(clients, units):
    """With fewer than five, rows are drawn: two clients would give intervals that are empty or everything."""
    scores = MembershipScores.of(np.arange(120.0), np.arange(120) % 2 == 0, clients=np.arange(120) % clients)
    assert Bootstrap().run(Ranking.of(scores).auc, scores).units == units
