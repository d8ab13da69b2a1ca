"""Figures of leakage against known values: Pareto front, curves, rounds, clients."""

from dataclasses import replace

import numpy as np
import pytest
from figure_kit import data_of, figures, kind_of, marks, panels, table_of, texts, value
from finding_kit import QUICK, conditions, gaussian_scores, missing
from scipy import stats
from store_kit import HIDDEN, attack, channel, labels, make_record, make_store

from app.attacks.findings import Finding
from app.metrics.correlation import size_correlation
from app.metrics.leakage import Leakage
from app.metrics.membership import NotAvailable
from app.metrics.roc import roc_curve
from app.metrics.vulnerability import client_table
from app.results.comparison.tabulate import tabulate
from app.results.figures.clients import client_points, clients, correlation_text
from app.results.figures.data import FigureData, row_styles
from app.results.figures.leakage import auc_by_round
from app.results.figures.pareto import HIDDEN as STRIP
from app.results.figures.pareto import front, pareto, reach
from app.results.figures.roc import Bundle, roc
from app.results.figures.rounds import rounds
from app.results.run.store import Store


def store_of(*runs):
    """A store of some runs, the plain one its baseline."""
    return Store("x", "", runs, (), ("fedavg", "none"))


def test_front_of_known_points():
    """Leakage and utility; ties and equals are kept, what is beaten is not."""
    points = [(0.9, 90.0), (0.6, 80.0), (0.7, 70.0), (0.6, 75.0), (0.5, 60.0), (0.9, 85.0), (0.5, 60.0)]
    assert front(points) == [4, 6, 1, 0]
    assert front([]) == []


@pytest.fixture(scope="module")
def known():
    """Four rows with planted values, of which the last is hidden from the server."""
    rows = [
        ("fedavg", "none", {"clients_accuracy": value(0.9), "uploads_auc": value(0.8, 0.75, 0.85)}),
        ("fedavg", "weak", {"clients_accuracy": value(0.85), "uploads_auc": value(0.82)}),
        ("fedavg", "strong", {"clients_accuracy": value(0.7, 0.65, 0.75), "uploads_auc": value(0.55)}),
        ("fedavg", "masks", {"clients_accuracy": value(0.88), "uploads_auc": NotAvailable(HIDDEN)}),
        ("fedavg", "broken", {"clients_accuracy": value(0.8), "uploads_auc": NotAvailable("the attack broke down")}),
    ]
    runs = [make_record(labels(defense=row[1])) for row in rows]
    runs[3] = replace(runs[3], channels=(channel(),))
    return FigureData(store_of(*runs), table_of(*rows))


def test_pareto_shows_the_table(known):
    """Every measured row at its values, intervals where there are any, the front through the two that none beats."""
    [figure] = figures(pareto, known)
    [axes] = panels(figure)
    styles = row_styles(known.table)
    expected = {(0.8, 90.0, "none"), (0.82, 85.0, "weak"), (0.55, 70.0, "strong")}
    points = {(x, y, (colour, marker)) for x, y, colour, marker in marks(axes) if y > 1}
    places = {(x, y, (style.colour, style.marker)) for x, y, name in expected for style in [styles[f"fedavg / {name}"]]}
    assert points == places
    [line] = [line for line in axes.get_lines() if line.get_gid() == "front"]
    assert line.get_xydata().tolist() == [[0.55, 70.0], [0.8, 90.0]]
    drawn = [line.get_xydata().tolist() for line in axes.get_lines()]
    assert [[0.75, 90.0], [0.85, 90.0]] in drawn
    assert [[0.55, 65.0], [0.55, 75.0]] in drawn


def test_strengths_of_a_defense_are_a_curve():
    """One colour and one line through all of them, in the order of the table; a row that another beats is dimmed."""
    strengths = {"none": (0.9, 0.8), "l2": (0.8, 0.85), "mem gamma=0.5": (0.85, 0.7), "mem gamma=0.9": (0.6, 0.55)}
    rows = [
        ("fedavg", defense, {"clients_accuracy": value(accuracy), "uploads_auc": value(auc)})
        for defense, (accuracy, auc) in strengths.items()
    ]
    data = FigureData(store_of(*(make_record(labels(defense=row[1])) for row in rows)), table_of(*rows))
    [figure] = figures(pareto, data)
    [axes] = panels(figure)
    [curve] = [line for line in axes.get_lines() if kind_of(line) == "family"]
    assert curve.get_xydata().tolist() == [[0.7, 85.0], [0.55, 60.0]]
    styles = {defense: row_styles(data.table)[f"fedavg / {defense}"] for defense in strengths}
    assert curve.get_color() == styles["mem gamma=0.5"].colour == styles["mem gamma=0.9"].colour
    assert styles["mem gamma=0.5"].marker != styles["mem gamma=0.9"].marker
    assert len({style.colour for style in styles.values()}) == 3
    opacity = {tuple(line.get_xydata()[0]): line.get_alpha() for line in axes.get_lines() if len(line.get_xdata()) == 1}
    assert opacity[(0.85, 80.0)] < opacity[(0.8, 90.0)]


