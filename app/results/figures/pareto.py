"""Privacy-utility trade-off: accuracy against leakage of every row, and the Pareto front."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.ticker import MaxNLocator

from app.common.wording import LOCAL_TEST, RECEIVED, TRAINED
from app.metrics.membership import NotAvailable
from app.results.comparison.table import Row, Value
from app.results.figures import layout
from app.results.figures.bands import band
from app.results.figures.data import FigureData, RowStyle, family_of
from app.results.figures.leakage import TARGETS
from app.results.figures.marks import mark
from app.results.figures.style import FAINT, INK, ReportFigure, report_style

UTILITY = {
    "clients_accuracy": f"accuracy of the {RECEIVED} (%)",
    "everyone_accuracy": f"{LOCAL_TEST}, mean of all clients (%)",
    "clients_own": f"accuracy of the {TRAINED}, own test sets (%)",
    "server_accuracy": "accuracy of the server's model (%)",
}
"""Measures of utility with their axis titles; the one that most rows have is drawn, of equal ones the first."""

AUC = {"uploads": "uploads_auc", "global": "global_auc"}
"""Measure of leakage by target."""

HIDDEN = "not visible to the server"
"""Title of the strip for rows without an AUC, because the server sees no single update."""

MARGIN = 0.16
"""Width of the strip, as a share of the panel."""

CHANCE = 0.5

DIMMED = 0.45
"""Opacity of rows that another row beats in both, against that of the others."""


@dataclass(frozen=True)
class Point:
    """A row in one panel.

    Attributes:
        style: how it looks.
        utility: accuracy, 0 to 1.
        leakage: AUC; None where it is hidden.
        family: method and defense, without the strength of the defense.
        says: both values with their intervals, in words.
    """

    style: RowStyle
    utility: Value
    leakage: Value | None
    family: tuple[str, str]
    says: str


def pareto(data: FigureData, dataset: str) -> ReportFigure | None:
    """Accuracy against AUC on uploads and on the released model; None where no row has both."""
    utility = data.most_complete(dataset, UTILITY)
    if utility is None:
        return None
    points = {TARGETS[kind]: _points(data, dataset, utility, leakage) for kind, leakage in AUC.items()}
    panels = {name: each for name, each in points.items() if any(point.leakage for point in each)}
    if not panels:
        return None
    return data.report_figure(
        "pareto",
        "Privacy-utility trade-off",
        dataset,
        _plot(UTILITY[utility], panels),
        "Every mark is a row of the table: its accuracy against the AUC of the strongest attack, on uploads and on "
        "the released model. The dark line is the Pareto front: rows that no other row beats in both, the others are "
        "dimmed. Strengths of one defense are joined by a line of its colour.",
        "Up and to the left is good. An AUC of 0.5 (dashed) is chance. Bands reach from the lowest to the highest "
        "seed, crosses are 95 % intervals, which may reach beyond the panel. "
        f"Rows in the strip '{HIDDEN}' upload only masked or encrypted updates: they have no AUC, "
        "which is not the same as 0.5.",
    )


def front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Positions of (leakage, utility) pairs that no other pair beats in one without losing in the other.

    Returns:
        By rising leakage; of equal pairs, all.
    """

    def beaten(one: tuple[float, float]) -> bool:
        return any(other != one and other[0] <= one[0] and other[1] >= one[1] for other in points)

    return sorted((number for number, one in enumerate(points) if not beaten(one)), key=lambda number: points[number])


def _points(data: FigureData, dataset: str, utility: str, leakage: str) -> list[Point]:
    points = []
    for row in data.table.of(dataset):
        accuracy, auc = row.values.get(utility), row.values.get(leakage)
        if isinstance(accuracy, Value) and (isinstance(auc, Value) or _is_hidden(data, row, auc)):
            known = auc if isinstance(auc, Value) else None
            points.append(Point(data.style(row), accuracy, known, family_of(row), data.in_words(row, utility, leakage)))
    return points


def _is_hidden(data: FigureData, row: Row, value: Value | NotAvailable | None) -> bool:
    """Whether there is no number because the channel hides single updates, and not because no attack ran."""
    return isinstance(value, NotAvailable) and any(run.channels for run in data.runs(row))


def _plot(utility: str, panels: dict[str, list[Point]]) -> Figure:
    labels = {point.style.label: point for points in panels.values() for point in points}
    margins = layout.Margins(right=layout.label_room(list(labels)), top=0.45, across=0.3)
    with report_style():
        height = layout.label_height(len(labels), 3.1)
        plot, grid = layout.panels(1, [3.1] * len(panels), height, margins, sharey=True)
        for axes, (name, points) in zip(grid[0], panels.items(), strict=True):
            _draw(axes, points)
            axes.set_title(name, pad=14)
        grid[0, 0].set_ylabel(utility)
        layout.label_column(grid[0, -1], [(100 * point.utility.mean, point.style) for point in labels.values()])
    return plot


