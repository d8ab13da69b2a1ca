"""Panels of known size, and a column of labels beside them that never overlap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import blended_transform_factory
from sklearn.isotonic import isotonic_regression

from app.results.figures.data import RowStyle
from app.results.figures.marks import MarkedPlot, mark
from app.results.figures.style import FAINT, INK

SMALL = 8.0
"""Points: size of labels and remarks."""

LINE_HEIGHT = 0.165
"""Inches from one label to the next."""

LETTER = 0.067
"""Inches of a letter of a label, on average and with some to spare."""

CHANCE: dict[str, Any] = {"color": INK, "linewidth": 1.0, "linestyle": (0, (4, 3)), "alpha": 0.6, "zorder": 1}
"""Style of the lines of random guessing."""


@dataclass(frozen=True)
class Margins:
    """Inches around the panels, between their columns (across) and between their lines (down)."""

    left: float = 0.62
    right: float = 0.15
    top: float = 0.32
    bottom: float = 0.5
    across: float = 0.65
    down: float = 0.75


def panels(
    lines: int, widths: Sequence[float], height: float, margins: Margins, **options: Any
) -> tuple[Figure, np.ndarray]:
    """A figure with a grid of panels of the given inner size; fixed, so that labels can be placed without trying.

    Args:
        lines: panels below each other, 1 or more.
        widths: inches of every column.
        height: inches of every line.
        margins: around them.
        options: of `Figure.subplots`.
    """
    columns = len(widths)
    width = margins.left + sum(widths) + margins.across * (columns - 1) + margins.right
    tall = margins.top + lines * height + margins.down * (lines - 1) + margins.bottom
    figure = MarkedPlot(figsize=(width, tall))
    grid = figure.subplots(
        lines,
        columns,
        squeeze=False,
        width_ratios=list(widths),
        gridspec_kw={
            "left": margins.left / width,
            "right": 1 - margins.right / width,
            "top": 1 - margins.top / tall,
            "bottom": margins.bottom / tall,
            "wspace": margins.across * columns / sum(widths),
            "hspace": margins.down / height,
        },
        **options,
    )
    return figure, grid


def label_room(labels: Sequence[str]) -> float:
    """Inches that a column of labels needs beside its panel."""
    return 0.45 + LETTER * max(map(len, labels), default=0)


def label_height(number: int, least: float) -> float:
    """Inches that a panel needs to have so many labels beside it, and never less than the least."""
    return max(least, LINE_HEIGHT * number + 0.1)


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places as near as possible to the wanted ones, at least `gap` apart, from low to high.

    Where they do not fit, they are evenly spaced. The order of equal ones is kept.
    """
    number = len(wanted)
    if number * gap > high - low + gap:
        gap = (high - low) / max(1, number - 1)
    order = np.argsort(wanted, kind="stable")
    # With k gaps taken off, places that keep their distance become places that only keep their order.
    target = np.asarray(wanted, dtype=np.float64)[order] - gap * np.arange(number)
    level = np.clip(isotonic_regression(target), low, max(low, high - gap * (number - 1)))
    places = np.empty(number)
    places[order] = level + gap * np.arange(number)
    return [float(place) for place in places]


def label_column(axes: Axes, entries: Sequence[tuple[float, RowStyle]]) -> None:
    """Names of rows to the right of a panel, each at the height of its value or near it, with a thin line to it.

    Args:
        axes: a panel whose limits are final and whose height is fixed.
        entries: value on the panel's y axis, and style of the row.
    """
    figure = axes.figure
    assert isinstance(figure, Figure)
    axes.get_xlim(), axes.get_ylim()  # limits that are still to be fitted to the data are fitted now
    box = axes.get_position()
    tall, wide = box.height * figure.get_figheight(), box.width * figure.get_figwidth()
    wanted = [float(axes.transAxes.inverted().transform(axes.transData.transform((0, y)))[1]) for y, _ in entries]
    wanted = [min(max(place, 0.0), 1.0) for place in wanted]
    places = spread(wanted, LINE_HEIGHT / tall, 0.0, 1.0)
    for (_, style), start, end in zip(entries, wanted, places, strict=True):
        leader = Line2D(
            [1 + 0.04 / wide, 1 + 0.2 / wide], [start, end], color=style.colour, linewidth=0.8, alpha=0.7, clip_on=False
        )
        leader.set_transform(axes.transAxes)
        axes.add_line(leader)
        look = Line2D([1 + 0.28 / wide], [end], color=style.colour, marker=style.marker, markersize=5.0, linestyle="")
        look.set(transform=axes.transAxes, clip_on=False)
        axes.add_line(look)
        place: dict[str, Any] = {"transform": axes.transAxes, "va": "center", "ha": "left", "fontsize": SMALL}
        for part in (leader, look, axes.text(1 + 0.38 / wide, end, style.label, **place)):
            mark(part, style.name, kind="label")


def remark(axes: Axes, text: str, place: tuple[float, float] = (0.02, 0.97), **options: Any) -> None:
    """A remark inside a panel, at a place in fractions of it."""
    style: dict[str, Any] = {"ha": "left", "va": "top", "fontsize": SMALL, "zorder": 6, **options}
    axes.text(*place, text, transform=axes.transAxes, **style)


def along_top(axes: Axes, x: float, text: str) -> None:
    """A remark on a vertical line, just above the panel."""
    place = blended_transform_factory(axes.transData, axes.transAxes)
    axes.text(x, 1.015, text, transform=place, ha="center", va="bottom", fontsize=SMALL - 0.5, color=INK)


def dotted(axes: Axes, x: float) -> None:
    """A faint vertical line."""
    axes.axvline(x, color=FAINT, linewidth=1.0, linestyle=(0, (1, 2)), zorder=1)