def test_hidden_rows_lie_at_the_margin(known):
    """In the strip on the left, at their accuracy, not at 0.5; rows whose attack failed are not in it."""
    [figure] = figures(pareto, known)
    [axes] = panels(figure)
    [(x, y, colour, _)] = marks(axes, "hidden")
    assert colour == row_styles(known.table)["fedavg / masks"].colour
    assert y == 88.0
    data = axes.transData.inverted().transform(axes.get_yaxis_transform().transform((x, y)))
    assert data[0] < 0.5  # left of chance, in the strip
    assert data[0] < min(axes.get_xticks())
    boxes, _ = texts(figure)
    assert STRIP in [text for text, _ in boxes]
    assert "broken" not in [text for text, _ in boxes]


def test_wide_intervals_do_not_hide_the_rows():
    """Two rows ten points apart, one with an interval over everything: the axis ends near the rows."""
    assert reach([value(0.5), value(0.6, 0.0, 1.0)]) == pytest.approx((0.442, 0.658))
    assert reach([value(0.5), value(0.6, 0.58, 0.62)]) == pytest.approx((0.492, 0.628))
    assert reach([value(0.6)], 0.5) == pytest.approx((0.492, 0.608))


def test_no_strip_without_hidden_rows(known):
    """Nothing claims to be hidden where nothing is."""
    seen = FigureData(known.store, replace(known.table, rows=known.table.rows[:3]))
    [figure] = figures(pareto, seen)
    assert STRIP not in [text for text, _ in texts(figure)[0]]


def test_accuracy_that_most_rows_have(known):
    """Where only the server is measured, its accuracy is drawn."""
    rows = [
        replace(row, values={**row.values, "server_accuracy": value(0.5), "clients_accuracy": NotAvailable("no")})
        for row in known.table.rows
    ]
    [figure] = figures(pareto, FigureData(known.store, replace(known.table, rows=tuple(rows))))
    [axes] = panels(figure)
    assert axes.get_ylabel() == "accuracy of the server's model (%)"
    assert {y for _, y, *_ in marks(axes) if y > 1} == {50.0}


def test_roc_is_the_mean_of_the_seeds():
    """At every rate the mean TPR of the seeds' own curves, from one false alarm on; the area is their mean."""
    store = make_store(methods=("fedavg",), defenses=("none",), seeds=(0, 1))
    [figure] = figures(roc, data_of(store))
    curves = [roc_curve(run.scores("lira-online.uploads")) for run in store.runs]
    uploads = panels(figure)[0]
    [line] = [line for line in uploads.get_lines() if line.get_label() == "no defense"]
    fpr, tpr = line.get_data()
    assert fpr[0] == pytest.approx(1 / 200)  # 4 clients with 50 non-members each
    for rate, share in list(zip(fpr, tpr, strict=True))[::20]:
        expected = np.mean([curve.tpr[curve.fpr <= rate + 1e-9][-1] for curve in curves])
        assert share == pytest.approx(expected)
    area = np.mean([curve.auc for curve in curves])
    shown = [text for text, _ in texts(figure)[0]]
    assert f"{area:.3f}" in shown
    assert "1 of 200\nnon-members" in shown


def test_roc_of_a_guess_lies_on_the_diagonal():
    """Scores that know nothing: the mean curve of many seeds is near its rate."""
    curves = tuple(roc_curve(gaussian_scores(0.0, rows=400, seed=seed)) for seed in range(30))
    fpr, tpr = Bundle(row_styles(table_of(("a", "b", {})))["a / b"], curves).mean()
    np.testing.assert_allclose(tpr[fpr > 0.02], fpr[fpr > 0.02], atol=0.015)


def test_roc_says_what_is_missing():
    """Rows that hide uploads have a curve of the released model, and N/A for the other."""
    store = make_store(methods=("fedavg",), defenses=("none", "secure-aggregation"), seeds=(0,))
    [figure] = figures(roc, data_of(store))
    assert "N/A" in [text for text, _ in texts(figure)[0]]
    uploads, released = panels(figure)
    names = [{line.get_label() for line in axes.get_lines()} for axes in (uploads, released)]
    assert "secure-aggregation" not in names[0]
    assert "secure-aggregation" in names[1]


def test_rounds_are_means_with_bands():
    """Accuracy of two seeds: mean in the middle, band from one to the other."""
    runs = [make_record(labels(seed=seed), final={"server/accuracy": 0.6 + 0.2 * seed}) for seed in (0, 1)]
    [figure] = figures(rounds, data_of(store_of(*runs)))
    server = next(axes for axes in panels(figure) if "server" in axes.get_ylabel())
    curve = next(line for line in server.get_lines() if line.get_label() != "_child0" and len(line.get_xdata()) == 3)
    np.testing.assert_allclose(curve.get_xydata(), [[1, 70 / 3], [2, 140 / 3], [3, 70]])
    [band] = server.collections
    corners = band.get_paths()[0].vertices
    assert corners[corners[:, 0] == 3][:, 1].min() == pytest.approx(60)
    assert corners[corners[:, 0] == 3][:, 1].max() == pytest.approx(80)