def _draw(axes: Axes, points: list[Point]) -> None:
    measured = [(point, point.leakage) for point in points if point.leakage is not None]
    hidden_points = [point for point in points if point.leakage is None]
    places = [(leakage.mean, 100 * point.utility.mean) for point, leakage in measured]
    best = [places[number] for number in front(places)]
    axes.plot(*zip(*best, strict=True), color=INK, linewidth=1.2, alpha=0.5, zorder=2, gid="front")
    _curves(axes, measured)
    low = _limits(axes, [leakage for _, leakage in measured], points, bool(hidden_points))
    for at, (point, leakage) in zip(places, measured, strict=True):
        _cross(axes, point, leakage, low, 1.0 if at in best else DIMMED)
    for point in hidden_points:
        place = ([0.62 * MARGIN], [100 * point.utility.mean], point.style.marker)
        look: dict[str, Any] = {"color": point.style.colour, "markersize": 6.5}
        [line] = axes.plot(*place, transform=axes.get_yaxis_transform(), **look)
        mark(line, point.style.name, kind="hidden", says=f"{point.says}, {HIDDEN}")
    axes.axvline(CHANCE, **layout.CHANCE)
    layout.along_top(axes, CHANCE, "chance")
    axes.set_xlabel("AUC of the strongest attack")
    axes.grid(visible=True)
    axes.set_axisbelow(True)


def _curves(axes: Axes, measured: Sequence[tuple[Point, Value]]) -> None:
    """A line through the strengths of every defense that has several, in the order of the table, and its band."""
    families: dict[tuple[str, str], list[tuple[Point, Value]]] = {}
    for point, leakage in measured:
        families.setdefault(point.family, []).append((point, leakage))
    for curve in (each for each in families.values() if len(each) > 1):
        names, colour = [point.style.name for point, _ in curve], curve[0][0].style.colour
        boxes = [(_seeds(leakage), _seeds(point.utility, 100)) for point, leakage in curve]
        area = axes.add_patch(PathPatch(band(boxes), facecolor=colour, alpha=0.13, linewidth=0, zorder=1.5))
        mark(area, *names, kind="band")
        places = [(leakage.mean, 100 * point.utility.mean) for point, leakage in curve]
        [line] = axes.plot(*zip(*places, strict=True), color=colour, linewidth=1.6, alpha=0.6, zorder=2)
        mark(line, *names, kind="family")


def _seeds(value: Value, scale: float = 1.0) -> tuple[float, float]:
    """Lowest and highest seed."""
    return scale * min(value.by_seed.values()), scale * max(value.by_seed.values())


def _cross(axes: Axes, point: Point, across: Value, left: float, strength: float) -> None:
    """A mark with its two intervals, where there are any; nothing is drawn left of `left`."""
    style, up = point.style, point.utility
    lines: dict[str, Any] = {"color": style.colour, "linewidth": 1.3, "alpha": 0.55 * strength, "zorder": 3}
    parts = []
    if math.isfinite(across.low):
        parts += axes.plot([max(across.low, left), across.high], [100 * up.mean] * 2, **lines)
    if math.isfinite(up.low):
        parts += axes.plot([across.mean] * 2, [100 * up.low, 100 * up.high], **lines)
    for part in parts:
        mark(part, style.name, kind="interval")
    look: dict[str, Any] = {"color": style.colour, "markersize": 6.5, "alpha": 0.85 * strength, "zorder": 4}
    [line] = axes.plot([across.mean], [100 * up.mean], style.marker, **look)
    mark(line, style.name, says=point.says)


def _limits(axes: Axes, aucs: list[Value], points: list[Point], strip: bool) -> float:
    """Limits that show chance and all rows, and on the left a strip for rows without AUC; returns where it ends."""
    low, high = reach(aucs, CHANCE)
    left = low - (high - low) * MARGIN / (1 - MARGIN) if strip else low
    axes.set_xlim(left, high)
    ticks = MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    axes.set_xticks([tick for tick in ticks if low <= tick <= high])
    bottom, top = reach([point.utility for point in points])
    axes.set_ylim(100 * bottom, 100 * top)
    if strip:
        axes.axvspan(left, low, color=FAINT, alpha=0.14, linewidth=0)
        layout.remark(axes, HIDDEN, (MARGIN / 5, 0.5), rotation=90, ha="center", va="center", alpha=0.75)
    return low


def reach(values: list[Value], *others: float) -> tuple[float, float]:
    """Limits of an axis: all means, and intervals as far as they are not much wider than the means are apart.

    With two seeds an interval may cover everything that is possible, and the rows would lie on one spot.

    Args:
        values: what is drawn; at least one.
        others: further values that must be visible.
    """
    means = [*others, *(value.mean for value in values)]
    low, high = min(means), max(means)
    room = max(high - low, 0.04)
    ends = [end for value in values for end in (value.low, value.high) if math.isfinite(end)]
    lowest, highest = (max(min([low, *ends]), low - 0.5 * room), min(max([high, *ends]), high + 0.5 * room))
    return lowest - 0.08 * room, highest + 0.08 * room
