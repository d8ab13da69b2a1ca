"""Images that were brought back, below the originals."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from app.errors import UserError
from app.metrics.intervals import Interval
from app.metrics.membership import NotAvailable
from app.metrics.reconstruction import RECOVERED, Reconstruction
from app.results.attacks.reconstruction_files import PREFIX, KeptImages, ReconstructionFiles, ReconstructionRecord
from app.results.comparison.table import Row
from app.results.figures import layout
from app.results.figures.scene import FigureData, RowStyle
from app.results.figures.style import COLOURS, FAINT, Picture, report_style
from app.results.run.store import RunRecord

MOST_IMAGES = 10
"""Images of a row."""

FRAME = COLOURS[2]
"""Colour round what was recovered."""

SIDE = 0.55
"""Inches of an image."""

LONGEST = 105
"""Letters of a line that says why there are no images."""

GAP = 0.12
"""Between images, in sides of an image."""

Pixels = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Strip:
    """What is shown of one row.

    Attributes:
        look: how the row looks elsewhere.
        attack: label of the result.
        result: its scores, or why there are none.
        pairs: the most alike originals and reconstructions, and whether each was recovered; none without images.
    """

    look: RowStyle
    attack: str
    result: Reconstruction | NotAvailable
    pairs: tuple[tuple[Pixels, Pixels, bool], ...]


def reconstructions(scene: FigureData) -> Iterator[Picture]:
    """One picture per dataset with images that were brought back."""
    for dataset in scene.datasets:
        strips = [strip for row in scene.table.of(dataset) if (strip := _strip(scene, row)) is not None]
        if any(strip.pairs for strip in strips):
            yield _picture(scene, dataset, strips)


def _strip(scene: FigureData, row: Row) -> Strip | None:
    """Of a row's runs the first with a reconstruction, and of its results the one that recovered most."""
    for run in scene.runs(row):
        if run.reconstructions:
            record = max(run.reconstructions, key=_rank)
            return Strip(scene.look(row), record.label, record.result, _pairs(run, record))
    return None


def _rank(record: ReconstructionRecord) -> tuple[float, float]:
    if isinstance(record.result, NotAvailable):
        return (-1.0, 0.0)
    return record.result.oracle.recovered_share.value, record.result.oracle.pearson_mean


def _pairs(run: RunRecord, record: ReconstructionRecord) -> tuple[tuple[Pixels, Pixels, bool], ...]:
    images = _images(run, record.label)
    if isinstance(record.result, NotAvailable) or images is None:
        return ()
    scores = record.result.per_image
    order = sorted(range(len(scores)), key=lambda place: -scores[place].pearson)[:MOST_IMAGES]
    return tuple(
        (_pixels(images.originals[place]), _pixels(images.reconstructions[place]), scores[place].recovered)
        for place in order
    )


def _images(run: RunRecord, label: str) -> KeptImages | None:
    try:
        return ReconstructionFiles(run.path / PREFIX).images(label)
    except UserError:
        return None


def _pixels(image: NDArray[np.float32]) -> Pixels:
    """(height, width, 3) between 0 and 1; NaN where nothing was reconstructed."""
    values = np.moveaxis(image, 0, -1)
    if values.shape[-1] != 3:
        values = np.repeat(values.mean(axis=-1, keepdims=True), 3, axis=-1)
    pixels: Pixels = np.clip(values, 0, 1).astype(np.float32)
    return pixels


def share_told(result: Reconstruction | NotAvailable) -> str:
    """How much was recovered, or why nothing can be told."""
    if isinstance(result, NotAvailable):
        return f"N/A: {result.reason}"
    every, share = result.oracle, result.oracle.recovered_share
    text = f"recovered {every.recovered} of {every.of} ({share.value:.0%}"
    if isinstance(share.interval, Interval):
        text += f", 95 %: {share.interval.low:.0%} to {share.interval.high:.0%}"
    text += f"), mean correlation {every.pearson_mean:.2f}"
    strongest = result.strongest_null
    return f"{text}; guess {strongest.similarity.pearson_mean:.2f}" if strongest else text


def _picture(scene: FigureData, dataset: str, strips: list[Strip]) -> Picture:
    with report_style():
        seen, unseen = ([strip for strip in strips if bool(strip.pairs) is there] for there in (True, False))
        below = 0.17 * len(unseen)
        margins = layout.Margins(left=0.85, right=0.1, top=0.45, bottom=0.1 + below, down=0.5)
        figure, grid = layout.panels(len(seen), [SIDE * MOST_IMAGES * (1 + GAP)], SIDE * (2 + GAP), margins)
        for axes, strip in zip(grid[:, 0], seen, strict=True):
            _draw(axes, strip)
        width, height = figure.get_size_inches()
        for number, strip in enumerate(unseen):
            place = (0.85 / width, (below - 0.17 * number) / height)
            told = f"{strip.look.label}, {strip.attack}: {share_told(strip.result)}"
            figure.text(*place, textwrap.shorten(told, LONGEST, placeholder=" ..."), fontsize=layout.SMALL, va="top")
    return Picture(
        key=scene.key("reconstructions", dataset),
        title=scene.title("Training images brought back", dataset),
        shows=(
            "For every row, originals above and what the strongest reconstruction made of them below, the most alike "
            f"first and at most {MOST_IMAGES}; from the first seed that was attacked. The numbers are over all "
            "attacked images."
        ),
        reading=(
            f"Few recovered images are good. Green frames mark images that count as recovered (correlation {RECOVERED} "
            "or more); a hatched box means that nothing came back. A mean correlation no higher than that of the guess "
            "says that the attack learnt nothing from the run."
        ),
        figure=figure,
    )


def _draw(axes: Axes, strip: Strip) -> None:
    axes.set_title(f"{strip.look.label}, {strip.attack}:", loc="left", fontsize=layout.SMALL + 0.5, pad=16)
    axes.text(0, 1.03, share_told(strip.result), transform=axes.transAxes, fontsize=layout.SMALL, va="bottom")
    axes.set(xlim=(0, MOST_IMAGES * (1 + GAP)), ylim=(2 + GAP, 0), xticks=[])
    axes.set_yticks([0.5, 1.5 + GAP], ["original", "brought back"])
    axes.tick_params(length=0, labelsize=layout.SMALL)
    for spine in axes.spines.values():
        spine.set_visible(False)
    for number, (original, found, recovered) in enumerate(strip.pairs):
        left = number * (1 + GAP)
        _show(axes, original, left, 0)
        if np.isnan(found).any():
            box = {"fill": False, "hatch": "////", "edgecolor": FAINT, "linewidth": 0.8}
            axes.add_patch(Rectangle((left, 1 + GAP), 1, 1, **box))  # type: ignore[arg-type]
        else:
            _show(axes, found, left, 1 + GAP)
        if recovered:
            frame = {"fill": False, "edgecolor": FRAME, "linewidth": 2.2, "clip_on": False}
            axes.add_patch(Rectangle((left, 1 + GAP), 1, 1, **frame))  # type: ignore[arg-type]


def _show(axes: Axes, image: Pixels, left: float, top: float) -> None:
    limits = (axes.get_xlim(), axes.get_ylim())
    extent = (left, left + 1, top + 1, top)
    axes.imshow(image, extent=extent, interpolation="nearest", aspect="auto")
    axes.set(xlim=limits[0], ylim=limits[1])