def test_rounds_compare_one_metric():
    """One run lacks the wanted metric: all are drawn by another that both have, under its name."""
    whole, bare = make_record(labels()), make_record(labels(defense="l2"))
    lacking = tuple({name: number for name, number in one.items() if "received" not in name} for one in bare.rounds)
    [figure] = figures(rounds, data_of(store_of(replace(bare, rounds=lacking), whole)))
    assert panels(figure)[0].get_ylabel().startswith("accuracy of the trained models")
    assert len([line for line in panels(figure)[0].get_lines() if len(line.get_xdata()) == 3]) == 2


def test_leakage_over_the_rounds_follows_one_attack_per_round():
    """The attack of the largest mean over the seeds, not the luckiest of each seed; the end is the last round."""
    found = {
        0: [attack("yeom", "uploads@1", 0.2), attack("lira", "uploads@1", 1.0), attack("lira", "uploads", 2.0)],
        1: [
            attack("yeom", "uploads@1", 1.4, 1),
            attack("lira", "uploads@1", 0.9, 1),
            attack("lira", "uploads", 1.9, 1),
        ],
    }
    runs = [make_record(labels(seed=seed), attacks=tuple(attacks)) for seed, attacks in found.items()]
    table = tabulate(store_of(*runs))
    row_runs = FigureData(store_of(*runs), table).row_runs(table.rows[0])
    expected = [{1: each[1].leakage.auc.value, 3: each[2].leakage.auc.value} for each in found.values()]
    assert auc_by_round(row_runs, "uploads") == expected
    assert auc_by_round(row_runs, "global") == []


def test_leakage_at_the_end_alone_is_no_curve():
    """Its numbers stand in the table."""
    store = make_store(methods=("fedavg",), defenses=("none",), seeds=(0,))
    [figure] = figures(rounds, data_of(store))
    assert not any("AUC" in axes.get_ylabel() for axes in panels(figure))


def sized(seed, sizes, name="yeom"):
    """An attack on uploads of clients of given sizes."""
    scores = gaussian_scores(1.0, clients=len(sizes), rows=60, seed=seed)
    found = client_table(scores, dict(enumerate(sizes)), QUICK)
    return Finding(conditions(name, "uploads"), scores, found[0].leakage, found)


def test_correlation_is_scipys():
    """Pearson's, of the logarithm of the size; the same number stands in the panel."""
    sizes = (10, 30, 90, 200, 500, 1000)
    run = make_record(labels(), attacks=(sized(3, sizes),))
    [figure] = figures(clients, data_of(store_of(run)))
    [axes] = panels(figure)
    shown = [(x, y) for x, y, *_ in marks(axes)]
    aucs = [row.leakage.auc.value for row in run.attacks[0].clients if isinstance(row.leakage, Leakage)]
    assert shown == list(zip(sizes, aucs, strict=True))
    expected = stats.pearsonr(np.log10(sizes), aucs).statistic
    [text] = [text.get_text() for text in axes.texts if text.get_text().startswith("r =")]
    assert float(text.split()[2]) == pytest.approx(expected, abs=0.005)
    interval = size_correlation(sizes, aucs).pearson.interval
    assert f"[{interval.low:.2f}, {interval.high:.2f}]" in text
    assert "6 clients" in text


def test_too_few_clients_for_a_correlation():
    """Four clients have no correlation."""
    assert correlation_text(size_correlation([1, 2, 3, 4], [0.5, 0.6, 0.7, 0.8])) == "too few clients for a correlation"
    assert "same size" in correlation_text(size_correlation([5] * 6, [0.5, 0.6, 0.7, 0.8, 0.9, 1.0]))


def test_same_clients_of_several_seeds_are_one_point_each():
    """Equal sizes: means over the seeds. Data dealt anew: clients of their own."""
    same = [make_record(labels(seed=seed), attacks=(sized(seed, (10, 20, 30)),)) for seed in (0, 1)]
    table = tabulate(store_of(*same))
    points = client_points(FigureData(store_of(*same), table).row_runs(table.rows[0]))
    each = [[row.leakage.auc.value for row in run.attacks[0].clients] for run in same]
    assert [point.size for point in points] == [10, 20, 30]
    np.testing.assert_allclose([point.auc for point in points], np.mean(each, axis=0))
    other = [same[0], make_record(labels(seed=1), attacks=(sized(1, (10, 25, 30)),))]
    table = tabulate(store_of(*other))
    assert len(client_points(FigureData(store_of(*other), table).row_runs(table.rows[0]))) == 6


def test_hidden_uploads_have_no_panel():
    """A row whose uploads nobody could attack is left out."""
    store = store_of(
        make_record(labels(), attacks=(attack("yeom", "uploads"),)),
        make_record(labels(defense="masks"), attacks=(missing("yeom", "uploads"),), channels=(channel(),)),
    )
    [figure] = figures(clients, data_of(store))
    assert [axes.get_title(loc="left") for axes in panels(figure)] == ["no defense"]
