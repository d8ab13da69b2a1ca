"""Whether clients with little data leak more: every client's size against its leakage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, Locator, LogLocator, MaxNLocator, NullFormatter, NullLocator

from app.metrics.correlation import SizeCorrelation, size_correlation
from app.metrics.intervals import Estimate, Interval
from app.metrics.leakage import Leakage
from app.metrics.membership import NotAvailable
from app.results.attacks.membership_files import AttackRecord
from app.results.comparison.rows import RowRuns
from app.results.figures import layout
from app.results.figures.leakage import strongest
from app.results.figures.scene import FigureData, RowStyle
from app.results.figures.style import Picture, report_style

ACROSS = 3
"""Panels side by side."""

MANY = 400
"""Points from which on a panel's are drawn as pixels."""


@dataclass(frozen=True)
class ClientPoint:
    """A client.

    Attributes:
        size: training samples, 1 or more.
        auc: leakage of its uploads, 0 to 1.
    """

    size: int
    auc: float


def clients(scene: FigureData) -> Iterator[Picture]:
    """One picture per dataset whose uploads were attacked, with a panel per row."""
    for dataset in scene.datasets:
        found = [(scene.look(row), client_points(scene.cell(row))) for row in scene.table.of(dataset)]
        shown = [(look, points) for look, points in found if points]
        if shown:
            yield _picture(scene, dataset, shown)


def client_points(cell: RowRuns) -> list[ClientPoint]:
    """Clients of all seeds under the strongest attack on uploads.

    Where a client has the same size under every seed, it is one client, and its mean over the seeds is one point. Else
    data were dealt anew, and every seed's clients are clients of their own.
    """
    seeds = [points for _, record in strongest(cell, "uploads") if (points := _of(record))]
    sizes = [{client: point.size for client, point in points.items()} for points in seeds]
    if len(seeds) > 1 and all(size == sizes[0] for size in sizes):
        means = {client: float(np.mean([seed[client].auc for seed in seeds])) for client in sizes[0]}
        return [ClientPoint(sizes[0][client], auc) for client, auc in means.items()]
    return [point for points in seeds for point in points.values()]


def told(found: SizeCorrelation | NotAvailable) -> str:
    """The correlation in a few words."""
    if isinstance(found, NotAvailable):
        return "too few clients for a correlation" if "at least" in found.reason else found.reason
    return f"r = {_number(found.pearson)}, {found.clients} clients"


def _of(record: AttackRecord) -> dict[int, ClientPoint]:
    return {
        row.client: ClientPoint(row.size, row.leakage.auc.value)
        for row in record.clients
        if isinstance(row.leakage, Leakage) and row.size > 0
    }


def _number(estimate: Estimate) -> str:
    if isinstance(interval := estimate.interval, Interval):
        return f"{estimate.value:.2f} [{interval.low:.2f}, {interval.high:.2f}]"
    return f"{estimate.value:.2f}"


def _picture(scene: FigureData, dataset: str, shown: list[tuple[RowStyle, list[ClientPoint]]]) -> Picture:
    across = min(ACROSS, len(shown))
    lines = -(-len(shown) // across)
    with report_style():
        margins = layout.Margins(top=0.45, across=0.3, down=0.62)
        figure, grid = layout.panels(lines, [2.5] * across, 1.75, margins, sharex=True, sharey=True)
        for axes, (look, points) in zip(grid.ravel(), shown, strict=False):
            _draw(axes, look, points)
        for axes in grid.ravel()[len(shown) :]:
            axes.set_visible(False)
        _axes(grid, len(shown), [point.size for _, points in shown for point in points])
    return Picture(
        key=scene.key("clients", dataset),
        title=scene.title("Who leaks: size of a client's data against its leakage", dataset),
        shows=(
            "A mark is a client: its number of training samples, on a logarithmic axis, against the AUC of the "
            "strongest attack on what it sends. In every panel stands Pearson's correlation of the two, with a 95 % "
            "interval from resampling the clients."
        ),
        reading=(
            "Low is good, and 0.5 (dashed) is chance. A negative correlation means that clients with little data leak "
            "more; an interval that contains 0 leaves it open."
        ),
        figure=figure,
    )


def _draw(axes: Axes, look: RowStyle, points: list[ClientPoint]) -> None:
    sizes, aucs = [point.size for point in points], [point.auc for point in points]
    axes.plot(
        sizes,
        aucs,
        look.marker,
        color=look.colour,
        markersize=4.5 if len(points) < 100 else 2.5,
        alpha=0.85,
        rasterized=len(points) > MANY,
    )
    axes.axhline(0.5, **layout.CHANCE)
    axes.set_title(look.label, fontsize=layout.SMALL + 0.5, loc="left", pad=14)
    axes.text(
        0.0,
        1.03,
        told(size_correlation(sizes, aucs)),
        transform=axes.transAxes,
        ha="left",
        va="bottom",
        fontsize=layout.SMALL - 0.5,
    )
    axes.grid(visible=True)


def _axes(grid: np.ndarray, number: int, sizes: Sequence[int]) -> None:
    """Logarithmic sizes with few round numbers, and axis titles at the edges of the grid."""
    low, high = min(sizes), max(sizes)
    edge = max((high / low) ** 0.08, 1.15)
    for place, axes in enumerate(grid.ravel()[:number]):
        axes.set_xscale("log")
        axes.set_xlim(low / edge, high * edge)
        axes.xaxis.set_major_locator(_ticks(high / low))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: f"{size:,.0f}"))
        if place + grid.shape[1] >= number:  # nothing below it
            axes.set_xlabel("training samples")
            axes.tick_params(labelbottom=True)
        if place % grid.shape[1] == 0:
            axes.set_ylabel("AUC")


def _ticks(span: float) -> Locator:
    """Few round numbers, also where all clients have about the same size."""
    if span < 2:
        return MaxNLocator(4, integer=True)
    return LogLocator(subs=(1, 2, 3, 4, 6) if span < 8 else (1, 2, 5) if span < 50 else (1,))
