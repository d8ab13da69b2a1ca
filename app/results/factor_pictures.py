"""Picture of what uploads tell of a private choice of factors."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from app.attacks.factor_recovery import FactorFinding
from app.metrics.intervals import Estimate, Interval
from app.metrics.membership import Array, NotAvailable

USED, UNUSED, LINE = "#1f77b4", "#ff7f0e", "0.15"
"""Colours of factors that clients use and do not use, and of medians."""

AREAS = {
    "support": "server's ranking",
    "moved": "movement alone",
    "prior": "public prior alone",
    "population": "mean of all clients",
    "specific": "more than others do",
}
"""Areas by what they belong to."""

ACCURACIES = {"own": "true\nchoice", "recovered": "recovered", "concealed": "as sent", "another": "another\nclient's"}
"""Accuracies by whose choice the rebuilt model has."""

CONTROLS = ("prior", "population")
"""Areas that take no upload of the client."""

MOST_POINTS = 6000
"""Points that are drawn; of more, every so many-th."""

BINS = 12
"""Probabilities of equal number that a median of movements is drawn for."""


def draw_factors(finding: FactorFinding, title: str) -> Figure:
    """How far factors moved against how probably clients use them, areas under ROC curves, and rebuilt accuracies.

    Args:
        finding: what was found.
        title: shown above the picture.
    """
    figure = Figure(figsize=(13.0, 4.3), layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=(5, 4, 4))
    _draw_movements(left, finding.chosen.ravel(), finding.moved.ravel())
    _draw_areas(middle, finding)
    _draw_accuracies(right, finding)
    count = len(finding.clients)
    figure.suptitle(f"{title}: last uploads of {count} client{'s' if count > 1 else ''}", fontsize=11)
    return figure


def _draw_movements(axes: Axes, chosen: Array, moved: Array) -> None:
    """One dot per client and factor; those that did not move at all lie on the lower edge."""
    step = -(-chosen.size // MOST_POINTS)
    seen = moved[moved > 0]
    low, high = (seen.min() / 1.5, seen.max() * 1.5) if seen.size else (0.1, 10.0)
    shown = np.maximum(moved, low)
    for colour, name, rows in ((USED, "used", chosen > 0.5), (UNUSED, "not used", chosen <= 0.5)):
        places = np.flatnonzero(rows)[::step]
        axes.plot(
            chosen[places], shown[places], ".", color=colour, markersize=3, alpha=0.35, label=name, rasterized=True
        )
    order = np.argsort(chosen, kind="stable")
    parts = [part for part in np.array_split(order, min(BINS, chosen.size)) if part.size]
    axes.plot([np.median(chosen[part]) for part in parts], [np.median(shown[part]) for part in parts], "-o", color=LINE)
    axes.axvline(0.5, color="0.6", linewidth=1.0, linestyle=(0, (4, 3)))
    axes.set(yscale="log", ylim=(low, high), xlim=(-0.02, 1.02))
    axes.set(
        xlabel="probability that the client uses the factor (secret)", ylabel="movement / mean of the layer (seen)"
    )
    axes.set_title("factors that are used move (line: medians)", fontsize=10)
    axes.legend(loc="upper left", fontsize=8.5, markerscale=4)


def _draw_areas(axes: Axes, finding: FactorFinding) -> None:
    for place, name in enumerate(AREAS):
        _draw_estimate(axes, place, finding.means[name], "0.5" if name in CONTROLS else USED)
    axes.axvline(0.5, color="0.45", linewidth=1.0, linestyle=(0, (4, 3)))
    axes.set_yticks(range(len(AREAS)), list(AREAS.values()))
    axes.tick_params(axis="y", length=0)
    axes.set(xlim=(min(0.4, _lowest(finding) - 0.05), 1.12), xlabel="AUC, with interval over clients (dashed: chance)")
    axes.set_xticks([0.4, 0.6, 0.8, 1.0])
    axes.set_ylim(len(AREAS) - 0.5, -0.5)
    axes.axhline(3.5, color="0.85", linewidth=1.0)
    axes.grid(axis="x", alpha=0.3)
    axes.set_title("telling used factors (grey: without the upload)", fontsize=10)


def _draw_estimate(axes: Axes, place: int, estimate: Estimate | NotAvailable, colour: str) -> None:
    if isinstance(estimate, NotAvailable):
        axes.text(0.52, place, "N/A", va="center", fontsize=8.5, color="0.35")
        return
    if isinstance(estimate.interval, Interval):
        axes.plot([estimate.interval.low, estimate.interval.high], [place, place], color=colour, linewidth=2, alpha=0.6)
    axes.plot([estimate.value], [place], "o", color=colour, markersize=6)
    axes.text(1.02, place, f"{estimate.value:.3f}", va="center", fontsize=8.5, color=colour)


def _lowest(finding: FactorFinding) -> float:
    found = [one for name in AREAS if isinstance(one := finding.means[name], Estimate)]
    ends = [one.interval.low if isinstance(one.interval, Interval) else one.value for one in found]
    return min(ends, default=0.5)


def _draw_accuracies(axes: Axes, finding: FactorFinding) -> None:
    """Bars from below the smallest on, since what is told apart are the differences."""
    found = {name: one for name in ACCURACIES if isinstance(one := finding.means[name], Estimate)}
    if not found:
        axes.text(0.5, 0.5, "N/A: clients have no test sets\n(--data.holdout.clients)", ha="center", va="center")
        axes.set_axis_off()
        return
    bounds = [_bounds(one) for one in found.values()]
    floor = max(0.0, 100 * (min(low for low, _ in bounds) - 0.02))
    for place, (name, one) in enumerate(found.items()):
        low, high = (100 * end for end in _bounds(one))
        value, colour = 100 * one.value, USED if name in ("own", "recovered") else "0.6"
        axes.bar(
            place, value - floor, bottom=floor, color=colour, alpha=0.85 if name == "recovered" else 0.5, width=0.7
        )
        axes.plot([place, place], [low, high], color="0.2", linewidth=1.5)
        axes.text(place + 0.08, value, f"{value:.1f}", ha="left", va="bottom", fontsize=8.5)
    axes.set_xticks(range(len(found)), [ACCURACIES[name] for name in found])
    axes.set(ylim=(floor, max(100 * high for _, high in bounds) + 1), ylabel="accuracy on own test sets, %")
    axes.tick_params(axis="x", length=0)
    axes.grid(axis="y", alpha=0.3)
    axes.set_title("uploads, rebuilt with a choice of factors", fontsize=10)


def _bounds(estimate: Estimate) -> tuple[float, float]:
    interval = estimate.interval
    return (interval.low, interval.high) if isinstance(interval, Interval) else (estimate.value, estimate.value)
