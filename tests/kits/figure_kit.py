"""Reads figures of the report: texts and their places, marks and their values, SVG files."""

import io
from itertools import combinations

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex

from app.results.comparison.table import ComparisonTable, Row, Value
from app.results.comparison.tabulate import tabulate
from app.results.figures import FigureData
from app.results.figures.style import report_style


def data_of(store):
    """A store and its table."""
    return FigureData(store, tabulate(store))


def figures(kind, data):
    """Figures of one kind, one for each dataset that has data for it."""
    return [figure for dataset in data.datasets if (figure := kind(data, dataset))]


def value(mean, low=float("nan"), high=float("nan"), **by_seed):
    """An entry of the table."""
    return Value(mean, low, high, by_seed.get("by_seed", {0: mean}), "none")


def table_of(*rows):
    """A table of rows given as (method, defense, values by key); one dataset, one seed."""
    made = [Row("digits", method, defense, (0,), ("run",), values) for method, defense, values in rows]
    return ComparisonTable((), tuple(made))


def panels(figure):
    """Visible panels that have data, without colour bars."""
    return [axes for axes in figure.plot.axes if axes.get_visible() and axes.has_data()]


def kind_of(artist):
    """Kind of a mark, the first part of its id; empty for what is no mark."""
    return (artist.get_gid() or "").rpartition("-")[0]


def marks(axes, *kinds):
    """Points that are drawn with a marker: (x, y, colour, marker); by default those of rows and curves."""
    found = []
    for line in axes.get_lines():
        if line.get_marker() not in ("None", "", None) and kind_of(line) in (kinds or ("point", "curve")):
            style = (to_hex(line.get_color()), line.get_marker())
            found += [(float(x), float(y), *style) for x, y in line.get_xydata()]
    return found


def svg(figure):
    """The figure as the page gets it."""
    file = io.StringIO()
    with report_style():
        figure.plot.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def texts(figure):
    """All texts of a figure that are drawn, with their boxes in pixels."""
    plot = figure.plot
    canvas = FigureCanvasAgg(plot)
    with report_style():
        plot.draw_without_rendering()
    renderer = canvas.get_renderer()
    drawn = [*plot.texts]
    for axes in (axes for axes in plot.axes if axes.get_visible()):
        inner = [axes, *axes.child_axes]
        drawn += [text for one in inner for text in _of_axes(one)]
    boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in drawn if text.get_visible()]
    return [(text, box) for text, box in boxes if text.strip()], plot.bbox


def _of_axes(axes):
    yield from (axes.title, axes._left_title, axes._right_title, axes.xaxis.label, axes.yaxis.label, *axes.texts)
    legend = axes.get_legend()
    yield from legend.get_texts() if legend is not None else ()
    for axis, low_high in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        low, high = sorted(low_high)
        for tick in [*axis.get_major_ticks(), *axis.get_minor_ticks()]:
            if low <= tick.get_loc() <= high:
                yield tick.label1


def clashes(figure, slack=1.0):
    """Pairs of texts that overlap, and texts that reach beyond the figure."""
    boxes, page = texts(figure)
    found = [
        (one, two)
        for (one, first), (two, second) in combinations(boxes, 2)
        if min(first.x1, second.x1) - max(first.x0, second.x0) > slack
        and min(first.y1, second.y1) - max(first.y0, second.y0) > slack
    ]
    cut = [
        (text, "cut")
        for text, box in boxes
        if box.x0 < page.x0 - slack or box.x1 > page.x1 + slack or box.y0 < page.y0 - slack or box.y1 > page.y1 + slack
    ]
    return found + cut
