"""How pictures of the report look: one ink that follows the page's theme, and colours that work on light and dark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from cycler import cycler
from matplotlib.figure import Figure

INK = "#14161a"
"""Colour of text, axes and whatever else must stand out; the page replaces it with the ink of its theme."""

FAINT = "#8a8f98"
"""Colour of grids and of what stays in the background; readable on light and on dark."""

COLOURS = ("#2f7fd1", "#e0662a", "#2f9e68", "#b0569f", "#c8a11c", "#4bb3c0", "#d1495b", "#7d6bd0", "#8d6e63", "#6c8a1f")
"""Of rows and series, in order; readable on light and on dark."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
"""Of rows and series, in order, so that colour is never the only difference."""


@dataclass(frozen=True, eq=False)
class Picture:
    """A picture of the report.

    Attributes:
        key: short name, unique in the report, fit for a file name.
        title: heading above it.
        shows: what it shows, one or two sentences.
        reading: how to read it, one or two sentences: what is good, what is chance, what the bands are.
        figure: the drawing, on a transparent background, with text in `INK`.
    """

    key: str
    title: str
    shows: str
    reading: str
    figure: Figure


@contextmanager
def report_style() -> Iterator[None]:
    """Within it, figures have the report's ink, no background, and text that stays text."""
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
        "svg.fonttype": "none",
        "svg.hashsalt": "rampart",
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with mpl.rc_context(settings):
        yield
