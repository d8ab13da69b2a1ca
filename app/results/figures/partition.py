"""Class distribution over the clients."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from app.common.files import cell_text
from app.common.reading import read_text
from app.results.figures import layout
from app.results.figures.data import FigureData
from app.results.figures.style import COLOURS, ReportFigure, report_style

NAME = "partition.csv"
OTHERS = ("client", "size", "group", "name")
"""Columns of that file that are not classes."""

MOST_NUMBERS = (24, 12)
"""Clients and classes up to which the counts are printed."""

MOST_NAMES = 30
"""Clients and classes up to which each is named on its axis."""


@dataclass(frozen=True, eq=False)
class PartitionCounts:
    """Training samples of every client."""

    clients: tuple[str, ...]  # their names
    classes: tuple[str, ...]  # names of the classes
    counts: NDArray[np.int64]  # (clients, classes) samples
    sizes: NDArray[np.int64]  # samples of every client


def heatmap(data: FigureData, dataset: str) -> ReportFigure | None:
    """Training samples by client and class, of the first run that has kept its partition; None where none has."""
    for run in (run for row in data.baseline_first(dataset) for run in data.runs(row)):
        partition = read_partition(run.path / NAME)
        if partition is not None:
            return data.report_figure(
                "heatmap",
                "Class distribution over the clients",
                dataset,
                _plot(partition),
                f"Training samples of every client by class, and in total, in the run {run.name}. Runs with the same "
                "seed and data have the same partition.",
                "The brighter a field, the more samples: rows of even colour are clients with balanced classes, dark "
                "fields are classes that a client lacks. Bars are the training samples of a client.",
            )
    return None


def read_partition(path: Path) -> PartitionCounts | None:
    """A partition from its file; None where there is none, or it cannot be read."""
    try:
        rows = list(csv.DictReader(io.StringIO(read_text(path), newline="")))
        classes = tuple(name for name in rows[0] if name not in OTHERS)
        counts = np.array([[int(row[name]) for name in classes] for row in rows], dtype=np.int64)
        sizes = np.array([int(row["size"]) for row in rows], dtype=np.int64)
        return PartitionCounts(
            tuple(row["client"] for row in rows), tuple(map(cell_text, classes)), counts.reshape(len(rows), -1), sizes
        )
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return None


def _plot(partition: PartitionCounts) -> Figure:
    clients, classes = partition.counts.shape
    with report_style():
        height = min(max(0.2 * clients + 0.2, 1.6), 4.6)
        widths = [min(max(0.36 * classes, 2.4), 5.4), 1.6]
        plot, grid = layout.panels(1, widths, height, layout.Margins(across=0.2, right=0.55), sharey=True)
        _counts(grid[0, 0], partition)
        _sizes(grid[0, 1], partition)
    return plot


def _counts(axes: Axes, partition: PartitionCounts) -> None:
    clients, classes = partition.counts.shape
    scale = Normalize(0, max(1, int(partition.counts.max())))
    axes.imshow(partition.counts, cmap="viridis", norm=scale, aspect="auto", interpolation="nearest")
    if clients <= MOST_NUMBERS[0] and classes <= MOST_NUMBERS[1]:
        shade = colormaps["viridis"]
        for row, column in np.ndindex(clients, classes):
            count = int(partition.counts[row, column])
            light = np.dot(shade(scale(count))[:3], (0.299, 0.587, 0.114)) > 0.5
            text = axes.text(column, row, str(count), ha="center", va="center", fontsize=6.5 if count < 1000 else 5.5)
            text.set_color("#000000" if light else "#ffffff")
    axes.set(xlabel="class", ylabel="client")
    _name(axes, partition)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _name(axes: Axes, partition: PartitionCounts) -> None:
    """Names of all clients and classes where they are few, else round numbers."""
    for axis, names in ((axes.xaxis, partition.classes), (axes.yaxis, partition.clients)):
        if len(names) <= MOST_NAMES:
            upright = axis is axes.xaxis and max(map(len, names)) > 3
            axis.set_ticks(range(len(names)), names, rotation=90 if upright else 0, fontsize=7.5)
        else:
            axis.set_major_locator(MaxNLocator(10, integer=True))


def _sizes(axes: Axes, partition: PartitionCounts) -> None:
    many = partition.sizes.size > MOST_NAMES
    axes.barh(range(partition.sizes.size), partition.sizes, height=1.0 if many else 0.8, color=COLOURS[0])
    axes.set_xlabel("training samples")
    axes.xaxis.set_major_locator(MaxNLocator(3, integer=True))
    axes.tick_params(axis="y", length=0, labelleft=False)
    axes.set_ylim(partition.sizes.size - 0.5, -0.5)
    if partition.sizes.size <= MOST_NUMBERS[0]:
        for row, size in enumerate(partition.sizes):
            label = axes.annotate(f"{size:,}", (float(size), row), (3, 0), textcoords="offset points")
            label.set(va="center", fontsize=7, zorder=5)
