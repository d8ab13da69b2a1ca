"""Correlations over the clients of all runs, beside published ones, against SciPy."""

from dataclasses import replace

import numpy as np
import pytest
from finding_kit import finding
from scipy import stats
from store_kit import labels, make_record

from app.attacks.findings import ReportedNumber
from app.common.errors import UserError
from app.metrics.membership import NotAvailable
from app.results.comparison.table import ComparisonTable
from app.results.published.formats import as_cells
from app.results.published.parse import parse_published
from app.results.published.side_by_side import side_by_side
from app.results.published.values import ALL_METHODS, PublishedFigure
from app.results.run.store import Store

CLIENTS, SEEDS, METHODS = 6, (0, 1, 2), ("fedavg", "heterofl")
SIZES = (12_000, 5_000, 900, 400, 399, 40)
"""Two of them too small for the correlation with sizes."""

BY_SIZE = "correlation:size~mapp-fl.yeom.uploads/Adv %"
BY_ATTACK = "correlation:taxonomy.tmia.uploads~taxonomy.lira.uploads/AUC %"
NUMBERS = np.random.default_rng(3).normal(50, 5, (len(METHODS), len(SEEDS), 3, CLIENTS))
"""Of every method, run and result: MaPP-FL's Adv, tMIA's AUC, LiRA's AUC."""


def result(protocol, attack, name, values):
    """A result with a figure of every client."""
    figure = ReportedNumber(name, float(np.mean(values)), tuple(enumerate(values.tolist())))
    return finding(attack, "uploads", clients=CLIENTS, rows=20, protocol=protocol, figures=(figure,))


def run(method, seed):
    """One run of a method."""
    adv, tmia, lira = NUMBERS[METHODS.index(method), seed]
    attacks = [
        *[result("mapp-fl", "yeom", "Adv %", adv), result("taxonomy", "tmia", "AUC %", tmia)],
        result("taxonomy", "lira", "AUC %", lira),
    ]
    record = make_record(replace(labels(seed=seed), method=method), attacks=attacks, rounds=3)
    ends = [replace(record.clients[0], client=client, samples=size) for client, size in enumerate(SIZES)]
    return replace(record, clients=tuple(ends))


@pytest.fixture(scope="module")
def store():
    """Three runs of two methods."""
    return Store("compared", "", tuple(run(method, seed) for method in METHODS for seed in SEEDS), ())


def only(store, measure, method, value=-0.5):
    """The single row."""
    figure = PublishedFigure("digits", method, measure, value, "", "Table 3")
    [row] = side_by_side(store, ComparisonTable((), ()), [figure]).rows
    return row


def test_clients_of_all_runs_are_pooled(store):
    """Four clients of three runs are twelve points: not the mean of three coefficients of four points."""
    ours = only(store, BY_SIZE, "heterofl").ours
    large = [place for place, size in enumerate(SIZES) if size >= 400]
    advantages = NUMBERS[1, :, 0][:, large]
    sizes = np.tile(np.log10(np.array(SIZES)[large]), (len(SEEDS), 1))
    assert ours.value == pytest.approx(stats.pearsonr(sizes.ravel(), advantages.ravel()).statistic)
    apart = [stats.pearsonr(one, two).statistic for one, two in zip(sizes, advantages, strict=True)]
    assert abs(ours.value - np.mean(apart)) > 0.01
    assert (ours.seeds, ours.about, ours.rounds) == (SEEDS, "clients", 3)
    assert ours.interval.low < ours.value < ours.interval.high


def test_two_attacks_over_all_methods(store):
    """Every client of every run of every method, or of one method."""
    for method, chosen in ((ALL_METHODS, NUMBERS), ("fedavg", NUMBERS[:1])):
        expected = stats.pearsonr(chosen[:, :, 1].ravel(), chosen[:, :, 2].ravel()).statistic
        assert only(store, BY_ATTACK, method).ours.value == pytest.approx(expected)


def test_what_is_missing_is_named(store):
    """Too few clients of one run, a result that no run has, runs that do not exist."""
    alone = Store("compared", "", store.runs[:1], ())
    assert "at least 5 clients, there are 4" in only(alone, BY_SIZE, "fedavg").ours.reason
    assert isinstance(only(store, BY_ATTACK.replace("lira", "yeom"), "fedavg").ours, NotAvailable)
    assert "no finished run" in only(store, BY_SIZE, "fjord").ours.reason


def test_it_is_shown_in_words(store):
    """Not by its key."""
    row = only(store, BY_ATTACK, ALL_METHODS)
    [cells] = as_cells(side_by_side(store, ComparisonTable((), ()), [row.figure]))
    assert cells.measure == "pooled correlation of taxonomy.tmia.uploads and taxonomy.lira.uploads, AUC %"
    assert cells.cell == "digits / all methods / none"


@pytest.mark.parametrize("measure", ["correlation:size/Adv %", "correlation:a~b", "server_accuracy"])
def test_what_cannot_be_pooled_is_refused(measure):
    """A correlation needs two results and a figure; other measures need one method."""
    entry = {"dataset": "digits", "method": ALL_METHODS, "measure": measure, "value": 1, "unit": "", "where": "Table 1"}
    with pytest.raises(UserError):
        parse_published([entry])
