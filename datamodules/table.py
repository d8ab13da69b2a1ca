"""The partition as a table and as a picture: how many training samples of each class each client has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from app.common.files import csv_text, plain_names, write_text
from app.common.wording import counted

MOST_CLIENTS_IN_WORDS = 25
MOST_CLASSES_IN_WORDS = 20


@dataclass(frozen=True, eq=False)
class PartitionTable:
    """Training samples per client and class."""

    counts: np.ndarray  # (clients, classes) numbers of training samples
    classes: tuple[str, ...]
    clients: tuple[str, ...]  # name of each client: its number, or its owner where it has a single named one
    groups: tuple[str, ...]  # subpopulation of each client

    def write_csv(self, path: Path) -> None:
        """One row per client: client, size, one column per class, group, name."""
        rows = [
            [client, sum(counts), *counts, self.groups[client], self.clients[client]]
            for client, counts in enumerate(self.counts.tolist())
        ]
        write_text(path, csv_text([["client", "size", *self.classes, "group", "name"], *rows]))

    @plain_names()
    def draw(self) -> Figure:
        """Heat map, one row per client; numbers in the cells as long as they can be read."""
        clients, classes = self.counts.shape
        spelled = clients <= MOST_CLIENTS_IN_WORDS and classes <= MOST_CLASSES_IN_WORDS
        width = 2.5 + (0.62 if spelled else 0.16) * max(classes, 10)
        height = 1.9 + (0.32 * max(clients, 4) if clients <= MOST_CLIENTS_IN_WORDS else min(0.06 * clients, 9) + 3)
        figure = Figure(figsize=(min(max(width, 6.5), 14), min(height, 12)), layout="constrained")
        axes = figure.add_subplot()
        # Square-root colours: one huge client must not wash out the differences among the small ones.
        scale = PowerNorm(0.5, vmin=0, vmax=max(1, int(self.counts.max())))
        image = axes.imshow(self.counts, aspect="auto", cmap="Blues", norm=scale, interpolation="nearest")
        ticks = MaxNLocator(6, integer=True)
        figure.colorbar(image, ax=axes, label="training samples", pad=0.05, ticks=ticks)
        axes.set(xlabel="class", ylabel="client", title=self._title())
        self._label_axes(axes)
        self._mark_groups(axes)
        if spelled:
            self._spell_counts(axes)
        return figure

    def _title(self) -> str:
        sizes = self.counts.sum(1)
        total = f"{counted(len(sizes), 'client')}, {counted(int(sizes.sum()), 'training sample')}"
        if len(sizes) == 1:
            return total
        spread = f"{sizes.min():,} each" if sizes.min() == sizes.max() else f"{sizes.min():,} to {sizes.max():,} each"
        return f"{total}, {spread}"

    def _label_axes(self, axes: Axes) -> None:
        clients, classes = self.counts.shape
        step = -(-classes // 65)
        longest = max(map(len, self.classes))
        slant = 0 if longest <= 2 else 90 if classes > MOST_CLASSES_IN_WORDS else 40
        size = 9 if classes <= MOST_CLASSES_IN_WORDS else 7
        anchor = "right" if slant == 40 else "center"
        names = list(self.classes[::step])
        axes.set_xticks(
            range(0, classes, step), names, rotation=slant, ha=anchor, rotation_mode="default", fontsize=size
        )
        if clients <= MOST_CLIENTS_IN_WORDS:
            axes.set_yticks(range(clients), list(self.clients), fontsize=9)

    def _mark_groups(self, axes: Axes) -> None:
        """Separate the subpopulations by a line and name them on the right."""
        starts = [row for row in range(1, len(self.groups)) if self.groups[row] != self.groups[row - 1]]
        if not starts:
            return
        for start, end in zip([0, *starts], [*starts, len(self.groups)], strict=True):
            axes.axhline(end - 0.5, color="black", linewidth=1)
            right: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
            right |= {"rotation": 90, "va": "center", "annotation_clip": False}
            axes.annotate(self.groups[start], (1, (start + end - 1) / 2), (4, 0), **right)

    def _spell_counts(self, axes: Axes) -> None:
        dark = 0.36 * self.counts.max()
        for (row, column), count in np.ndenumerate(self.counts):
            color = "white" if count > dark else "0.7" if count == 0 else "black"
            axes.text(column, row, str(count), ha="center", va="center", color=color, fontsize=8)
