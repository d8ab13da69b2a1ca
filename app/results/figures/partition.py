"""Who owns how much of which class."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from app.results.figures import layout
from app.results.figures.scene import FigureData
from app.results.figures.style import COLOURS, Picture, report_style
from app.results.run.store import RunRecord

NAME = "partition.csv"
OTHERS = ("client", "size", "group", "name")
"""Columns of that file that are no classes."""

MOST_NUMBERS = (24, 12)
"""Clients and classes up to which counts stand in the cells."""

MOST_NAMES = 30
"""Clients and classes up to which each is named on its axis."""


@dataclass(frozen=True, eq=False)
class PartitionCounts:
    """Training samples of every client.

    Attributes:
        clients: their names.
        classes: names of the classes.
        counts: (clients, classes) samples.
        sizes: samples of every client.
    """

    clients: tuple[str, ...]
    classes: tuple[str, ...]
    counts: NDArray[np.int64]
    sizes: NDArray[np.int64]


def heatmap(scene: FigureData) -> Iterator[Picture]:
    """One picture per dataset, from the first run that has kept its partition."""
    for dataset in scene.datasets:
        for run in (run for row in scene.ordered(dataset) for run in scene.runs(row)):
            partition = read_partition(run.path / NAME)
            if partition is not None:
                yield _picture(scene, dataset, run, partition)
                break


def read_partition(path: Path) -> PartitionCounts | None:
    """A partition from its file; None where there is none, or it cannot be read."""
    try:
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        classes = tuple(name for name in rows[0] if name not in OTHERS)
        counts = np.array([[int(row[name]) for name in classes] for row in rows], dtype=np.int64)
        sizes = np.array([int(row["size"]) for row in rows], dtype=np.int64)
        return PartitionCounts(tuple(row["client"] for row in rows), classes, counts.reshape(len(rows), -1), sizes)
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return None


def _picture(scene: FigureData, dataset: str, run: RunRecord, partition: PartitionCounts) -> Picture:
    clients, classes = partition.counts.shape
    with report_style():
        height = min(max(0.2 * clients + 0.2, 1.6), 4.6)
        widths = [min(max(0.36 * classes, 2.4), 5.4), 1.6]
        figure, grid = layout.panels(1, widths, height, layout.Margins(across=0.2, right=0.55), sharey=True)
        _cells(grid[0, 0], partition)
        _bars(grid[0, 1], partition)
    return Picture(
        key=scene.key("heatmap", dataset),
        title=scene.title("Who owns which classes", dataset),
        shows=(
            f"Training samples of every client by class, and in all, in the run {run.name}. Runs with the same seed "
            "and data have the same clients."
        ),
        reading=(
            "The brighter a cell, the more samples; rows of one colour are clients with all classes alike, and dark "
            "cells are classes that a client lacks. Unequal bars are clients with unequal amounts of data."
        ),
        figure=figure,
    )


def _cells(axes: Axes, partition: PartitionCounts) -> None:
    clients, classes = partition.counts.shape
    scale = Normalize(0, max(1, int(partition.counts.max())))
    axes.imshow(partition.counts, cmap="viridis", norm=scale, aspect="auto", interpolation="nearest")
    if clients <= MOST_NUMBERS[0] and classes <= MOST_NUMBERS[1]:
        shade = colormaps["viridis"]
        for row, column in np.ndindex(clients, classes):
            count = int(partition.counts[row, column])
            light = np.dot(shade(scale(count))[:3], (0.299, 0.587, 0.114)) > 0.5
            style = {"ha": "center", "va": "center", "fontsize": 6.5 if count < 1000 else 5.5}
            axes.text(column, row, str(count), color="#000000" if light else "#ffffff", **style)  # type: ignore[arg-type]
    axes.set(xlabel="class", ylabel="client")
    _name(axes, partition)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _name(axes: Axes, partition: PartitionCounts) -> None:
    """Names of all clients and classes where they are few, else round numbers."""
    if len(partition.classes) <= MOST_NAMES:
        long = max(map(len, partition.classes)) > 3
        axes.set_xticks(range(len(partition.classes)), partition.classes, rotation=90 if long else 0, fontsize=7.5)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    if len(partition.clients) <= MOST_NAMES:
        axes.set_yticks(range(len(partition.clients)), partition.clients, fontsize=7.5)
    else:
        axes.yaxis.set_major_locator(MaxNLocator(10, integer=True))


def _bars(axes: Axes, partition: PartitionCounts) -> None:
    many = partition.sizes.size > MOST_NAMES
    axes.barh(range(partition.sizes.size), partition.sizes, height=1.0 if many else 0.8, color=COLOURS[0])
    axes.set_xlabel("training samples")
    axes.xaxis.set_major_locator(MaxNLocator(3, integer=True))
    axes.tick_params(axis="y", length=0, labelleft=False)
    axes.set_ylim(partition.sizes.size - 0.5, -0.5)
    if partition.sizes.size <= MOST_NUMBERS[0]:
        for row, size in enumerate(partition.sizes):
            axes.annotate(
                f"{size:,}", (float(size), row), (3, 0), textcoords="offset points", va="center", fontsize=7, zorder=5
            )
