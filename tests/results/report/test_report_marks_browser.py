"""Figures and tables that answer: values under the pointer, one row chosen everywhere, by mouse and by keyboard."""

from dataclasses import replace
from datetime import datetime

import pytest
from browser_kit import Browser, chromium
from figure_kit import svg
from report_kit import content_of, store, write

from app.results.comparison.tabulate import tabulate
from app.results.figures import figures_of
from app.results.figures.data import row_styles
from app.results.report.drawing import RenderedFigure
from app.results.report.page import page

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(chromium() is None, reason="no Chromium is installed, which these tests drive"),
]

FIGURES = ("pareto", "roc", "rounds", "clients", "cost")
ROW, HIDDEN = "fedavg / dp-sgd", "fedavg / secure-aggregation"
TIP = "document.getElementById('tip').hidden ? null : document.getElementById('tip').textContent"
DIMMED = "document.querySelectorAll('.dimmed').length"
RINGED = """
(() => {
    const both = [document.getElementById('ring'), document.activeElement];
    const [ring, mark] = both.map((one) => one.getBoundingClientRect());
    return ring.width > mark.width && ring.left < mark.left && ring.right > mark.right
        && ring.top < mark.top && ring.bottom > mark.bottom && ring.width < mark.width + 20;
})()
"""
"""Whether a ring surrounds what has the focus."""

CHOSEN = "[...document.querySelectorAll('#rows tbody tr.chosen')].map((one) => one.cells[0].dataset.value)"
PAINTED = """
((figure) => [...document.querySelectorAll(`#figure-${figure} :is(path, use, text)`)].map((one) => {
    const style = getComputedStyle(one);
    const words = one.localName === 'text' ? one.textContent : '';
    return [style.stroke, style.fill, words, Boolean(one.closest('.dimmed')), Boolean(one.closest('defs'))];
}))(%r)
"""
"""Stroke, fill and words of all that is drawn in a figure, and whether it is dimmed."""

MARKS = """
((figure, colour) => [...document.querySelectorAll(`#figure-${figure} .drawn :is(use, path)`)].filter((one) => {
    const style = getComputedStyle(one);
    return !one.closest('defs') && one.closest('[data-tip]') && [style.fill, style.stroke].includes(colour);
}))(%r, %r)
"""
"""Marks of a colour that say something."""

CENTRE = """
((one) => {
    one.scrollIntoView({ block: 'center', behavior: 'instant' });
    const box = one.getBoundingClientRect();
    const middle = [box.x + box.width / 2, box.y + box.height / 2];
    if (one.localName !== 'path' || getComputedStyle(one).fill !== 'none') return middle;
    for (let share = 0; share <= 1; share += 0.01) {
        const point = one.getPointAtLength(share * one.getTotalLength()).matrixTransform(one.getScreenCTM());
        if (document.elementFromPoint(point.x, point.y) === one) return [point.x, point.y];
    }
})
"""
"""Where the middle of an element is, once it is in sight; of a line, a place that no other line covers."""


@pytest.fixture(scope="module")
def table():
    """The table of fabricated runs whose differences are known; every row has a colour of its own."""
    return tabulate(store())


@pytest.fixture(scope="module")
def browser(tmp_path_factory, table):
    """A browser, and in it the page of these runs with their figures."""
    folder = tmp_path_factory.mktemp("page")
    # drawn for the page alone: without the files beside it, that takes a third of the time
    drawn = [RenderedFigure(each, svg(each), b"") for each in figures_of(store(), table)]
    assert [each.figure.key for each in drawn] == [*FIGURES]
    content = replace(content_of(table, figures=[]), figures=drawn)
    markup = page(content, "report", datetime(2026, 1, 2, 3, 4))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        started = Browser(tmp_path_factory.mktemp("profile"))
        started.page = write(folder / "report.html", markup)
        yield started
        started.close()


@pytest.fixture
def opened(browser):
    """The browser with a fresh page."""
    browser.open(browser.page)
    return browser


@pytest.fixture(scope="module")
def colours(table):
    """Colours of the rows as the browser names them."""
    return {name: rgb(style.colour) for name, style in row_styles(table).items()}


def rgb(colour):
    """`#102030` as `rgb(16, 32, 48)`."""
    return f"rgb({', '.join(str(int(colour[place : place + 2], 16)) for place in (1, 3, 5))})"


