"""Accuracy and leakage over the rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from app.common.wording import LOCAL_TEST, RECEIVED, TRAINED
from app.metrics.membership import Array
from app.results.comparison.rows import RowRuns
from app.results.figures import layout
from app.results.figures.data import FigureData, RowStyle
from app.results.figures.leakage import TARGETS, auc_by_round
from app.results.figures.marks import mark
from app.results.figures.style import ReportFigure, report_style
from app.results.run.store import RunRecord

MOST_POINTS = 300
"""Rounds drawn of a curve; of longer runs every n-th, and the last."""

WIDTH = 5.6
"""Inches of a panel."""

MOST_MARKS = 30
"""Rounds up to which every one of them has a mark."""

ACCURACIES = (
    {
        "clients/received_common/mean": f"accuracy of the\n{RECEIVED} (%)",
        "everyone/accuracy": f"{LOCAL_TEST},\nmean of all clients (%)",
        "clients/trained_own/mean": f"accuracy of the {TRAINED},\nown test sets (%)",
    },
    {"server/accuracy": "accuracy of the\nserver's model (%)"},
)
"""Panels of accuracy: metrics with their axis titles; the one that most runs have is drawn."""

Curve = Mapping[int, float]
Read = Callable[[RowRuns], list[Curve]]


@dataclass(frozen=True, eq=False)
class Curves:
    """A row over the rounds.

    Attributes:
        style: how it looks.
        rounds: counted from 1, ascending.
        mean: over the seeds that have the round.
        low: smallest of them.
        high: largest of them.
    """

    style: RowStyle
    rounds: Array
    mean: Array
    low: Array
    high: Array

    @classmethod
    def of(cls, style: RowStyle, seeds: list[Curve]) -> Curves:
        """Curves from one curve per seed; seeds need not have the same rounds."""
        rounds = _thinned(sorted({round_ for seed in seeds for round_ in seed}))
        values = [[seed[round_] for seed in seeds if round_ in seed] for round_ in rounds]
        parts = (np.array([join(value) for value in values]) for join in (np.mean, np.min, np.max))
        return cls(style, np.array(rounds, dtype=np.float64), *parts)

    def in_words(self, title: str) -> list[str]:
        """Mean of every round with the lowest and the highest seed, in the unit of the title of its panel."""
        name = title.replace("\n", " ")
        number = "{:.3f}" if name.startswith("AUC") else "{:.1f}"
        points = zip(self.rounds, self.mean, self.low, self.high, strict=True)
        return [
            f"round {round_:.0f}, {name} {number.format(mean)}"
            + (f" [{number.format(low)}, {number.format(high)}]" if high > low else "")
            for round_, mean, low, high in points
        ]


def rounds(data: FigureData, dataset: str) -> ReportFigure | None:
    """Accuracy and AUC over the rounds, one panel each; None where no run has two rounds."""
    panels = {title: curves for title, read in _panels(data, dataset) if (curves := _curves(data, dataset, read))}
    if not panels:
        return None
    attacked = any(title.startswith("AUC") for title in panels)
    leakage = " and AUC of the strongest attack after every attacked round" if attacked else ""
    chance = " For the AUC, low is good, and 0.5 (dashed) is chance." if attacked else ""
    return data.report_figure(
        "rounds",
        "Accuracy and leakage over the rounds" if attacked else "Accuracy over the rounds",
        dataset,
        _plot(panels),
        f"Accuracy after every round{leakage}, as means over the seeds.",
        f"Bands reach from the lowest to the highest seed. For accuracy, high is good.{chance}",
    )


def _panels(data: FigureData, dataset: str) -> Iterator[tuple[str, Read]]:
    """Title of every panel, and what it reads from a row."""
    runs = [run for row in data.table.of(dataset) for run in data.runs(row)]
    for metrics in ACCURACIES:
        # The same metric for all rows, so that they can be compared: the one that most runs have.
        name = max(metrics, key=lambda name: sum(bool(_metric(run, name)) for run in runs))
        yield metrics[name], partial(_accuracy, name=name)
    for kind, words in TARGETS.items():
        yield f"AUC on\n{words}", partial(_leakage, kind=kind)


def _accuracy(row_runs: RowRuns, name: str) -> list[Curve]:
    return [_metric(run, name) for run in row_runs.runs]


def _metric(run: RunRecord, name: str) -> Curve:
    """A metric in percent; empty where it has fewer than two rounds."""
    percent = {int(record["round"]): 100 * value for record in run.rounds if (value := record.get(name)) is not None}
    return percent if len(percent) > 1 else {}


def _leakage(row_runs: RowRuns, kind: str) -> list[Curve]:
    """AUC over the rounds; empty where only the end was attacked."""
    return [seed for seed in auc_by_round(row_runs, kind) if len(seed) > 1]


def _curves(data: FigureData, dataset: str, read: Read) -> list[Curves]:
    rows = [(row, [curve for curve in read(data.row_runs(row)) if curve]) for row in data.table.of(dataset)]
    return [Curves.of(data.style(row), seeds) for row, seeds in rows if seeds]


def _plot(panels: Mapping[str, list[Curves]]) -> Figure:
    labels = {curves.style.label for panel in panels.values() for curves in panel}
    margins = layout.Margins(right=layout.label_room(sorted(labels)), down=0.25, left=0.95)
    with report_style():
        height = layout.label_height(len(labels), 1.75)
        plot, grid = layout.panels(len(panels), [WIDTH], height, margins, sharex=True)
        for axes, (title, panel) in zip(grid[:, 0], panels.items(), strict=True):
            _draw(axes, title, panel)
            axes.set_ylabel(title, fontsize=layout.SMALL + 0.5)
            axes.yaxis.set_label_coords(-0.65 / WIDTH, 0.5)
            if title.startswith("AUC"):
                axes.axhline(0.5, **layout.CHANCE)
            layout.label_column(axes, [(float(curves.mean[-1]), curves.style) for curves in panel])
        grid[-1, 0].set_xlabel("round")
    return plot


def _draw(axes: Axes, title: str, panel: list[Curves]) -> None:
    for curves in panel:
        style = curves.style
        if np.any(curves.high > curves.low):
            look: dict[str, Any] = {"color": style.colour, "alpha": 0.15, "linewidth": 0}
            mark(axes.fill_between(curves.rounds, curves.low, curves.high, **look), style.name, kind="band")
        [line] = axes.plot(curves.rounds, curves.mean, color=style.colour, linestyle=style.line, linewidth=1.5)
        few = curves.rounds.size <= MOST_MARKS
        line.set(label=style.label, marker=style.marker if few else "", markersize=4)
        says = curves.in_words(title)
        mark(line, style.name, kind="curve", says=says[-1], each=says if few else ())
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(x=0.01, y=0.08)
    axes.grid(visible=True)
    axes.autoscale_view()


def _thinned(rounds: list[int]) -> list[int]:
    step = -(-len(rounds) // MOST_POINTS)
    return rounds[::step] if rounds[::step][-1:] == rounds[-1:] else [*rounds[::step], rounds[-1]]
