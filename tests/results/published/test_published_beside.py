"""Ours beside theirs: differences, intervals and caveats with known answers."""

import json
import math
from dataclasses import replace

import pytest
from finding_kit import finding
from store_kit import labels, make_record, rebuilt, write_run

from app.attacks.findings import ReportedNumber
from app.common.errors import UserError
from app.metrics.membership import NotAvailable
from app.results.comparison.table import ComparisonTable, Measure, Row, Value
from app.results.published.ours import OwnResult
from app.results.published.side_by_side import published_of, side_by_side
from app.results.published.values import PublishedFigure
from app.results.run.store import COMPARISON, Store

PERCENT = Measure("server_accuracy", "server", "accuracy", "utility", "%", 100)
ADV = "paper:mapp-fl.yeom.uploads/Adv %"


def table(value, measure=PERCENT, dataset="digits", method="fedavg"):
    """A table of one entry."""
    return ComparisonTable(
        (measure,), (Row(dataset, method, "none", (0, 1, 2), ("a", "b", "c"), {measure.key: value}),)
    )


def runs(*attacks_by_seed, rounds=3, path=None, **parts):
    """A store of one run per set of attacks, or of one run."""
    records = [
        make_record(
            labels(seed=seed), *([path / f"run-{seed}"] if path else []), attacks=attacks, rounds=rounds, **parts
        )
        for seed, attacks in enumerate(attacks_by_seed or ((),))
    ]
    return Store("compared", "", tuple(records), ())


def published(value=90.0, measure="server_accuracy", unit="%", **others):
    """A published number in the place of the runs."""
    return PublishedFigure("digits", "fedavg", measure, value, unit, "Table 1, FedAvg", **others)


def attacked(adv, per_client=()):
    """An attack in the manner of MaPP-FL that found this advantage."""
    return finding(
        protocol="mapp-fl", target="uploads", rows=20, figures=(ReportedNumber("Adv %", adv, tuple(per_client)),)
    )


def only(store, shown, figure):
    """The single row."""
    [row] = side_by_side(store, shown, [figure]).rows
    return row


THREE = Value(0.85, 0.83, 0.87, {0: 0.84, 1: 0.85, 2: 0.86}, "seeds")


def test_difference_and_interval():
    """Ours is shown as in the table, in percent: 85 [83, 87] against 86.5 and 90."""
    near, far = (only(runs(), table(THREE), published(value)) for value in (86.5, 90.0))
    assert isinstance(near.ours, OwnResult)
    assert near.ours.value == pytest.approx(85.0)
    assert (near.ours.interval.low, near.ours.interval.high) == pytest.approx((83.0, 87.0))
    assert (near.difference, far.difference) == pytest.approx((-1.5, -5.0))
    assert (near.agrees, far.agrees) == (True, False)
    assert near.ours.seeds == (0, 1, 2)


def test_ends_of_the_interval_belong_to_it():
    """A published value on the edge lies within."""
    exact = replace(THREE, low=0.75, high=0.875)
    assert only(runs(), table(exact), published(87.5)).agrees
    assert not only(runs(), table(exact), published(87.6)).agrees


def test_one_seed_cannot_agree():
    """Without an interval there is a difference, but no verdict."""
    row = only(runs(), table(Value(0.85, math.nan, math.nan, {0: 0.85}, "none")), published(85.0))
    assert row.difference == pytest.approx(0.0)
    assert row.agrees is None
    assert isinstance(row.ours.interval, NotAvailable)


@pytest.mark.parametrize(
    ("relation", "value", "agrees"), [("above", 84, True), ("above", 86, False), ("below", 86, True)]
)
def test_bounds(relation, value, agrees):
    """A bound holds or does not, whatever the interval."""
    assert only(runs(), table(THREE), published(float(value), relation=relation)).agrees is agrees


@pytest.mark.parametrize(("statistic", "value"), [("highest", 86.0), ("lowest", 84.0)])
def test_extremes_over_seeds(statistic, value):
    """The best and the worst of the runs, without an interval."""
    row = only(runs(), table(THREE), published(80.0, statistic=statistic))
    assert row.ours.value == pytest.approx(value)
    assert row.agrees is None


def test_units_are_matched():
    """A fraction is compared with a percentage after it is made one; decibels are not."""
    auc = Measure("auc:yeom.global", "yeom", "area", "leakage")
    shown = table(Value(0.6, 0.55, 0.65, {0: 0.6}, "samples"), auc)
    row = only(runs(), shown, published(62.0, "auc:yeom.global"))
    assert row.ours.value == pytest.approx(60.0)
    assert row.ours.about == "samples"
    wrong = only(runs(), shown, published(62.0, "auc:yeom.global", "dB"))
    assert isinstance(wrong.ours, NotAvailable)
    assert wrong.difference is None
    assert wrong.agrees is None


def test_numbers_of_a_paper_are_read_from_the_runs():
    """Three runs with 1, 2 and 3: the mean is 2, and Student's interval reaches 4.303 / sqrt(3) to either side."""
    store = runs((attacked(1.0),), (attacked(2.0),), (attacked(3.0),))
    row = only(store, table(THREE), published(4.0, ADV))
    assert row.ours.value == pytest.approx(2.0)
    assert row.ours.interval.half_width == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)
    assert row.difference == pytest.approx(-2.0)
    assert row.agrees


