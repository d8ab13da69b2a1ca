"""Time and traffic of defenses, as multiples of the same method without a defense."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from app.results.comparison.table import Row, Value
from app.results.figures import layout
from app.results.figures.data import FigureData, RowStyle
from app.results.figures.marks import mark
from app.results.figures.style import INK, ReportFigure, report_style
from app.results.run.labels import NO_DEFENSE

WIDE = 8.0
"""Largest over smallest ratio above which the axis is logarithmic."""


@dataclass(frozen=True)
class Ratio:
    """A row's cost over that of its baseline.

    Attributes:
        style: how the row looks.
        mean: over the seeds that both have.
        low: smallest ratio of a seed.
        high: largest ratio of a seed.
    """

    style: RowStyle
    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, style: RowStyle, by_seed: Mapping[int, float]) -> Ratio:
        """The ratio of a row from those of its seeds, one or more."""
        ratios = list(by_seed.values())
        return cls(style, fmean(ratios), min(ratios), max(ratios))

    def in_words(self, title: str) -> str:
        """The ratio with that of the lowest and the highest seed."""
        span = f" [{self.low:.3g}, {self.high:.3g}]" if self.high > self.low else ""
        return f"{title} {self.mean:.3g} x{span}"


def cost(data: FigureData, dataset: str) -> ReportFigure | None:
    """Seconds and bytes of every defended row; None where no method has a row without a defense."""
    ratios = {"seconds per round": seconds_ratios(data, dataset), "bytes per round": bytes_ratios(data, dataset)}
    panels = {title: each for title, each in ratios.items() if each}
    if not panels:
        return None
    return data.report_figure(
        "cost",
        "Cost of defenses",
        dataset,
        _plot(panels),
        "Seconds and bytes (up and down) per round of every defended row, as multiples of the same method without a "
        "defense and with the same seeds.",
        "Short is good: 1 (dashed) is the cost without a defense. Lines reach from the lowest to the highest seed. "
        "Seconds are comparable only between runs on the same machine under the same load.",
    )


def seconds_ratios(data: FigureData, dataset: str) -> list[Ratio]:
    """Ratios of all defended rows, as in the table."""
    return [
        Ratio.of(data.style(row), value.by_seed)
        for row in data.table.of(dataset)
        if row.defense != NO_DEFENSE and isinstance(value := row.values.get("seconds_ratio"), Value)
    ]


def bytes_ratios(data: FigureData, dataset: str) -> list[Ratio]:
    """Bytes both ways over those of the same method and seed without a defense, of all defended rows."""
    rows = data.table.of(dataset)
    plain = {row.method: _bytes(row) for row in rows if row.defense == NO_DEFENSE}
    ratios = []
    for row in (row for row in rows if row.defense != NO_DEFENSE):
        base = plain.get(row.method, {})
        by_seed = {seed: sent / base[seed] for seed, sent in _bytes(row).items() if base.get(seed)}
        ratios += [Ratio.of(data.style(row), by_seed)] if by_seed else []
    return ratios


def _bytes(row: Row) -> dict[int, float]:
    """Megabytes of a client in a round, up and down, by seed."""
    up, down = (row.values.get(key) for key in ("megabytes_up", "megabytes_down"))
    if not isinstance(up, Value) or not isinstance(down, Value):
        return {}
    return {seed: sent + down.by_seed[seed] for seed, sent in up.by_seed.items() if seed in down.by_seed}


def _plot(panels: dict[str, list[Ratio]]) -> Figure:
    labels = list(dict.fromkeys(ratio.style.label for ratios in panels.values() for ratio in ratios))
    with report_style():
        room = 0.15 + 0.95 * layout.LETTER * max(map(len, labels))
        margins = layout.Margins(left=room, right=0.55, across=0.6)
        height = max(0.9, 0.27 * len(labels) + 0.1)
        plot, grid = layout.panels(1, [2.7] * len(panels), height, margins, sharey=True)
        for axes, (title, ratios) in zip(grid[0], panels.items(), strict=True):
            _draw(axes, title, ratios, labels)
            axes.set_title(title, fontsize=9)
            axes.set_xlabel("multiple of no defense")
        grid[0, 0].set_yticks(range(len(labels)), labels, fontsize=layout.SMALL)
        names = {ratio.style.label: ratio.style.name for ratios in panels.values() for ratio in ratios}
        for text, label in zip(grid[0, 0].get_yticklabels(), labels, strict=True):
            mark(text, names[label], kind="label")
        grid[0, 0].set_ylim(len(labels) - 0.4, -0.6)
    return plot


def _draw(axes: Axes, title: str, ratios: Sequence[Ratio], labels: Sequence[str]) -> None:
    start = 1.0 if _scale(axes, ratios) else 0.0
    for ratio in ratios:
        place = labels.index(ratio.style.label)
        name = ratio.style.name
        [bar] = axes.barh(place, ratio.mean - start, left=start, height=0.55, color=ratio.style.colour)
        mark(bar, name, kind="bar", says=ratio.in_words(title))
        if ratio.high > ratio.low:
            mark(axes.plot([ratio.low, ratio.high], [place, place], color=INK, linewidth=1.2)[0], name, kind="interval")
        end = (max(ratio.high, 1.0), place)
        label = axes.annotate(f"{ratio.mean:.3g}", end, (5, 0), textcoords="offset points")
        label.set(va="center", fontsize=layout.SMALL, annotation_clip=False)
        mark(label, name, kind="label")
    axes.axvline(1.0, **{**layout.CHANCE, "zorder": 3})
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=True, axis="x")
    axes.set_axisbelow(True)


def _scale(axes: Axes, ratios: Sequence[Ratio]) -> bool:
    """Scale the axis; returns whether it is logarithmic, as for large ratios."""
    largest, smallest = max(ratio.high for ratio in ratios), min(1.0, *(ratio.low for ratio in ratios))
    logarithmic = largest / smallest > WIDE
    if logarithmic:
        axes.set_xscale("log")
        axes.set_xlim(0.8 * smallest, largest * 1.3)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 3) if largest / smallest < 300 else (1,)))
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_xlim(0, 1.08 * largest)
        axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    return logarithmic
