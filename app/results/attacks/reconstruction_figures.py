"""Figures of reconstructions: true images above their reconstructions, and the scores of all results."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from numpy.typing import NDArray
from torch import Tensor

from app.common.wording import counted
from app.metrics.intervals import Interval
from app.metrics.membership import NotAvailable
from app.metrics.reconstruction import RECOVERED, ImageScore, Reconstruction
from app.results.attacks.wording import short_label, write_in_row

if TYPE_CHECKING:
    from app.results.attacks.reconstruction import ReconstructionRecord

ACROSS = 10
"""Images side by side."""

MOST_IMAGES = 20
"""Images in a figure."""

IMAGE, CELL, LINE_HEIGHT = 1.0, 1.12, 2.72
"""Inches: side of an image, from one to the next, and from one line of pairs to the next."""

FRAME = "#2ca02c"
"""Colour round what was recovered."""

SHOWN, BLIND, GUESS = "#1f77b4", "#ff7f0e", "0.25"
"""Colours of the scores with and without the truth, and of the strongest guess."""


THRESHOLD: dict[str, Any] = {"color": "0.6", "linewidth": 1.0, "linestyle": (0, (4, 3)), "zorder": 1}


def draw_reconstructions(record: ReconstructionRecord, title: str) -> Figure:
    """True images with their reconstructions below, the most alike first; a frame round those that were recovered."""
    assert record.pairs is not None
    assert isinstance(record.result, Reconstruction)
    scores, truth, reconstructions = record.result.per_image, record.pairs.truth.images, record.pairs.reconstructions
    order = sorted(range(len(scores)), key=lambda row: (-scores[row].pearson, scores[row].client, scores[row].sample))
    order = order[:MOST_IMAGES]
    caption = _headline(record.result, len(order), title)
    figure, pairs = _page(len(order), 0.1 + 0.17 * len(caption))
    for (upper, lower), row in zip(pairs, order, strict=True):
        _show_original(upper, truth[row], scores[row])
        _show_reconstruction(lower, reconstructions[row], scores[row])
    figure.text(0.5, 1 - 0.05 / figure.get_figheight(), "\n".join(caption), ha="center", va="top", fontsize=9.5)
    return figure


def draw_summary(results: Iterable[ReconstructionRecord], title: str = "") -> Figure:
    """Mean correlation of the best match and the attacker's choice beside the strongest guess, and the share recovered.

    Args:
        results: the largest mean correlation is drawn on top, what is not available below.
        title: of the figure.
    """
    records = sorted(results, key=lambda record: (-_mean(record), record.label))
    names = [short_label(record.label) for record in records]
    width = 8.6 + 0.085 * max(map(len, names), default=0)
    figure = Figure(figsize=(width, 1.9 + 0.3 * max(3, len(records))), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    for place, record in enumerate(records):
        _draw_row(left, right, place, record)
    left.set_yticks(range(len(records)), names)
    left.set_ylim(max(len(records), 1) - 0.4, -0.6)
    left.set(xlabel="mean Pearson correlation over all images", xlim=(-0.03, 1.03))
    right.set(xlabel="images recovered, %, with interval", xlim=(-3, 103))
    left.axvline(RECOVERED, **THRESHOLD)
    for axes in (left, right):
        axes.grid(axis="x", alpha=0.3)
        axes.tick_params(axis="y", length=0)
    figure.suptitle(title, fontsize=11)
    figure.legend(handles=_key(), loc="outside lower center", ncols=4, fontsize=8.5)
    return figure


def _page(pairs: int, top: float) -> tuple[Figure, list[tuple[Axes, Axes]]]:
    """A figure with places for one or more pairs of images; `top` inches are kept free for the title."""
    lines, across = -(-pairs // ACROSS), min(ACROSS, pairs)
    width, height = max(5.2, CELL * across + 0.2), top + LINE_HEIGHT * lines
    figure, left = Figure(figsize=(width, height)), (width - CELL * across + CELL - IMAGE) / 2

    def place(column: int, upper_edge: float) -> Axes:
        axes = figure.add_axes(
            ((left + CELL * column) / width, 1 - (upper_edge + IMAGE) / height, IMAGE / width, IMAGE / height)
        )
        axes.set_axis_off()
        return axes

    edges = [(number % ACROSS, top + LINE_HEIGHT * (number // ACROSS) + 0.34) for number in range(pairs)]
    return figure, [(place(column, edge), place(column, edge + IMAGE + 0.07)) for column, edge in edges]


def _show_original(axes: Axes, image: Tensor, score: ImageScore) -> None:
    _show(axes, image)
    axes.set_title(f"client {score.client}\nsample {score.sample}", fontsize=7, pad=3)


def _show_reconstruction(axes: Axes, image: Tensor, score: ImageScore) -> None:
    """The reconstruction, or an empty hatched box."""
    if bool(image.isnan().any()):
        box = Rectangle(
            (0, 0), 1, 1, transform=axes.transAxes, fill=False, hatch="////", edgecolor="0.6", linewidth=1.0
        )
        axes.add_patch(box)
        axes.set(aspect="equal", adjustable="box", xlim=(0, image.shape[-1]), ylim=(0, image.shape[-2]))
        text = "none"
    else:
        _show(axes, image)
        text = f"r = {_cut(score.pearson)}, {score.psnr:.0f} dB"
    if score.recovered:
        frame: dict[str, Any] = {"fill": False, "edgecolor": FRAME, "linewidth": 3.0, "clip_on": False}
        axes.add_patch(Rectangle((0, 0), 1, 1, transform=axes.transAxes, **frame))
    axes.text(0.5, -0.06, text, transform=axes.transAxes, ha="center", va="top", fontsize=7)


def _show(axes: Axes, image: Tensor) -> None:
    axes.imshow(_pixels(image), cmap="gray", vmin=0, vmax=1, interpolation="nearest")


def _pixels(image: Tensor) -> NDArray[np.float32]:
    """Height by width with three colours, or with none for any other number of channels."""
    values: NDArray[np.float32] = image.detach().float().cpu().clamp(0, 1).numpy()
    return np.moveaxis(values, 0, -1) if len(values) == 3 else values.mean(axis=0)


def _cut(pearson: float) -> str:
    """Two decimals, rounded down where rounding would reach RECOVERED from below it."""
    rounded = round(pearson, 2)
    return f"{rounded - 0.01 if pearson < RECOVERED <= rounded else rounded:.2f}"


def _headline(result: Reconstruction, shown: int, title: str) -> list[str]:
    """Title, mean over all images and what a guess reaches, since the best image alone would mislead."""
    every, strongest = result.oracle, result.strongest_null
    images = counted(every.of, "image")
    parts = [f"mean r = {every.pearson_mean:.2f} over {images}", f"recovered (framed) {every.recovered}/{every.of}"]
    parts += [f"{strongest.name} r = {strongest.similarity.pearson_mean:.2f}"] if strongest else []
    parts += [f"the {shown} most alike are shown"] if shown < every.of else []
    width = 120 if shown >= ACROSS else 58
    return [*textwrap.wrap(title, width), *textwrap.wrap("; ".join(parts), width)]


def _draw_row(left: Axes, right: Axes, place: int, record: ReconstructionRecord) -> None:
    result = record.result
    if isinstance(result, NotAvailable):
        write_in_row(left, place, f"N/A: {result.reason}", 58)
        write_in_row(right, place, "N/A", 10)
        return
    if strongest := result.strongest_null:
        left.plot([strongest.similarity.pearson_mean], [place], "|", color=GUESS, markersize=15, markeredgewidth=2.0)
    left.plot([result.blind.pearson_mean], [place], "o", color=BLIND, fillstyle="none", markersize=7.5, zorder=3)
    left.plot([result.oracle.pearson_mean], [place], "o", color=SHOWN, markersize=5.0, zorder=4)
    share = result.oracle.recovered_share
    if isinstance(share.interval, Interval):
        ends = [100 * share.interval.low, 100 * share.interval.high]
        right.plot(ends, [place, place], color=SHOWN, linewidth=1.5, alpha=0.65)
    right.plot([100 * share.value], [place], "o", color=SHOWN, markersize=5.0, zorder=3, clip_on=False)


def _mean(record: ReconstructionRecord) -> float:
    return record.result.oracle.pearson_mean if isinstance(record.result, Reconstruction) else -1.0


def _key() -> Sequence[Line2D]:
    return (
        Line2D([], [], color=SHOWN, marker="o", linestyle="", label="best candidate for every image"),
        Line2D([], [], color=BLIND, marker="o", linestyle="", fillstyle="none", label="chosen without the truth"),
        Line2D([], [], color=GUESS, marker="|", linestyle="", markersize=12, label="strongest guess (null)"),
        Line2D([], [], **THRESHOLD, label=f"recovered from {RECOVERED:g}"),
    )
