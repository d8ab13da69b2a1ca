"""All figures together: one style per row, texts that neither overlap nor are cut, no figure without data."""

from dataclasses import replace

import numpy as np
import pytest
from figure_kit import clashes, data_of, figures, marks, panels, svg, table_of, texts
from store_kit import attack, labels, make_record, make_store

from app.results.attacks.membership import AttackRecord
from app.results.comparison.tabulate import tabulate
from app.results.figures import KINDS, figures_of
from app.results.figures.data import FigureData, row_styles
from app.results.figures.layout import spread
from app.results.figures.pareto import pareto
from app.results.figures.roc import roc
from app.results.figures.rounds import rounds
from app.results.figures.style import COLOURS, INK
from app.results.run.store import Store


@pytest.fixture(scope="module")
def attacked():
    """Two methods, four defenses, two seeds, and attacks on the way."""
    store = make_store(seeds=(0, 1))
    runs = [replace(run, attacks=(*run.attacks, *_on_the_way(run))) for run in store.runs]
    return replace(store, runs=tuple(runs))


def _on_the_way(run):
    found = [attack("yeom", f"global@{round_}", 0.2 * round_, run.labels.seed) for round_ in (1, 2)]
    return tuple(map(AttackRecord.of, found))


@pytest.fixture(scope="module")
def table(attacked):
    """Its table."""
    return tabulate(attacked)


@pytest.fixture(scope="module")
def drawn(attacked, table):
    """Its figures by key."""
    return {figure.key: figure for figure in figures_of(attacked, table)}


def test_names_and_words(drawn):
    """Every kind that has data is drawn once, and says what it shows and what is good."""
    assert list(drawn) == ["pareto", "roc", "rounds", "clients", "cost"]
    for figure in drawn.values():
        assert figure.title
        assert figure.shows.endswith(".")
        assert "good" in figure.reading


def test_no_text_overlaps_or_is_cut(drawn):
    """With eight rows."""
    assert {key: found for key, figure in drawn.items() if (found := clashes(figure))} == {}


def test_twenty_rows_fit():
    """As many rows as a comparison may have; names stay apart."""
    methods = ("fedavg", "heterofl", "mapp-fl", "fdropout", "fedrolex")
    data = data_of(make_store(methods=methods, seeds=(0,)))
    for kind in (pareto, roc, rounds):
        [figure] = figures(kind, data)
        assert clashes(figure) == []
        assert sum(" / " in text for text, _ in texts(figure)[0]) >= 20


def test_svg_holds_the_labels_as_text(drawn, table):
    """Names of rows can be searched for, the ink can be replaced, and files stay small."""
    names = {style.label for style in row_styles(table).values()}
    for key, figure in drawn.items():
        markup = svg(figure)
        shown = {name for name in names if f">{name}<" in markup}
        hidden = {name for name in names if "secure" in name} if key == "clients" else set()
        undefended = {name for name in names if "none" in name} if key == "cost" else set()
        assert shown == names - hidden - undefended
        assert INK in markup
        assert len(markup) < 300_000


def test_rows_look_the_same_everywhere(table, drawn):
    """Colour and marker of a row in the Pareto figure are those of its curves and of its clients."""
    styles = row_styles(table)
    expected = {(style.colour, style.marker) for style in styles.values()}
    for key in ("pareto", "rounds"):
        shown = {mark[2:] for axes in panels(drawn[key]) for mark in marks(axes)}
        assert shown == expected
    for axes in panels(drawn["clients"]):
        style = next(style for style in styles.values() if style.label == axes.get_title(loc="left"))
        assert {mark[2:] for mark in marks(axes)} == {(style.colour, style.marker)}
    for axes in panels(drawn["roc"]):
        for line in axes.get_lines():
            found = [style.colour for style in styles.values() if style.label == line.get_label()]
            assert found in ([], [line.get_color()])


def test_rows_differ_beyond_the_number_of_colours():
    """Thirty rows: no two with the same colour and marker; the same method and defense always looks the same."""
    table = table_of(*((f"method {number}", "none", {}) for number in range(30)))
    styles = row_styles(table)
    assert len({(style.colour, style.marker) for style in styles.values()}) == 30
    assert styles["method 0 / none"].colour == styles["method 10 / none"].colour == COLOURS[0]
    twice = replace(table, rows=(*table.rows, *(replace(row, dataset="other") for row in table.rows)))
    assert row_styles(twice) == styles


def test_labels_leave_out_what_all_share():
    """Only defenses differ, only methods differ, or both."""
    assert [style.label for style in row_styles(table_of(("a", "none", {}), ("a", "l2", {}))).values()] == [
        "no defense",
        "l2",
    ]
    assert [style.label for style in row_styles(table_of(("a", "none", {}), ("b", "none", {}))).values()] == ["a", "b"]
    assert [style.label for style in row_styles(table_of(("a", "none", {}), ("b", "l2", {}))).values()] == [
        "a / none",
        "b / l2",
    ]


def test_one_figure_per_dataset():
    """Each names its dataset, and no two have the same key."""
    store = make_store(
        methods=("fedavg",), defenses=("none", "memdefense"), datasets=("digits", "MNIST 10/2"), seeds=(0,)
    )
    drawn = list(figures_of(store, tabulate(store)))
    keys = [figure.key for figure in drawn]
    assert len(set(keys)) == len(keys)
    assert {"pareto-1-digits", "pareto-2-mnist-10-2"} <= set(keys)
    assert [figure.title for figure in drawn if figure.key.startswith("pareto")] == [
        "Privacy-utility trade-off: digits",
        "Privacy-utility trade-off: MNIST 10/2",
    ]


def test_nothing_to_show_yields_nothing():
    """A run without attacks, images, files or a defense has its rounds alone; no run has nothing."""
    plain = Store("x", "", (make_record(labels()),), ())
    assert [figure.key for figure in figures_of(plain, tabulate(plain))] == ["rounds"]
    empty = FigureData(Store("x", "", (), ()), table_of())
    assert [figure for kind in KINDS for figure in figures(kind, empty)] == []
    silent = Store("x", "", (replace(make_record(labels()), rounds=()),), ())
    assert list(figures_of(silent, tabulate(silent))) == []


@pytest.mark.parametrize("seed", range(20))
def test_spread_keeps_distance_order_and_place(seed):
    """Places are at least a gap apart, in order, within limits, and do not move where they need not."""
    rng = np.random.default_rng(seed)
    wanted = rng.uniform(0, 1, rng.integers(1, 12)).tolist()
    places = spread(wanted, 0.05, 0.0, 1.0)
    order = np.argsort(wanted)
    assert np.all(np.diff(np.array(places)[order]) >= 0.05 - 1e-9)
    assert min(places) >= -1e-9
    assert max(places) <= 1 + 1e-9
    apart = 0.1 + 0.08 * np.arange(len(wanted))
    np.testing.assert_allclose(spread(apart.tolist(), 0.05, 0.0, 1.0), apart)


def test_spread_of_too_many_is_even():
    """More labels than fit share the room."""
    np.testing.assert_allclose(sorted(spread([0.5] * 11, 0.5, 0.0, 1.0)), np.linspace(0, 1, 11))


def test_equal_places_are_centred():
    """Three labels that want the same place lie around it."""
    np.testing.assert_allclose(spread([0.5, 0.5, 0.5], 0.1, 0.0, 1.0), [0.4, 0.5, 0.6])
