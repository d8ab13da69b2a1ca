"""What tables and figures of all attacks have in common: short labels, remarks, and results that are missing."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable

from matplotlib.axes import Axes

from app.metrics.leakage import Leakage, TprAtFpr

MOST_LETTERS = 40
"""Letters of a label in a figure."""


def short_label(label: str) -> str:
    """A label without its middle where it is long: the attack is in front, the target at the end."""
    return label if len(label) <= MOST_LETTERS else f"{label[: MOST_LETTERS - 18]}...{label[-15:]}"


def grouped(remarks: Iterable[tuple[str, str]], results: int, labels_first: bool = False) -> list[str]:
    """Every distinct remark once, with the labels of the results it concerns.

    Args:
        remarks: remark and label.
        results: number of all results.
        labels_first: `label: remark` instead of `remark (label)`.
    """
    labels_by_remark: dict[str, list[str]] = {}
    for remark, label in remarks:
        labels_by_remark.setdefault(remark, []).append(label)
    lines = []
    for remark, labels in labels_by_remark.items():
        names = "all results" if 1 < results == len(labels) else ", ".join(labels)
        lines.append(f"{names}: {remark}" if labels_first else f"{remark} ({names})")
    return lines


def write_in_row(axes: Axes, row: int, text: str, most: int) -> None:
    """Write a text of at most so many letters in a row of a chart, in place of a value."""
    shown = textwrap.shorten(text, most, placeholder=" ...")
    box = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
    axes.text(0.01, row, shown, transform=axes.get_yaxis_transform(), va="center", fontsize=8, color="0.35", bbox=box)


def tpr_at(leakage: Leakage, target: float) -> TprAtFpr | None:
    """The share of members found at one target FPR, 0 to 1; None where it was refused."""
    entries = [entry for entry in leakage.tpr if isinstance(entry, TprAtFpr) and math.isclose(entry.target, target)]
    return entries[0] if entries else None


def rate_name(target: float) -> str:
    """Key of the TPR at a target FPR, 0 to 1: `tpr_at_0.1%` for 0.001."""
    return f"tpr_at_{100 * target:g}%"
