"""ROC curves of the strongest attack on every row, down to few false alarms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullFormatter

from app.errors import UserError
from app.metrics.membership import Array
from app.metrics.roc import RocCurve, log_log_roc, roc_curve
from app.results.attacks.membership_files import AttackRecord
from app.results.figures import layout
from app.results.figures.leakage import TARGETS, strongest
from app.results.figures.scene import FigureData, RowStyle
from app.results.figures.style import Picture, report_style
from app.results.run.store import RunRecord

POINTS = 150
"""Points of a curve."""

MOST_THIN = 16
"""Curves of single seeds up to which they are drawn."""


@dataclass(frozen=True, eq=False)
class Bundle:
    """Curves of one row, one per seed.

    Attributes:
        look: how the row looks.
        curves: of the strongest attack on each seed's run.
    """

    look: RowStyle
    curves: tuple[RocCurve, ...]

    @property
    def auc(self) -> float:
        """Mean area over the seeds."""
        return float(np.mean([curve.auc for curve in self.curves]))

    @property
    def nonmembers(self) -> int:
        """Non-members of the smallest audit: one of them is the smallest rate above 0 that all seeds resolve."""
        return min(int(curve.false_positives[-1]) for curve in self.curves)

    def mean(self) -> tuple[Array, Array]:
        """False positive rates, and the mean true positive rate over the seeds; NaN where it is 0."""
        fpr = np.geomspace(1 / self.nonmembers, 1, POINTS)
        tpr = np.mean([_tpr(curve, fpr) for curve in self.curves], axis=0)
        return fpr, np.where(tpr > 0, tpr, np.nan)


def roc(scene: FigureData) -> Iterator[Picture]:
    """One picture per dataset with attacked runs."""
    for dataset in scene.datasets:
        found = {kind: _bundles(scene, dataset, kind) for kind in TARGETS}
        shown = {kind: bundles for kind, bundles in found.items() if bundles}
        if shown:
            yield _picture(scene, dataset, shown)


def _bundles(scene: FigureData, dataset: str, kind: str) -> list[Bundle]:
    bundles = []
    for row in scene.table.of(dataset):
        results = strongest(scene.cell(row), kind)
        curves = [curve for run, record in results if (curve := _curve(run, record)) is not None]
        if curves:
            bundles.append(Bundle(scene.look(row), tuple(curves)))
    return bundles


def _curve(run: RunRecord, record: AttackRecord) -> RocCurve | None:
    """Of one result; None where its scores are gone."""
    try:
        return roc_curve(run.scores(record.label))
    except (UserError, KeyError):
        return None


def _tpr(curve: RocCurve, fpr: Array) -> Array:
    """True positive rate of the last point not above each rate."""
    rates: Array = curve.tpr[np.searchsorted(curve.fpr, fpr + 1e-12, side="right") - 1]
    return rates


def _picture(scene: FigureData, dataset: str, shown: dict[str, list[Bundle]]) -> Picture:
    names = {bundle.look.label: bundle.look for bundles in shown.values() for bundle in bundles}
    thin = max(sum(len(bundle.curves) for bundle in bundles) for bundles in shown.values()) <= MOST_THIN
    margins = layout.Margins(
        left=0.8, top=0.45, right=layout.label_room(list(names)) + 0.1 + 0.55 * len(shown), across=0.85
    )
    with report_style():
        height = layout.label_height(len(names) + 1, 2.8)
        figure, grid = layout.panels(1, [2.8] * len(shown), height, margins)
        for axes, (kind, bundles) in zip(grid[0], shown.items(), strict=True):
            _draw(axes, bundles, thin)
            axes.set_title(TARGETS[kind], pad=14)
        _key(grid[0, -1], list(names.values()), shown)
    seeds = "Thin curves are single seeds, strong ones their mean." if thin else "Curves are means over the seeds."
    return Picture(
        key=scene.key("roc", dataset),
        title=scene.title("How many members are found at few false alarms", dataset),
        shows=(
            "ROC curves of the strongest attack on every row: the share of members that it finds against the share of "
            f"non-members that it takes for members, on logarithmic axes. {seeds}"
        ),
        reading=(
            "Low is good: on the dashed line the attack guesses. The left end matters most: there the attack is "
            "sure of whom it names. Left of the dotted line there are fewer non-members than one false alarm."
        ),
        figure=figure,
    )


def _draw(axes: Axes, bundles: list[Bundle], thin: bool) -> None:
    finest = max(bundle.nonmembers for bundle in bundles)
    low = 0.7 / finest
    for bundle in bundles:
        colour, line = bundle.look.colour, bundle.look.line
        if thin and len(bundle.curves) > 1:
            for curve in bundle.curves:
                axes.plot(*log_log_roc(curve, POINTS), color=colour, linewidth=0.6, alpha=0.45)
        axes.plot(*bundle.mean(), color=colour, linestyle=line, linewidth=1.8, label=bundle.look.label)
    axes.plot([low, 1], [low, 1], **layout.CHANCE)
    layout.dotted(axes, 1 / finest)
    layout.remark(axes, f"1 of {finest}\nnon-members", (0.06, 0.97))
    axes.set(xscale="log", yscale="log", xlim=(low, 1.0), ylim=(low, 1.1))
    axes.set(xlabel="false positive rate", ylabel="true positive rate")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda rate, _: f"{100 * rate:g} %"))
        axis.set_minor_formatter(NullFormatter())
    axes.grid(visible=True)


def _key(axes: Axes, looks: Sequence[RowStyle], shown: dict[str, list[Bundle]]) -> None:
    """Rows by the area of the first panel, with the areas of all panels."""
    areas = {kind: {bundle.look.label: bundle.auc for bundle in bundles} for kind, bundles in shown.items()}
    figure, box = axes.figure, axes.get_position()
    wide, tall = box.width * figure.get_figwidth(), box.height * figure.get_figheight()  # type: ignore[union-attr]
    room = layout.label_room([look.label for look in looks])

    def place(inches: float) -> float:
        return 1 + inches / wide

    style: dict[str, Any] = {"va": "center", "fontsize": layout.SMALL, "transform": axes.transAxes}
    for number, kind in enumerate(shown):
        head = "uploads" if kind == "uploads" else "released"
        axes.text(place(room + 0.45 + 0.55 * number), 1.0, head, ha="right", **style)
    axes.text(place(0.38), 1.0, "AUC", ha="left", **style)
    first = next(iter(areas.values()))
    for line, look in enumerate(sorted(looks, key=lambda look: -first.get(look.label, -1.0)), start=1):
        height = 1 - line * layout.LINE_HEIGHT / tall
        axes.plot(
            [place(0.1), place(0.3)],
            [height] * 2,
            color=look.colour,
            linestyle=look.line,
            linewidth=1.8,
            transform=axes.transAxes,
            clip_on=False,
        )
        axes.text(place(0.38), height, look.label, ha="left", **style)
        for number, found in enumerate(areas.values()):
            told = f"{found[look.label]:.3f}" if look.label in found else "N/A"
            axes.text(place(room + 0.45 + 0.55 * number), height, told, ha="right", **style)
