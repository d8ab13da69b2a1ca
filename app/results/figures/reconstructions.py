"""Reconstructed training images below the originals."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from app.common.errors import UserError
from app.metrics.intervals import Interval
from app.metrics.membership import NotAvailable
from app.metrics.reconstruction import RECOVERED, Reconstruction
from app.results.attacks.reconstruction import KeptImages, ReconstructionRecord
from app.results.comparison.table import Row
from app.results.figures import layout
from app.results.figures.data import FigureData
from app.results.figures.marks import mark
from app.results.figures.style import COLOURS, FAINT, ReportFigure, report_style
from app.results.run.store import RunRecord

MOST_IMAGES = 10
"""Images of a strip."""

FRAME = COLOURS[2]
"""Colour of the frames of recovered images."""

SIDE = 0.55
"""Inches of an image."""

LONGEST = 105
"""Characters of the line of a row without images."""

GAP = 0.12
"""Between images, in sides of an image."""

Pixels = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Strip:
    """Images of one row."""

    row: str  # name of the row
    title: str  # labels of the row and of the attack
    result: Reconstruction | NotAvailable  # its scores, or why there are none
    # the most similar originals and reconstructions, and whether each was recovered; empty without images
    pairs: tuple[tuple[Pixels, Pixels, bool], ...]


def reconstructions(data: FigureData, dataset: str) -> ReportFigure | None:
    """Originals and reconstructions, a strip per row; None where no run has kept images."""
    strips = [strip for row in data.table.of(dataset) if (strip := _strip(data, row)) is not None]
    if not any(strip.pairs for strip in strips):
        return None
    return data.report_figure(
        "reconstructions",
        "Reconstructed training images",
        dataset,
        _plot(strips),
        "For every row, training images above and their reconstructions by the strongest attack below, the most "
        f"similar first and at most {MOST_IMAGES}, from the first attacked seed. The numbers are over all attacked "
        "images.",
        f"Few recovered images are good. Green frames mark recovered images (correlation {RECOVERED} or more); a "
        "hatched box means that the attack returned nothing. A mean correlation no higher than that of the guess "
        "means that the attack learnt nothing from the run.",
    )


def _strip(data: FigureData, row: Row) -> Strip | None:
    """The first run of a row with a reconstruction, and of its results the one that recovered most."""
    for run in data.runs(row):
        if run.reconstructions:
            record = max(run.reconstructions, key=_rank)
            return Strip(row.name, f"{data.style(row).label}, {record.label}", record.result, _pairs(run, record))
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
        return ReconstructionRecord.load(ReconstructionRecord.path(run.path, label, "json")).images
    except UserError:
        return None


def _pixels(image: NDArray[np.float32]) -> Pixels:
    """(height, width, 3) between 0 and 1; NaN where nothing was reconstructed."""
    values = np.moveaxis(image, 0, -1)
    if values.shape[-1] != 3:
        values = np.repeat(values.mean(axis=-1, keepdims=True), 3, axis=-1)
    pixels: Pixels = np.clip(values, 0, 1).astype(np.float32)
    return pixels


def recovery_text(result: Reconstruction | NotAvailable) -> str:
    """Share of recovered images, or why it is not available."""
    if isinstance(result, NotAvailable):
        return f"N/A: {result.reason}"
    every, share = result.oracle, result.oracle.recovered_share
    text = f"recovered {every.recovered} of {every.of} ({share.value:.0%}"
    if isinstance(share.interval, Interval):
        text += f", 95 %: {share.interval.low:.0%} to {share.interval.high:.0%}"
    text += f"), mean correlation {every.pearson_mean:.2f}"
    strongest = result.strongest_null
    return f"{text}; guess {strongest.similarity.pearson_mean:.2f}" if strongest else text


def _plot(strips: list[Strip]) -> Figure:
    with report_style():
        shown, missing = ([strip for strip in strips if bool(strip.pairs) is there] for there in (True, False))
        below = 0.17 * len(missing)
        margins = layout.Margins(left=0.95, right=0.1, top=0.45, bottom=0.1 + below, down=0.5)
        plot, grid = layout.panels(len(shown), [SIDE * MOST_IMAGES * (1 + GAP)], SIDE * (2 + GAP), margins)
        for axes, strip in zip(grid[:, 0], shown, strict=True):
            _draw(axes, strip)
        width, height = plot.get_size_inches()
        for number, strip in enumerate(missing):
            place = (0.95 / width, (below - 0.17 * number) / height)
            text = textwrap.shorten(f"{strip.title}: {recovery_text(strip.result)}", LONGEST, placeholder=" ...")
            mark(plot.text(*place, text, fontsize=layout.SMALL, va="top"), strip.row, kind="label")
    return plot


def _draw(axes: Axes, strip: Strip) -> None:
    title = axes.set_title(f"{strip.title}:", loc="left", fontsize=layout.SMALL + 0.5, pad=16)
    mark(title, strip.row, kind="label", says=recovery_text(strip.result))
    layout.remark(axes, recovery_text(strip.result), (0, 1.03), va="bottom")
    axes.set(xlim=(0, MOST_IMAGES * (1 + GAP)), ylim=(2 + GAP, 0), xticks=[])
    axes.set_yticks([0.5, 1.5 + GAP], ["original", "reconstruction"])
    axes.tick_params(length=0, labelsize=layout.SMALL)
    for spine in axes.spines.values():
        spine.set_visible(False)
    for number, (original, rebuilt, recovered) in enumerate(strip.pairs):
        left = number * (1 + GAP)
        _show(axes, original, left, 0)
        if np.isnan(rebuilt).any():
            box = Rectangle((left, 1 + GAP), 1, 1, fill=False, hatch="////", edgecolor=FAINT, linewidth=0.8)
            axes.add_patch(box)
        else:
            _show(axes, rebuilt, left, 1 + GAP)
        if recovered:
            frame = Rectangle((left, 1 + GAP), 1, 1, fill=False, edgecolor=FRAME, linewidth=2.2, clip_on=False)
            axes.add_patch(frame)


def _show(axes: Axes, image: Pixels, left: float, top: float) -> None:
    limits = (axes.get_xlim(), axes.get_ylim())
    extent = (left, left + 1, top + 1, top)
    axes.imshow(image, extent=extent, interpolation="nearest", aspect="auto")
    axes.set(xlim=limits[0], ylim=limits[1])
