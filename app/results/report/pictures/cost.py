"""What a defense costs in time and traffic, as a multiple of the same method without one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from app.results.comparison.table import Row
from app.results.report.pictures import layout
from app.results.report.pictures.scene import Scene, Series
from app.results.report.style import INK, Picture, report_style
from app.results.run_labels import NO_DEFENSE
from app.results.store import RunRecord

WIDE = 8.0
"""Ratio from which on the axis is logarithmic."""


@dataclass(frozen=True)
class Ratio:
    """A row's cost over that of its baseline.

    Attributes:
        look: how the row looks.
        mean: ratio of the means over the seeds that both have.
        low: smallest ratio of a seed.
        high: largest ratio of a seed.
    """

    look: Series
    mean: float
    low: float
    high: float


def cost(scene: Scene) -> Iterator[Picture]:
    """One picture per dataset with rows that have a baseline: the same method without a defense."""
    panels = {"seconds per round": _seconds, "bytes per round": _bytes}
    for dataset in scene.datasets:
        shown = {title: ratios(scene, dataset, read) for title, read in panels.items()}
        if any(shown.values()):
            yield _picture(scene, dataset, {title: found for title, found in shown.items() if found})


def ratios(scene: Scene, dataset: str, read: Callable[[RunRecord], float | None]) -> list[Ratio]:
    """Costs of all defended rows of a dataset over those of their baselines, seed by seed."""
    rows = scene.table.of(dataset)
    plain = {row.method: row for row in rows if row.defense == NO_DEFENSE}
    found = []
    for row in rows:
        if row.defense != NO_DEFENSE and row.method in plain:
            ratio = _ratio(scene, row, plain[row.method], read)
            found += [] if ratio is None else [ratio]
    return found


def _ratio(scene: Scene, row: Row, plain: Row, read: Callable[[RunRecord], float | None]) -> Ratio | None:
    own, base = ({run.labels.seed: read(run) for run in scene.runs(one)} for one in (row, plain))
    pairs = [(own[seed], base[seed]) for seed in own if own[seed] and base.get(seed)]
    if not pairs:
        return None
    above, below = np.array(pairs, dtype=np.float64).T
    each = above / below
    return Ratio(scene.look(row), float(above.mean() / below.mean()), float(each.min()), float(each.max()))


def _seconds(run: RunRecord) -> float | None:
    return run.cost.get("seconds_per_round")


def _bytes(run: RunRecord) -> float | None:
    """Both ways, per round."""
    rounds = run.cost.get("rounds")
    return (run.cost.get("bytes/up", 0.0) + run.cost.get("bytes/down", 0.0)) / rounds if rounds else None


def _picture(scene: Scene, dataset: str, shown: dict[str, list[Ratio]]) -> Picture:
    labels = list(dict.fromkeys(ratio.look.label for found in shown.values() for ratio in found))
    with report_style():
        room = 0.2 + layout.LETTER * max(map(len, labels))
        margins = layout.Margins(left=room, right=0.55, across=0.6)
        height = max(0.9, 0.27 * len(labels) + 0.1)
        figure, grid = layout.panels(1, [2.7] * len(shown), height, margins, sharey=True)
        for axes, (title, found) in zip(grid[0], shown.items(), strict=True):
            _draw(axes, found, labels)
            axes.set_xlabel(f"{title}, times that without defense")
        grid[0, 0].set_yticks(range(len(labels)), labels, fontsize=layout.SMALL)
        grid[0, 0].set_ylim(len(labels) - 0.4, -0.6)
    return Picture(
        key=scene.key("cost", dataset),
        title=scene.title("What defenses cost", dataset),
        shows=(
            "Seconds and bytes (up and down) per round of every defended row, as multiples of the same method without a "
            "defense under the same seeds."
        ),
        reading=(
            "Short is good: 1 (dashed) is the cost of no defense. Lines reach from the cheapest to the dearest seed. "
            "Seconds compare only between runs on the same machine under the same load."
        ),
        figure=figure,
    )


def _draw(axes: Axes, found: Sequence[Ratio], labels: Sequence[str]) -> None:
    largest = max(ratio.high for ratio in found)
    smallest = min(1.0, *(ratio.low for ratio in found))
    log = largest / smallest > WIDE
    if log:
        axes.set_xscale("log")
        axes.set_xlim(0.8 * smallest, largest * 1.3)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 3) if largest / smallest < 300 else (1,)))
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_xlim(0, 1.08 * largest)
        axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    for ratio in found:
        place = labels.index(ratio.look.label)
        start = 1.0 if log else 0.0
        axes.barh(place, ratio.mean - start, left=start, height=0.55, color=ratio.look.colour, gid="bar")
        if ratio.high > ratio.low:
            axes.plot([ratio.low, ratio.high], [place, place], color=INK, linewidth=1.2)
        axes.annotate(
            f"{ratio.mean:.3g}",
            (max(ratio.high, 1.0), place),
            (5, 0),
            textcoords="offset points",
            va="center",
            fontsize=layout.SMALL,
            annotation_clip=False,
        )
    axes.axvline(1.0, **{**layout.CHANCE, "zorder": 3})
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=True, axis="x")
    axes.set_axisbelow(True)