def test_one_client():
    """A client's own figure and accuracy, not the mean over clients."""
    store = runs((attacked(5.0, [(0, 4.0), (3, 6.0)]),), final={"server/accuracy": 0.9})
    assert only(store, table(THREE), published(6.0, ADV, client=3)).difference == pytest.approx(0.0)
    accuracy = only(store, table(THREE), published(88.0, "clients_accuracy", client=1))
    assert accuracy.ours.value == pytest.approx(90.0)
    assert isinstance(only(store, table(THREE), published(6.0, ADV, client=2)).ours, NotAvailable)


def test_reconstructed_images():
    """Numbers of a reconstruction in their own units: four of eight images."""
    store = runs(reconstructions=(rebuilt(4, 8),))
    recovered = only(store, table(THREE), published(8.0, "reconstruction:recovered", "images"))
    assert recovered.difference == pytest.approx(-4.0)
    share = only(store, table(THREE), published(40.0, "reconstruction:share"))
    assert share.ours.value == pytest.approx(50.0)


def test_missing_results_are_told():
    """No run in this place, no column, and a column without a number are three different reasons."""
    elsewhere = replace(published(), method="waffle")
    absent = table(NotAvailable("the server sees sums only"))
    reasons = [
        only(runs(), table(THREE), elsewhere).ours.reason,
        only(runs(), table(THREE), published(measure="everyone_gap")).ours.reason,
        only(runs(), absent, published()).ours.reason,
    ]
    assert reasons == [
        "no finished run of digits / waffle / none",
        "the table has no everyone_gap",
        "the server sees sums only",
    ]


def test_shorter_runs_are_told():
    """3 of 150 rounds; runs as long as the paper's, and papers that do not tell, give no remark."""
    compared = side_by_side(runs(), table(THREE), [published(rounds=150), published(rounds=3), published()])
    assert [row.shorter for row in compared.rows] == [(3, 150), None, None]
    assert compared.caveats == ("ours was trained for fewer rounds than the paper's (3 of 150)",)


def write_beside(path, **told):
    """Runs on disk with a comparison beside them."""
    store = runs(path=path)
    for run in store.runs:
        write_run(run)
    (path / COMPARISON).write_text(json.dumps({"name": "compared", **told}))
    return store


@pytest.mark.parametrize(
    ("told", "scale"),
    [({"scale": "quick"}, "quick"), ({"scale": "full"}, "full"), ({}, "")],
)
def test_scale_is_told_unless_it_is_full(tmp_path, told, scale):
    """From the record of the comparison, or from the name that a scale gives it."""
    compared = side_by_side(write_beside(tmp_path, **told), table(THREE), [published()])
    assert compared.scale == scale
    assert ("no reproduction" in " ".join(compared.caveats)) is (scale == "quick")


def test_published_of_a_comparison(tmp_path):
    """What the file beside the runs says, each number once; nothing where there is no such file."""
    entry = {"dataset": "d", "method": "m", "measure": "psnr_best", "value": 1, "unit": "dB", "where": "Figure 6"}
    good = {**entry, "measure": "reconstruction:psnr_best"}
    store = write_beside(tmp_path, published=[good, good])
    assert published_of(store) == (PublishedFigure("d", "m", "reconstruction:psnr_best", 1, "dB", "Figure 6"),)
    assert published_of(runs(path=tmp_path / "elsewhere")) == ()
    with pytest.raises(UserError, match="psnr_best"):
        published_of(write_beside(tmp_path / "other", published=[entry]))


def test_summary_counts():
    """One of two within, and a third that has no result of ours."""
    figures = [published(86.0), published(99.0), published(measure="everyone_gap")]
    compared = side_by_side(runs(), table(THREE), figures)
    assert len(compared.measured) == 2
    assert compared.summary.startswith("2 of 3 published numbers")
    assert "1 of the 2 that can be tested" in compared.summary


def test_a_lead_is_a_difference_of_the_same_seeds():
    """85 less 80, 75 and 82 of the same seeds, with Student's interval; seeds of one method alone do not count."""
    other = Value(0.79, 0.7, 0.88, {0: 0.80, 1: 0.75, 2: 0.82, 3: 0.1}, "seeds")
    own = Value(0.85, 0.85, 0.85, {0: 0.85, 1: 0.85, 2: 0.85, 4: 0.99}, "seeds")
    both = ComparisonTable((PERCENT,), table(own).rows + table(other, method="local").rows)
    store = Store("compared", "", (*runs().runs, make_record(labels(method="local"), rounds=3)), ())
    row = only(store, both, published(7.2, "lead:local/server_accuracy"))
    assert row.ours.value == pytest.approx((5 + 10 + 3) / 3)
    assert row.ours.seeds == (0, 1, 2)
    assert row.ours.interval.contains(7.2)
    assert row.difference == pytest.approx(6 - 7.2)
    missing = only(runs(), table(own), published(7.2, "lead:local/server_accuracy"))
    assert missing.ours == NotAvailable("no finished run of digits / local / none")
