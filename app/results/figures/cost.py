"""What a defense costs in time and traffic, as a multiple of the same method without one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from app.results.comparison.table import Row, Value
from app.results.figures import layout
from app.results.figures.leakage import MEGABYTES, SECONDS_RATIO
from app.results.figures.scene import FigureData, RowStyle
from app.results.figures.style import INK, Picture, report_style
from app.results.run.labels import NO_DEFENSE

WIDE = 8.0
"""Ratio from which on the axis is logarithmic."""


@dataclass(frozen=True)
class Ratio:
    """A row's cost over that of its baseline.

    Attributes:
        look: how the row looks.
        mean: over the seeds that both have.
        low: smallest ratio of a seed.
        high: largest ratio of a seed.
    """

    look: RowStyle
    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, look: RowStyle, by_seed: Mapping[int, float]) -> Ratio:
        """From the ratio of every seed, of which there is at least one."""
        each = list(by_seed.values())
        return cls(look, fmean(each), min(each), max(each))


def cost(scene: FigureData) -> Iterator[Picture]:
    """One picture per dataset with rows that have a baseline: the same method without a defense."""
    for dataset in scene.datasets:
        found = {"seconds per round": seconds_ratios(scene, dataset), "bytes per round": bytes_ratios(scene, dataset)}
        if shown := {title: ratios for title, ratios in found.items() if ratios}:
            yield _picture(scene, dataset, shown)


def seconds_ratios(scene: FigureData, dataset: str) -> list[Ratio]:
    """As the table has them, of all defended rows."""
    return [
        Ratio.of(scene.look(row), value.by_seed)
        for row in scene.table.of(dataset)
        if row.defense != NO_DEFENSE and isinstance(value := row.values.get(SECONDS_RATIO), Value)
    ]


def bytes_ratios(scene: FigureData, dataset: str) -> list[Ratio]:
    """Bytes both ways over those of the same method and seed without a defense, of all defended rows."""
    rows = scene.table.of(dataset)
    plain = {row.method: _bytes(row) for row in rows if row.defense == NO_DEFENSE}
    found = []
    for row in (row for row in rows if row.defense != NO_DEFENSE):
        base = plain.get(row.method, {})
        each = {seed: sent / base[seed] for seed, sent in _bytes(row).items() if base.get(seed)}
        found += [Ratio.of(scene.look(row), each)] if each else []
    return found


def _bytes(row: Row) -> dict[int, float]:
    """Megabytes of a client in a round, up and down, by seed."""
    up, down = (row.values.get(key) for key in MEGABYTES)
    if not isinstance(up, Value) or not isinstance(down, Value):
        return {}
    return {seed: sent + down.by_seed[seed] for seed, sent in up.by_seed.items() if seed in down.by_seed}


def _picture(scene: FigureData, dataset: str, shown: dict[str, list[Ratio]]) -> Picture:
    labels = list(dict.fromkeys(ratio.look.label for found in shown.values() for ratio in found))
    with report_style():
        room = 0.15 + 0.95 * layout.LETTER * max(map(len, labels))
        margins = layout.Margins(left=room, right=0.55, across=0.6)
        height = max(0.9, 0.27 * len(labels) + 0.1)
        figure, grid = layout.panels(1, [2.7] * len(shown), height, margins, sharey=True)
        for axes, (title, found) in zip(grid[0], shown.items(), strict=True):
            _draw(axes, found, labels)
            axes.set_title(title, fontsize=9)
            axes.set_xlabel("times that of no defense")
        grid[0, 0].set_yticks(range(len(labels)), labels, fontsize=layout.SMALL)
        grid[0, 0].set_ylim(len(labels) - 0.4, -0.6)
    return Picture(
        key=scene.key("cost", dataset),
        title=scene.title("What defenses cost", dataset),
        shows=(
            "Seconds and bytes (up and down) per round of every defended row, as multiples of the same method without "
            "a defense under the same seeds."
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
