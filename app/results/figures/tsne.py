"""t-SNE of features of members and non-members in released models and their attacks (MemDefense, Figure 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_limits

from app.common.errors import UserError
from app.metrics.leakage import Leakage
from app.metrics.membership import Array, NotAvailable
from app.results.attacks.representation_files import AttackRepresentations, RepresentedSamples, read_representations
from app.results.comparison.table import Row
from app.results.figures import layout
from app.results.figures.data import FigureData, RowStyle
from app.results.figures.leakage import strongest
from app.results.figures.marks import mark
from app.results.figures.style import COLOURS, ReportFigure, report_style
from app.results.run.store import RunRecord

MOST_ROWS = 4
FEWEST_SAMPLES = 12
ITERATIONS = 500
"""Half of scikit-learn's number: the divergence of 600 samples of the demo was 1 to 3 % higher, in half the time."""

MEMBER: dict[str, Any] = {"color": COLOURS[0], "marker": "o"}
OTHER: dict[str, Any] = {"color": COLOURS[1], "marker": "^"}
"""Styles of members and non-members."""

ATTACK = "memdefense.nasr.global"
"""Result whose attack network's features a run keeps."""


@dataclass(frozen=True, eq=False)
class Panels:
    """What is drawn of one row."""

    style: RowStyle
    auc: str  # of the strongest attack on the released model, as text; empty where there is none
    samples: RepresentedSamples
    attack_auc: str  # of the attack network, as text
    attack: RepresentedSamples | None  # in the attack network, None where the run has none


def tsne(data: FigureData, dataset: str) -> ReportFigure | None:
    """Features of the baseline and at most three other rows; None where no run has kept any.

    Rows of the baseline's method come first, so that a defense stands beside the same federation without it.
    """
    first, *others = data.baseline_first(dataset)
    others.sort(key=lambda row: row.method != first.method)
    panels = [own for row in (first, *others) if (own := _panels(data, row))][:MOST_ROWS]
    if not panels:
        return None
    return data.report_figure(
        "tsne",
        "t-SNE of penultimate-layer features",
        dataset,
        _plot(panels),
        "Inputs of the last layer of the released model for audited members and non-members, embedded in two "
        "dimensions by t-SNE, on the left coloured by class, on the right by membership; one seed each of the "
        "baseline and up to three other rows, those of its method first. A third column shows the last hidden layer "
        "of the network that attacks the released model, for samples that it was not trained on, where a run has one.",
        "On the left, separate classes mean a useful model. On the right, members and non-members that are well "
        "mixed are good. t-SNE keeps neighbours, not distances, and may show clusters without a meaning: rely on the "
        "AUC beside it (0.5 is chance).",
    )


def _panels(data: FigureData, row: Row) -> Panels | None:
    """Features of the first seed that has kept enough of them."""
    for run in data.runs(row):
        if (samples := _enough(run, RepresentedSamples)) is not None:
            attacks = [record.leakage for record in run.attacks if record.label == ATTACK]
            attack = _enough(run, AttackRepresentations)
            return Panels(data.style(row), _auc(data, row, run), samples, _auc_text(attacks), attack)
    return None


def _enough(run: RunRecord, kind: type[RepresentedSamples]) -> RepresentedSamples | None:
    """Features of one kind; None where the run has too few of them, or their file cannot be read."""
    try:
        samples = read_representations(run.path, kind)
    except UserError:
        return None
    return samples if samples is not None and samples.members.size >= FEWEST_SAMPLES else None


def embedded(samples: RepresentedSamples) -> Array:
    """(samples, 2) t-SNE with a fixed start, so that the same features give the same figure."""
    perplexity = min(30.0, samples.members.size / 4)
    space = TSNE(2, perplexity=perplexity, init="pca", random_state=0, n_jobs=1, max_iter=ITERATIONS)
    with threadpool_limits(1):  # more threads are far slower on a busy machine
        places: Array = np.asarray(space.fit_transform(samples.features.astype(np.float64)), dtype=np.float64)
    return places


def _plot(panels: list[Panels]) -> Figure:
    columns = 3 if any(own.attack is not None for own in panels) else 2
    with report_style():
        margins = layout.Margins(left=0.2, right=1.3, top=0.35, bottom=0.15, across=0.25, down=0.45)
        plot, grid = layout.panels(len(panels), [2.6] * columns, 2.2, margins)
        for (by_class, by_membership, *further), own in zip(grid, panels, strict=True):
            places = embedded(own.samples)
            _draw_classes(by_class, places, own.samples)
            _draw_members(by_membership, places, own.samples)
            _name(by_class, f"{own.style.label}: by class", own)
            _name(by_membership, f"by membership{own.auc}", own)
            for axes in further:
                _draw_attack(axes, own)
        _legend(grid[0, -1])
    return plot


def _draw_attack(axes: Axes, own: Panels) -> None:
    """Features of the attack network by membership; an empty place where the run has none."""
    if own.attack is None:
        axes.set_axis_off()
        return
    _draw_members(axes, embedded(own.attack), own.attack)
    _name(axes, f"in the attack network{own.attack_auc}", own)


def _name(axes: Axes, title: str, own: Panels) -> None:
    mark(axes.set_title(title, fontsize=layout.SMALL + 0.5, loc="left"), own.style.name, kind="label")


def _auc(data: FigureData, row: Row, run: RunRecord) -> str:
    """AUC on the released model of the same run, where it was attacked."""
    return _auc_text([record.leakage for one, record in strongest(data.row_runs(row), "global") if one is run])


def _auc_text(leakages: Sequence[Leakage | NotAvailable]) -> str:
    """The AUC of the first result, for a title; empty where it has none."""
    return f", AUC {leakages[0].auc.value:.3f}" if leakages and isinstance(leakages[0], Leakage) else ""


def _draw_classes(axes: Axes, places: Array, samples: RepresentedSamples) -> None:
    colours = [COLOURS[label % len(COLOURS)] for label in samples.labels]
    axes.scatter(places[:, 0], places[:, 1], s=9, c=colours, linewidths=0, alpha=0.85, rasterized=True)
    _bare(axes)


def _draw_members(axes: Axes, places: Array, samples: RepresentedSamples) -> None:
    # Members and non-members are drawn in turn, so that neither covers the other.
    order = np.random.default_rng(0).permutation(samples.members.size)
    for part in np.array_split(order, 8):
        for chosen, style in ((samples.members[part], MEMBER), (~samples.members[part], OTHER)):
            across, up = places[part[chosen]].T
            axes.scatter(across, up, s=11, linewidths=0, alpha=0.75, rasterized=True, **style)
    _bare(axes)


def _bare(axes: Axes) -> None:
    axes.set(xticks=[], yticks=[])
    axes.margins(0.04)
    axes.set_aspect("auto")


def _legend(axes: Axes) -> None:
    handles = [
        Line2D([], [], linestyle="", markersize=5, label=name, **style)
        for name, style in (("member", MEMBER), ("non-member", OTHER))
    ]
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.0, 1.02), fontsize=layout.SMALL, handletextpad=0.2)
