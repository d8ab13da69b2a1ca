"""Utility against leakage: what a defense gives and what it takes, with the rows that none beats in both."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from app.metrics.membership import NotAvailable
from app.results.comparison.table import Row, Value
from app.results.figures import layout
from app.results.figures.leakage import AUC, TARGETS, UTILITY
from app.results.figures.scene import FigureData, RowStyle
from app.results.figures.style import FAINT, INK, Picture, report_style

HIDDEN = "not visible to the server"
"""Stands at the margin where rows lie whose leakage nobody could measure, because the server sees no single update."""

MARGIN = 0.16
"""Share of a panel's width for those rows."""

CHANCE = 0.5


@dataclass(frozen=True)
class Point:
    """A row in one panel.

    Attributes:
        look: how it looks.
        utility: accuracy, 0 to 1.
        leakage: AUC; None where it is hidden.
    """

    look: RowStyle
    utility: Value
    leakage: Value | None


def pareto(scene: FigureData) -> Iterator[Picture]:
    """One picture per dataset that has accuracy and leakage of some row."""
    for dataset in scene.datasets:
        utility = scene.fullest(dataset, UTILITY)
        if utility is not None:
            found = [(TARGETS[kind], _points(scene, dataset, utility, leakage)) for kind, leakage in AUC.items()]
            shown = [(name, points) for name, points in found if any(point.leakage for point in points)]
            if shown:
                yield _picture(scene, dataset, UTILITY[utility], shown)


def front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Positions of (leakage, utility) pairs that no other pair beats in one without losing in the other.

    Returns:
        By rising leakage; of equal pairs, all.
    """

    def beaten(one: tuple[float, float]) -> bool:
        return any(other != one and other[0] <= one[0] and other[1] >= one[1] for other in points)

    return sorted((number for number, one in enumerate(points) if not beaten(one)), key=lambda number: points[number])


def _points(scene: FigureData, dataset: str, utility: str, leakage: str) -> list[Point]:
    found = []
    for row in scene.table.of(dataset):
        useful, leaks = row.values.get(utility), row.values.get(leakage)
        if isinstance(useful, Value) and (isinstance(leaks, Value) or hidden(scene, row, leaks)):
            found.append(Point(scene.look(row), useful, leaks if isinstance(leaks, Value) else None))
    return found


def hidden(scene: FigureData, row: Row, value: Value | NotAvailable | None) -> bool:
    """Whether there is no number because the channel hides single updates, and not for want of an attack."""
    return isinstance(value, NotAvailable) and any(run.channels for run in scene.runs(row))


def _picture(scene: FigureData, dataset: str, utility: str, shown: list[tuple[str, list[Point]]]) -> Picture:
    labels = {point.look.label: point for _, points in shown for point in points}
    room = layout.label_room(list(labels))
    margins = layout.Margins(right=room, top=0.45, across=0.3)
    with report_style():
        height = layout.label_height(len(labels), 3.1)
        figure, grid = layout.panels(1, [3.1] * len(shown), height, margins, sharey=True)
        for axes, (name, points) in zip(grid[0], shown, strict=True):
            _draw(axes, points)
            axes.set_title(name, pad=14)
        grid[0, 0].set_ylabel(utility)
        layout.label_column(grid[0, -1], [(100 * point.utility.mean, point.look) for point in labels.values()])
    return Picture(
        key=scene.key("pareto", dataset),
        title=scene.title("Utility against leakage", dataset),
        shows=(
            "Every mark is a row of the table: its accuracy against the AUC of the strongest attack, on what clients "
            "send and on the released model. The line joins the rows that no other row beats in both."
        ),
        reading=(
            "Up and to the left is good. An AUC of 0.5 (dashed) is chance: members cannot be told from others. Crosses "
            f"are 95 % intervals, which may reach beyond the panel. Rows in the strip '{HIDDEN}' send only masked or "
            "encrypted updates: there is no number, which is not the same as 0.5."
        ),
        figure=figure,
    )


def _draw(axes: Axes, points: list[Point]) -> None:
    measured = [(point, point.leakage) for point in points if point.leakage is not None]
    sealed = [point for point in points if point.leakage is None]
    places = [(leakage.mean, 100 * point.utility.mean) for point, leakage in measured]
    best = [places[number] for number in front(places)]
    axes.plot(*zip(*best, strict=True), color=INK, linewidth=1.2, alpha=0.5, zorder=2, gid="front")
    low = _limits(axes, [leakage for _, leakage in measured], points, bool(sealed))
    for point, leakage in measured:
        _cross(axes, point.look, leakage, point.utility, low)
    for point in sealed:
        look: RowStyle = point.look
        place = axes.get_yaxis_transform()
        axes.plot(
            [0.62 * MARGIN],
            [100 * point.utility.mean],
            look.marker,
            color=look.colour,
            markersize=6.5,
            transform=place,
            gid="hidden",
        )
    axes.axvline(CHANCE, **layout.CHANCE)
    layout.along_top(axes, CHANCE, "chance")
    axes.set_xlabel("AUC of the strongest attack")
    axes.grid(visible=True)
    axes.set_axisbelow(True)


def _cross(axes: Axes, look: RowStyle, across: Value, up: Value, left: float) -> None:
    """A mark with its two intervals, as far as there are any; nothing is drawn left of an AUC."""
    lines: dict[str, Any] = {"color": look.colour, "linewidth": 1.3, "alpha": 0.55, "zorder": 3}
    if math.isfinite(across.low):
        axes.plot([max(across.low, left), across.high], [100 * up.mean] * 2, **lines)
    if math.isfinite(up.low):
        axes.plot([across.mean] * 2, [100 * up.low, 100 * up.high], **lines)
    axes.plot([across.mean], [100 * up.mean], look.marker, color=look.colour, markersize=6.5, alpha=0.85, zorder=4)


def _limits(axes: Axes, found: list[Value], points: list[Point], strip: bool) -> float:
    """Chance and all rows with some room; on the left, a strip for rows without a number. Returns where it ends."""
    low, high = reach(found, CHANCE)
    left = low - (high - low) * MARGIN / (1 - MARGIN) if strip else low
    axes.set_xlim(left, high)
    ticks = MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    axes.set_xticks([tick for tick in ticks if low <= tick <= high])
    bottom, top = reach([point.utility for point in points])
    axes.set_ylim(100 * bottom, 100 * top)
    if strip:
        axes.axvspan(left, low, color=FAINT, alpha=0.14, linewidth=0)
        style = {"rotation": 90, "ha": "center", "va": "center", "alpha": 0.75}
        layout.remark(axes, HIDDEN, (MARGIN / 5, 0.5), **style)
    return low


def reach(found: list[Value], *others: float) -> tuple[float, float]:
    """Limits of an axis: all means, and intervals as far as they are not much wider than the means are apart.

    With two seeds an interval may cover everything that is possible, and the rows would lie on one spot.

    Args:
        found: what is drawn; at least one.
        others: further values that must be seen.
    """
    means = [*others, *(value.mean for value in found)]
    low, high = min(means), max(means)
    room = max(high - low, 0.04)
    ends = [end for value in found for end in (value.low, value.high) if math.isfinite(end)]
    lowest, highest = (max(min([low, *ends]), low - 0.5 * room), min(max([high, *ends]), high + 0.5 * room))
    return lowest - 0.08 * room, highest + 0.08 * room
