"""Accuracy and leakage over the rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from app.metrics.membership import Array
from app.results.comparison.rows import RowRuns
from app.results.figures import layout
from app.results.figures.leakage import TARGETS, auc_by_round
from app.results.figures.scene import FigureData, RowStyle
from app.results.figures.style import Picture, report_style
from app.results.run.store import RunRecord

MOST_POINTS = 300
"""Rounds drawn of a curve; of longer runs every n-th, and the last."""

WIDTH = 5.6
"""Inches of a panel."""

MOST_MARKS = 30
"""Rounds up to which every one of them has a mark."""

ACCURACIES = (
    {
        "clients/received_common/mean": "accuracy of the\nclients' models (%)",
        "everyone/accuracy": "accuracy of all clients,\nown test sets (%)",
        "clients/trained_own/mean": "accuracy of trained clients,\nown test sets (%)",
    },
    {"server/accuracy": "accuracy of the\nserver's model (%)"},
)
"""Panels of accuracy: metrics and what they are in words, the most wanted first."""

Curve = Mapping[int, float]
Read = Callable[[RowRuns], list[Curve]]


@dataclass(frozen=True, eq=False)
class Curves:
    """A row over the rounds.

    Attributes:
        look: how it looks.
        rounds: counted from 1, ascending.
        mean: over the seeds that have the round.
        low: smallest of them.
        high: largest of them.
    """

    look: RowStyle
    rounds: Array
    mean: Array
    low: Array
    high: Array

    @classmethod
    def of(cls, look: RowStyle, seeds: list[Curve]) -> Curves:
        """From one curve per seed; rounds that some seeds lack are told by the others."""
        rounds = _thinned(sorted({round_ for seed in seeds for round_ in seed}))
        values = [[seed[round_] for seed in seeds if round_ in seed] for round_ in rounds]
        parts = (np.array([join(value) for value in values]) for join in (np.mean, np.min, np.max))
        return cls(look, np.array(rounds, dtype=np.float64), *parts)


def rounds(scene: FigureData) -> Iterator[Picture]:
    """One picture per dataset."""
    for dataset in scene.datasets:
        shown = {title: curves for title, read in _panels(scene, dataset) if (curves := _curves(scene, dataset, read))}
        if shown:
            yield _picture(scene, dataset, shown)


def _panels(scene: FigureData, dataset: str) -> Iterator[tuple[str, Read]]:
    """Title of every panel, and what it reads from a row."""
    runs = [run for row in scene.table.of(dataset) for run in scene.runs(row)]
    for metrics in ACCURACIES:
        # One metric for all rows, or they could not be compared: that which most runs have.
        name = max(metrics, key=lambda name: sum(bool(_metric(run, name)) for run in runs))
        yield metrics[name], partial(_accuracy, name=name)
    for kind, words in TARGETS.items():
        yield f"AUC on\n{words}", partial(_leakage, kind=kind)


def _accuracy(cell: RowRuns, name: str) -> list[Curve]:
    return [_metric(run, name) for run in cell.runs]


def _metric(run: RunRecord, name: str) -> Curve:
    """A metric in percent; empty where it has fewer than two rounds."""
    found = {int(record["round"]): 100 * value for record in run.rounds if (value := record.get(name)) is not None}
    return found if len(found) > 1 else {}


def _leakage(cell: RowRuns, kind: str) -> list[Curve]:
    """Empty where only the end was attacked: one point is no curve."""
    return [seed for seed in auc_by_round(cell, kind) if len(seed) > 1]


def _curves(scene: FigureData, dataset: str, read: Read) -> list[Curves]:
    found = []
    for row in scene.table.of(dataset):
        seeds = [curve for curve in read(scene.cell(row)) if curve]
        if seeds:
            found.append(Curves.of(scene.look(row), seeds))
    return found


def _picture(scene: FigureData, dataset: str, shown: Mapping[str, list[Curves]]) -> Picture:
    labels = {curves.look.label for panel in shown.values() for curves in panel}
    margins = layout.Margins(right=layout.label_room(sorted(labels)), down=0.25, left=0.95)
    leaks = any(title.startswith("AUC") for title in shown)
    with report_style():
        height = layout.label_height(len(labels), 1.75)
        figure, grid = layout.panels(len(shown), [WIDTH], height, margins, sharex=True)
        for axes, (title, panel) in zip(grid[:, 0], shown.items(), strict=True):
            _draw(axes, panel)
            axes.set_ylabel(title, fontsize=layout.SMALL + 0.5)
            axes.yaxis.set_label_coords(-0.65 / WIDTH, 0.5)
            if title.startswith("AUC"):
                axes.axhline(0.5, **layout.CHANCE)
            layout.label_column(axes, [(float(curves.mean[-1]), curves.look) for curves in panel])
        grid[-1, 0].set_xlabel("round")
    where = " and the AUC of the strongest attack after the rounds that were attacked" if leaks else ""
    chance = " For the AUC, low is good, and 0.5 (dashed) is chance." if leaks else ""
    return Picture(
        key=scene.key("rounds", dataset),
        title=scene.title("Over the rounds", dataset),
        shows=f"Accuracy in every round{where}, as means over the seeds.",
        reading=f"Bands reach from the lowest to the highest seed. For accuracy, high is good.{chance}",
        figure=figure,
    )


def _draw(axes: Axes, panel: list[Curves]) -> None:
    for curves in panel:
        look = curves.look
        marker = look.marker if curves.rounds.size <= MOST_MARKS else ""
        if np.any(curves.high > curves.low):
            axes.fill_between(curves.rounds, curves.low, curves.high, color=look.colour, alpha=0.15, linewidth=0)
        axes.plot(
            curves.rounds,
            curves.mean,
            color=look.colour,
            linestyle=look.line,
            marker=marker,
            markersize=4,
            linewidth=1.5,
            label=look.label,
        )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(x=0.01, y=0.08)
    axes.grid(visible=True)
    axes.autoscale_view()


def _thinned(rounds: list[int]) -> list[int]:
    step = -(-len(rounds) // MOST_POINTS)
    return rounds[::step] if rounds[::step][-1:] == rounds[-1:] else [*rounds[::step], rounds[-1]]
