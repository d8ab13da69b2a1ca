"""All pictures together: one look per row, texts that neither overlap nor get lost, nothing where there is nothing."""

from dataclasses import replace

import numpy as np
import pytest
from picture_kit import clashes, marks, panels, scene, svg, table_of, texts
from store_kit import attack, labels, make_record, make_store

from app.results.attacks.membership_files import AttackRecord
from app.results.comparison.tabulate import tabulate
from app.results.figures import KINDS, pictures_of
from app.results.figures.layout import spread
from app.results.figures.pareto import pareto
from app.results.figures.roc import roc
from app.results.figures.rounds import rounds
from app.results.figures.scene import FigureData, series_of
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
def pictures(attacked):
    """Its pictures by key."""
    return {picture.key: picture for picture in pictures_of(attacked, tabulate(attacked))}


def test_names_and_words(pictures):
    """Every kind that has data is drawn once, and says what it shows and what is good."""
    assert list(pictures) == ["pareto", "roc", "rounds", "clients", "cost"]
    for picture in pictures.values():
        assert picture.title
        assert picture.shows.endswith(".")
        assert "good" in picture.reading


def test_no_text_overlaps_or_is_cut(pictures):
    """With eight rows."""
    assert {key: found for key, picture in pictures.items() if (found := clashes(picture))} == {}


def test_twenty_rows_fit():
    """As many rows as a comparison may have; names stay apart."""
    methods = ("fedavg", "heterofl", "mapp-fl", "fdropout", "fedrolex")
    store = make_store(methods=methods, seeds=(0,))
    for kind in (pareto, roc, rounds):
        [picture] = kind(scene(store))
        assert clashes(picture) == []
        assert sum(" / " in text for text, _ in texts(picture)[0]) >= 20


def test_svg_holds_the_labels_as_text(pictures, attacked):
    """Names of rows can be searched for, the ink can be replaced, and files stay small."""
    names = {look.label for look in series_of(tabulate(attacked)).values()}
    for key, picture in pictures.items():
        drawn = svg(picture)
        shown = {name for name in names if f">{name}<" in drawn}
        hidden = {name for name in names if "secure" in name} if key == "clients" else set()
        undefended = {name for name in names if "none" in name} if key == "cost" else set()
        assert shown == names - hidden - undefended
        assert INK in drawn
        assert len(drawn) < 300_000


def test_rows_look_the_same_everywhere(attacked, pictures):
    """Colour and marker of a row in the Pareto picture are those of its curves and of its clients."""
    looks = series_of(tabulate(attacked))
    expected = {(look.colour, look.marker) for look in looks.values()}
    for key in ("pareto", "rounds"):
        shown = {mark[2:] for axes in panels(pictures[key]) for mark in marks(axes)}
        assert shown == expected
    for axes in panels(pictures["clients"]):
        look = next(look for look in looks.values() if look.label == axes.get_title(loc="left"))
        assert {mark[2:] for mark in marks(axes)} == {(look.colour, look.marker)}
    for axes in panels(pictures["roc"]):
        for line in axes.get_lines():
            found = [look.colour for look in looks.values() if look.label == line.get_label()]
            assert found in ([], [line.get_color()])


def test_series_are_told_apart_beyond_the_colours():
    """Thirty rows: no two with the same colour and marker; the same method and defense always looks the same."""
    table = table_of(*((f"method {number}", "none", {}) for number in range(30)))
    looks = series_of(table)
    assert len({(look.colour, look.marker) for look in looks.values()}) == 30
    assert looks["method 0 / none"].colour == looks["method 10 / none"].colour == COLOURS[0]
    twice = replace(table, rows=(*table.rows, *(replace(row, dataset="other") for row in table.rows)))
    assert series_of(twice) == looks


def test_labels_leave_out_what_all_share():
    """Only defenses differ, only methods differ, or both."""
    assert [look.label for look in series_of(table_of(("a", "none", {}), ("a", "l2", {}))).values()] == [
        "no defense",
        "l2",
    ]
    assert [look.label for look in series_of(table_of(("a", "none", {}), ("b", "none", {}))).values()] == ["a", "b"]
    assert [look.label for look in series_of(table_of(("a", "none", {}), ("b", "l2", {}))).values()] == [
        "a / none",
        "b / l2",
    ]


def test_one_picture_per_dataset():
    """Each names its dataset, and no two have the same key."""
    store = make_store(
        methods=("fedavg",), defenses=("none", "memdefense"), datasets=("digits", "MNIST 10/2"), seeds=(0,)
    )
    pictures = list(pictures_of(store, tabulate(store)))
    keys = [picture.key for picture in pictures]
    assert len(set(keys)) == len(keys)
    assert {"pareto-1-digits", "pareto-2-mnist-10-2"} <= set(keys)
    assert [picture.title for picture in pictures if picture.key.startswith("pareto")] == [
        "Utility against leakage: digits",
        "Utility against leakage: MNIST 10/2",
    ]


def test_nothing_to_show_yields_nothing():
    """A run without attacks, images, files or a defense has its rounds alone; no run has nothing."""
    plain = Store("x", "", (make_record(labels()),), ())
    assert [picture.key for picture in pictures_of(plain, tabulate(plain))] == ["rounds"]
    empty = FigureData(Store("x", "", (), ()), table_of())
    assert [picture for kind in KINDS for picture in kind(empty)] == []
    silent = Store("x", "", (replace(make_record(labels()), rounds=()),), ())
    assert list(pictures_of(silent, tabulate(silent))) == []


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
