"""Leakage of every client against the size of its data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, Locator, LogLocator, MaxNLocator, NullFormatter, NullLocator

from app.common.wording import counted
from app.metrics.correlation import SizeCorrelation, size_correlation
from app.metrics.intervals import Interval
from app.metrics.leakage import Leakage
from app.metrics.membership import NotAvailable
from app.results.attacks.membership import AttackRecord
from app.results.comparison.rows import RowRuns
from app.results.figures import layout
from app.results.figures.data import FigureData, RowStyle
from app.results.figures.leakage import strongest
from app.results.figures.marks import mark
from app.results.figures.style import ReportFigure, report_style

ACROSS = 3
"""Panels side by side."""

MANY = 400
"""Points of a panel above which they are drawn as pixels."""


@dataclass(frozen=True)
class ClientPoint:
    """A client: training samples, 1 or more, and AUC on its uploads, 0 to 1."""

    size: int
    auc: float


def clients(data: FigureData, dataset: str) -> ReportFigure | None:
    """AUC of every client against its training samples, a panel per row; None where no uploads were attacked."""
    rows = [(data.style(row), client_points(data.row_runs(row))) for row in data.table.of(dataset)]
    panels = [(style, points) for style, points in rows if points]
    if not panels:
        return None
    return data.report_figure(
        "clients",
        "Leakage of a client against the size of its data",
        dataset,
        _plot(panels),
        "Every mark is a client: its number of training samples, on a logarithmic axis, against the AUC of the "
        "strongest attack on its uploads. Above every panel stands Pearson's correlation of the two, with a 95 % "
        "interval from resampling the clients.",
        "Low is good, and 0.5 (dashed) is chance. A negative correlation means that clients with little data leak "
        "more; an interval that contains 0 means that the data do not show either.",
    )


def client_points(row_runs: RowRuns) -> list[ClientPoint]:
    """Clients of all seeds under the strongest attack on uploads.

    Where a client has the same size under every seed, it is one client, and its mean over the seeds is one point.
    Otherwise the data were partitioned anew, and the clients of every seed are separate points.
    """
    seeds = [points for _, record in strongest(row_runs, "uploads") if (points := _of(record))]
    sizes = [{client: point.size for client, point in points.items()} for points in seeds]
    if len(seeds) > 1 and all(size == sizes[0] for size in sizes):
        means = {client: float(np.mean([seed[client].auc for seed in seeds])) for client in sizes[0]}
        return [ClientPoint(sizes[0][client], auc) for client, auc in means.items()]
    return [point for points in seeds for point in points.values()]


def correlation_text(correlation: SizeCorrelation | NotAvailable) -> str:
    """The correlation with its interval and the number of clients, or why there is none."""
    if isinstance(correlation, NotAvailable):
        return "too few clients for a correlation" if "at least" in correlation.reason else correlation.reason
    pearson, interval = correlation.pearson, correlation.pearson.interval
    bounds = f" [{interval.low:.2f}, {interval.high:.2f}]" if isinstance(interval, Interval) else ""
    return f"r = {pearson.value:.2f}{bounds}, {counted(correlation.clients, 'client')}"


def _of(record: AttackRecord) -> dict[int, ClientPoint]:
    return {
        row.client: ClientPoint(row.size, row.leakage.auc.value)
        for row in record.clients
        if isinstance(row.leakage, Leakage) and row.size > 0
    }


def _plot(panels: list[tuple[RowStyle, list[ClientPoint]]]) -> Figure:
    across = min(ACROSS, len(panels))
    lines = -(-len(panels) // across)
    with report_style():
        margins = layout.Margins(top=0.45, across=0.3, down=0.62)
        plot, grid = layout.panels(lines, [2.5] * across, 1.75, margins, sharex=True, sharey=True)
        for axes, (style, points) in zip(grid.ravel(), panels, strict=False):
            _draw(axes, style, points)
        for axes in grid.ravel()[len(panels) :]:
            axes.set_visible(False)
        _axes(grid, len(panels), [point.size for _, points in panels for point in points])
    return plot


def _draw(axes: Axes, style: RowStyle, points: list[ClientPoint]) -> None:
    sizes, aucs = [point.size for point in points], [point.auc for point in points]
    size = 4.5 if len(points) < 100 else 2.5
    look: dict[str, Any] = {"color": style.colour, "markersize": size, "alpha": 0.85, "rasterized": len(points) > MANY}
    [line] = axes.plot(sizes, aucs, style.marker, **look)
    axes.axhline(0.5, **layout.CHANCE)
    title = axes.set_title(style.label, fontsize=layout.SMALL + 0.5, loc="left", pad=14)
    mark(title, style.name, kind="label")
    correlation = correlation_text(size_correlation(sizes, aucs))
    each = [f"client with {counted(point.size, 'training sample')}, AUC {point.auc:.3f}" for point in points]
    mark(line, style.name, says=correlation, each=each)
    layout.remark(axes, correlation, (0.0, 1.03), va="bottom", fontsize=layout.SMALL - 0.5)
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