def mouse(browser, kind, place):
    """An event of the mouse, as a person would cause it."""
    button = {"button": "left", "clickCount": 1} if kind != "mouseMoved" else {}
    browser.call("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], **button)


def click(browser, place):
    """Move there and click."""
    for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
        mouse(browser, kind, place)


def place_of(browser, selector, text):
    """Centre of the element of this text."""
    found = f"[...document.querySelectorAll({selector!r})].find((one) => one.textContent === {text!r})"
    return browser.run(f"{CENTRE}({found})")


def mark_of(browser, figure, colour, number=-1):
    """Centre of a mark by its colour; by default of the last one."""
    return browser.run(f"{CENTRE}({MARKS % (figure, colour)}.at({number}))")


def assert_only(browser, table, colours, row):
    """By what is painted: colours and labels of the row stay, those of all other rows are dimmed, in every figure."""
    labels = {name: style.label for name, style in row_styles(table).items()}
    for figure in FIGURES:
        painted = [each[:4] for each in browser.run(PAINTED % figure) if not each[4]]
        for name, colour in colours.items():
            own = [dimmed for stroke, fill, _, dimmed in painted if colour in (stroke, fill)]
            own += [dimmed for _, _, words, dimmed in painted if words == labels[name]]
            assert own or (figure, name) in MISSING
            assert set(own) <= {name != row}, f"{name} in {figure}"
        others = [
            dimmed for stroke, fill, words, dimmed in painted if not {stroke, fill} & {*colours.values()} and not words
        ]
        assert figure == "cost" or not any(others), "axes, grids and the line of chance belong to no row"
    assert browser.run(CHOSEN) == [row]


MISSING = {("clients", "fedavg / secure-aggregation"), ("cost", "fedavg / none")}
"""Rows that a figure has nothing of: uploads that are hidden, and costs of what costs are compared with."""


def value_of(table, name, key):
    """An entry of a row."""
    [row] = [row for row in table.rows if row.name == name]
    return row.values[key]


def told(table, name, *keys):
    """Mean and interval of entries of a row, from the table's numbers alone."""
    texts = []
    for measure in (measure for key in keys for measure in table.measures if measure.key == key):
        value = value_of(table, name, measure.key)
        mean, low, high = (f"{measure.scale * one:.{measure.digits}f}" for one in (value.mean, value.low, value.high))
        texts.append(f"{measure.title} {mean}{' %' if measure.unit else ''} [{low}, {high}]")
    return f"{name}: {', '.join(texts)}"


def test_a_row_of_the_table_is_shown_in_every_figure(opened, table, colours):
    """A click chooses it, a click on another row that one, the same click again all rows."""
    click(opened, place_of(opened, "#rows .name", ROW))
    assert_only(opened, table, colours, ROW)
    click(opened, place_of(opened, "#rows .none", "no defense"))
    assert_only(opened, table, colours, "fedavg / none")
    pressed = "[...document.querySelectorAll('#rows .name')].map((one) => one.getAttribute('aria-pressed'))"
    assert opened.run(pressed) == ["true", "false", "false", "false"]
    assert opened.run("document.querySelector('#chosen output').textContent") == "Shown: fedavg / none on digits"
    click(opened, place_of(opened, "#rows .name", "fedavg / none"))
    assert opened.run(DIMMED) == 0
    assert opened.run("document.getElementById('chosen').hidden")
    assert opened.complaints() == []


@pytest.mark.parametrize("figure", FIGURES)
def test_a_mark_chooses_its_row(opened, table, colours, figure):
    """In every figure; the button of the remark at the foot of the page shows all rows again."""
    click(opened, mark_of(opened, figure, colours[ROW]))
    assert_only(opened, table, colours, ROW)
    click(opened, place_of(opened, "#chosen button", "Show all rows"))
    assert opened.run(DIMMED) == 0


def test_marks_tell_the_values_of_the_table(opened, table, colours):
    """Row, value and interval of the mark under the pointer; higher marks are of higher accuracy."""
    seen = []
    for name, colour in colours.items():
        place = mark_of(opened, "pareto", colour)
        mouse(opened, "mouseMoved", place)
        assert opened.run(TIP) == told(table, name, "clients_accuracy", "global_auc")
        scrolled = opened.run("scrollY")
        seen.append((value_of(table, name, "clients_accuracy").mean, place[1] + scrolled))
    assert [height for _, height in sorted(seen)] == sorted((height for _, height in seen), reverse=True)
    mouse(opened, "mouseMoved", mark_of(opened, "pareto", colours[HIDDEN], 0))
    assert opened.run(TIP) == f"{told(table, HIDDEN, 'clients_accuracy')}, not visible to the server"
    mouse(opened, "mouseMoved", (3, 3))
    assert opened.run(TIP) is None


def test_every_round_has_its_own_value(opened, colours):
    """Mean, and lowest and highest seed, of the round that is pointed at."""
    seeds = [run.rounds for run in store().runs if f"{run.labels.method} / {run.labels.defense}" == ROW]
    for number in range(3):
        values = [100 * rounds[number]["clients/received_common/mean"] for rounds in seeds]
        mouse(opened, "mouseMoved", mark_of(opened, "rounds", colours[ROW], number - 6))
        shown = f"{sum(values) / 3:.1f} [{min(values):.1f}, {max(values):.1f}]"
        assert opened.run(TIP) == f"{ROW}: round {number + 1}, accuracy of the received models (%) {shown}"


def test_thin_lines_are_found_beside_them(opened, table, colours):
    """Some pixels above the upper end of a bar it is still meant; far away nothing is."""
    across, up = mark_of(opened, "cost", colours[ROW], 0)
    height = opened.run(f"{MARKS % ('cost', colours[ROW])}[0].getBoundingClientRect().height")
    mouse(opened, "mouseMoved", (across, up - height / 2 - 4))
    ratios = value_of(table, ROW, "seconds_ratio")
    seeds = ratios.by_seed.values()
    assert opened.run(TIP) == f"{ROW}: seconds per round {ratios.mean:.3g} x [{min(seeds):.3g}, {max(seeds):.3g}]"
    mouse(opened, "mouseMoved", (across, up - height / 2 - 15))
    assert opened.run(TIP) is None


def test_by_keyboard(opened, table, colours):
    """Tab reaches one mark of a figure, arrows the others, each with ring and value; Enter chooses, Escape ends it."""
    mouse(opened, "mouseMoved", (600, 400))  # it rests somewhere, and the page scrolls below it
    opened.run("document.querySelector('#figure-pareto .drawing').focus()")
    told_now = "document.activeElement.getAttribute('aria-label')"
    seen = []
    opened.press("Tab", 9)
    for _ in range(8):
        assert opened.run(RINGED)
        assert opened.run(TIP) == opened.run(told_now)
        seen.append(opened.run(told_now))
        opened.press("ArrowRight", 39)
    names = [each.partition(":")[0] for each in seen]
    assert {name: names.count(name) for name in colours} == dict.fromkeys(colours, 2), "once in each of two panels"
    assert opened.run(told_now) == seen[0], "after the last comes the first"
    while not opened.run(told_now).startswith(ROW):
        opened.press("ArrowDown", 40)
    opened.press("Enter", 13, "\r")
    assert_only(opened, table, colours, ROW)
    assert opened.run("document.activeElement.getAttribute('aria-pressed')") == "true"
    opened.press("Escape", 27)
    assert opened.run(TIP) is None
    assert opened.run(RINGED), "the mark keeps the focus"
    assert opened.run(DIMMED) == 0
    opened.press("Tab", 9)
    assert opened.run("document.activeElement.closest('.drawing svg')") is None, "one stop for each figure"
    opened.run("document.querySelectorAll('#rows .name')[2].focus()")
    opened.press(" ", 32, " ")
    assert_only(opened, table, colours, ROW)


def test_paper_and_readers_without_scripts(opened, table, colours):
    """A chosen row is not printed as such; without scripts all is there, and no control that would do nothing."""
    click(opened, place_of(opened, "#rows .name", ROW))
    opened.call("Emulation.setEmulatedMedia", media="print")
    dimmed = "[...document.querySelectorAll('.drawn, #rows td')].some((one) => getComputedStyle(one).opacity < 1)"
    shown = (
        "[...document.querySelectorAll('#chosen, #controls, #groups, #theme, .marks, [role=button]')]"
        ".filter((one) => one.checkVisibility()).length"
    )
    assert not opened.run(dimmed)
    assert not opened.run("document.getElementById('chosen').checkVisibility()")
    opened.call("Emulation.setEmulatedMedia", media="")
    opened.call("Emulation.setScriptExecutionDisabled", value=True)
    opened.open(opened.page)
    assert not opened.run(dimmed)
    assert opened.run(shown) == 0
    assert opened.run("document.querySelectorAll('#rows tbody tr').length") == len(colours)
    opened.call("Emulation.setScriptExecutionDisabled", value=False)


def test_without_motion(opened):
    """Nothing fades where the reader wants no motion."""
    fades = "getComputedStyle(document.querySelector('.drawn')).transitionDuration"
    assert opened.run(fades) != "0s"
    opened.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-reduced-motion", "value": "reduce"}])
    assert opened.run(fades) == "0s"
    opened.call("Emulation.setEmulatedMedia", features=[])


def test_the_headline_table_is_sorted(opened, table, colours):
    """By the numbers of a column, while a row stays chosen; below it stands how."""
    click(opened, place_of(opened, "#rows .name", ROW))
    opened.run("document.querySelector('#rows th[data-key=clients_accuracy] button').click()")
    names = opened.run("[...document.querySelectorAll('#rows tbody tr')].map((one) => one.cells[0].dataset.value)")
    assert names == sorted(colours, key=lambda name: value_of(table, name, "clients_accuracy").mean)
    shown = opened.run("document.getElementById('shown').textContent")
    assert shown == "4 rows, sorted by Accuracy, received models (%), ascending"
    assert opened.run(CHOSEN) == [ROW]


@pytest.mark.parametrize("width", [400, 1280])
def test_the_headline_table_fits(opened, width):
    """Every entry is in sight without scrolling sideways, on a usual and on a narrow screen."""
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    opened.call("Emulation.setDeviceMetricsOverride", **size)
    ends = opened.run(
        "[...document.querySelectorAll('#rows :is(th, td)')].map((one) => one.getBoundingClientRect().right)"
    )
    assert max(ends) <= width
    assert opened.run("document.querySelector('#rows').parentElement.scrollWidth") <= width
    opened.call("Emulation.clearDeviceMetricsOverride")
