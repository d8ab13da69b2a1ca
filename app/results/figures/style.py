"""Style of all figures: one ink that follows the theme of the page, and colours that work on light and dark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import matplotlib as mpl
from cycler import cycler
from matplotlib.figure import Figure

INK = "#14161a"
"""Colour of text and axes; the page replaces it with the ink of its theme."""

FAINT = "#8a8f98"
"""Colour of grids and backgrounds; readable on light and on dark."""

COLOURS = ("#2f7fd1", "#e0662a", "#2f9e68", "#b0569f", "#c8a11c", "#4bb3c0", "#d1495b", "#7d6bd0", "#8d6e63", "#6c8a1f")
"""Colours of rows, in order; readable on light and on dark."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
"""Markers of rows, in order, so that colour is never the only difference."""


@dataclass(frozen=True, eq=False)
class ReportFigure:
    """A figure with its caption."""

    key: str  # short name, unique in the report, fit for a file name
    title: str  # heading above it
    shows: str  # caption: what it shows, one or two sentences
    reading: str  # how to read it, one or two sentences: what is good, what is chance, what the bands are
    plot: Figure  # the drawing, on a transparent background, with text in `INK`
    rows: Mapping[str, int] = field(default_factory=dict)  # places in the table of the rows that its marks name


@contextmanager
def report_style() -> Iterator[None]:
    """Draw with the ink of the report, without a background, and with text as text in SVG files."""
    inked = ("text.color", "axes.labelcolor", "axes.edgecolor", "axes.titlecolor", "xtick.color", "ytick.color")
    settings: dict[Any, Any] = {
        **dict.fromkeys(inked, INK),
        "figure.facecolor": "none",
        "axes.facecolor": "none",
        "savefig.facecolor": "none",
        "legend.frameon": False,
        "grid.color": FAINT,
        "grid.alpha": 0.3,
        "axes.prop_cycle": cycler(color=list(COLOURS)),
        "text.parse_math": False,  # names may hold a dollar sign
        "svg.fonttype": "none",
        "svg.hashsalt": "rampart",
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with mpl.rc_context(settings):
        yield
