"""ROC curves of the strongest membership inference on every row, on logarithmic axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from app.common.errors import UserError
from app.metrics.membership import Array
from app.metrics.roc import RocCurve, log_log_roc, roc_curve
from app.results.attacks.membership import AttackRecord
from app.results.comparison.leakage_columns import TARGETS as RATES
from app.results.figures import layout
from app.results.figures.data import FigureData, RowStyle
from app.results.figures.leakage import TARGETS, strongest
from app.results.figures.marks import mark
from app.results.figures.style import ReportFigure, report_style
from app.results.run.store import RunRecord

POINTS = 150
"""Points of a curve."""

MOST_THIN = 16
"""Curves of single seeds up to which they are drawn."""


@dataclass(frozen=True, eq=False)
class Bundle:
    """Curves of one row, one per seed.

    Attributes:
        style: how the row looks.
        curves: of the strongest attack on each seed's run.
        says: AUC and true positive rates as in the table, in words.
    """

    style: RowStyle
    curves: tuple[RocCurve, ...]
    says: str = ""

    @property
    def auc(self) -> float:
        """Mean over the seeds."""
        return float(np.mean([curve.auc for curve in self.curves]))

    @property
    def nonmembers(self) -> int:
        """Non-members of the smallest audit; 1 / nonmembers is the smallest false positive rate of all seeds."""
        return min(int(curve.false_positives[-1]) for curve in self.curves)

    def mean(self) -> tuple[Array, Array]:
        """False positive rates, and the mean true positive rate over the seeds; NaN where it is 0."""
        fpr = np.geomspace(1 / self.nonmembers, 1, POINTS)
        tpr = np.mean([_tpr(curve, fpr) for curve in self.curves], axis=0)
        return fpr, np.where(tpr > 0, tpr, np.nan)


def roc(data: FigureData, dataset: str) -> ReportFigure | None:
    """ROC curves on uploads and on the released model; None where no run was attacked."""
    panels = {kind: bundles for kind in TARGETS if (bundles := _bundles(data, dataset, kind))}
    if not panels:
        return None
    thin = max(sum(len(bundle.curves) for bundle in bundles) for bundles in panels.values()) <= MOST_THIN
    seeds = "Thin curves are single seeds, strong ones their mean." if thin else "Curves are means over the seeds."
    return data.report_figure(
        "roc",
        "ROC curves of membership inference, log-log",
        dataset,
        _plot(panels, thin),
        "ROC curves of the strongest attack on every row, on logarithmic axes: true positive rate (members found) "
        f"against false positive rate (non-members taken for members). {seeds}",
        "Low is good: on the dashed line the attack guesses at random. The left end matters most: there the attack "
        "is confident. Left of the dotted line the rate is below one of the audited non-members.",
    )


def _bundles(data: FigureData, dataset: str, kind: str) -> list[Bundle]:
    bundles = []
    for row in data.table.of(dataset):
        results = strongest(data.row_runs(row), kind)
        curves = [curve for run, record in results if (curve := _curve(run, record)) is not None]
        if curves:
            says = data.in_words(row, f"{kind}_auc", *(f"{kind}_tpr{name}" for _, name in RATES))
            bundles.append(Bundle(data.style(row), tuple(curves), says))
    return bundles


def _curve(run: RunRecord, record: AttackRecord) -> RocCurve | None:
    """Curve of one result; None where its scores are lost."""
    try:
        return roc_curve(run.scores(record.label))
    except (UserError, KeyError):
        return None


def _tpr(curve: RocCurve, fpr: Array) -> Array:
    """True positive rate of the last point not above each rate."""
    rates: Array = curve.tpr[np.searchsorted(curve.fpr, fpr + 1e-12, side="right") - 1]
    return rates


def _plot(panels: dict[str, list[Bundle]], thin: bool) -> Figure:
    styles = {bundle.style.label: bundle.style for bundles in panels.values() for bundle in bundles}
    right = layout.label_room(list(styles)) + 0.1 + 0.55 * len(panels)
    margins = layout.Margins(left=0.8, top=0.45, right=right, across=0.85)
    with report_style():
        height = layout.label_height(len(styles) + 1, 2.8)
        plot, grid = layout.panels(1, [2.8] * len(panels), height, margins)
        for axes, (kind, bundles) in zip(grid[0], panels.items(), strict=True):
            _draw(axes, bundles, thin)
            axes.set_title(TARGETS[kind], pad=14)
        _legend(grid[0, -1], list(styles.values()), panels)
    return plot


def _draw(axes: Axes, bundles: list[Bundle], thin: bool) -> None:
    finest = max(bundle.nonmembers for bundle in bundles)
    low = 0.7 / finest
    for bundle in bundles:
        style = bundle.style
        if thin and len(bundle.curves) > 1:
            for curve in bundle.curves:
                [seed] = axes.plot(*log_log_roc(curve, POINTS), color=style.colour, linewidth=0.6, alpha=0.45)
                mark(seed, style.name, kind="seed")
        [mean] = axes.plot(*bundle.mean(), color=style.colour, linestyle=style.line, linewidth=1.8, label=style.label)
        mark(mean, style.name, kind="curve", says=bundle.says)
    axes.plot([low, 1], [low, 1], **layout.CHANCE)
    layout.dotted(axes, 1 / finest)
    layout.remark(axes, f"1 of {finest}\nnon-members", (0.06, 0.97))
    axes.set(xscale="log", yscale="log", xlim=(low, 1.0), ylim=(low, 1.1))
    axes.set(xlabel="false positive rate", ylabel="true positive rate")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda rate, _: f"{100 * rate:g} %"))
        axis.set_minor_formatter(NullFormatter())
    axes.grid(visible=True)


def _legend(axes: Axes, styles: Sequence[RowStyle], panels: dict[str, list[Bundle]]) -> None:
    """Rows by the AUC of the first panel, with the AUC of all panels."""
    areas = {kind: {bundle.style.label: bundle.auc for bundle in bundles} for kind, bundles in panels.items()}
    figure, box = axes.figure, axes.get_position()
    wide, tall = box.width * figure.get_figwidth(), box.height * figure.get_figheight()  # type: ignore[union-attr]
    room = layout.label_room([style.label for style in styles])

    def write(inches: float, height: float, text: str, align: str) -> Artist:
        place: dict[str, Any] = {"x": 1 + inches / wide, "y": height, "transform": axes.transAxes}
        return axes.text(s=text, ha=align, va="center", fontsize=layout.SMALL, **place)

    def write_line(height: float, first: str, areas: Sequence[str]) -> list[Artist]:
        places = [room + 0.45 + 0.55 * number for number in range(len(areas))]
        columns = [write(place, height, text, "right") for place, text in zip(places, areas, strict=True)]
        return [write(0.38, height, first, "left"), *columns]

    write_line(1.0, "AUC", ["uploads" if kind == "uploads" else "released" for kind in panels])
    first = next(iter(areas.values()))
    for line, style in enumerate(sorted(styles, key=lambda style: -first.get(style.label, -1.0)), start=1):
        height = 1 - line * layout.LINE_HEIGHT / tall
        look = axes.plot([1 + 0.1 / wide, 1 + 0.3 / wide], [height] * 2, color=style.colour, linestyle=style.line)[0]
        look.set(linewidth=1.8, transform=axes.transAxes, clip_on=False)
        texts = [f"{of[style.label]:.3f}" if style.label in of else "N/A" for of in areas.values()]
        for part in (look, *write_line(height, style.label, texts)):
            mark(part, style.name, kind="label")
