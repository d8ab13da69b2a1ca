"""Figures of one run: accuracy over rounds, privacy budget, fairness."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from app.common.files import plain_names, write_figure
from app.common.wording import LOCAL_TEST, TRAINED
from app.metrics.fairness import POINTS
from app.metrics.intervals import Interval
from app.metrics.membership import Array
from app.privacy.statements import MEANINGLESS
from app.results.attacks.membership_figures import PALETTE
from app.results.run.fairness import ANOTHER, FINE_TUNED, MEAN, NONE, OWN, PREFIX, ClientAccuracies


@plain_names()
def draw_accuracy(records: Sequence[dict[str, Any]], path: Path, title: str) -> None:
    """Accuracy over the rounds: the server, mean and worst of the trained models, and the mean of every capacity.

    Where participants are not evaluated, all clients stand for them.

    Args:
        records: lines of `metrics.jsonl`.
        path: figure to write.
        title: of the figure.
    """
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes = figure.subplots()
    _line(axes, records, "server/accuracy", "server, common test set", "black", "-")
    for name, label, colour in (
        ("clients/trained_common", f"{TRAINED}, common test set", "tab:blue"),
        ("clients/trained_own", f"{TRAINED}, own test sets", "tab:orange"),
    ):
        _line(axes, records, f"{name}/mean", f"{label} (band: worst to mean)", colour, "--")
        _band(axes, records, name, colour)
    for number, name in enumerate(_capacity_metrics(records)):
        label = f"{TRAINED} of width {name.split('/')[0].removeprefix('capacity-')}, common test set"
        _line(axes, records, name, label, f"C{2 + number}", ":")
    if not _points(records, "clients/trained_own/mean")[0]:
        _line(axes, records, "everyone/accuracy", f"{LOCAL_TEST}, mean of all clients", "tab:green", "-")
    axes.set(xlabel="round", ylabel="accuracy", title=title)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(0, 1.02)
    axes.grid(alpha=0.3)
    if axes.get_lines():
        axes.legend(loc="lower right", fontsize=8)
    write_figure(path, figure)


BUDGETS = {
    "privacy/epsilon": ("epsilon per sample, client that has spent most", "tab:red", "-"),
    "privacy/epsilon_mean": ("epsilon per sample, mean of the clients", "tab:red", ":"),
    "dp_fedavg/epsilon": ("epsilon per client", "tab:purple", "-"),
    "distributed_dp/epsilon": ("epsilon per client, client that has spent most", "tab:purple", "-"),
}
"""Metrics that are privacy budgets: label, colour and line."""


@plain_names()
def draw_budget(records: Sequence[dict[str, Any]], path: Path, title: str) -> bool:
    """Privacy budget over the rounds, with the server's accuracy; returns whether there was a budget to draw."""
    if not any(record.get(name) is not None for record in records for name in BUDGETS):
        return False
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes = figure.subplots()
    for name, (label, colour, style) in BUDGETS.items():
        _line(axes, records, name, label, colour, style)
    axes.axhline(MEANINGLESS, color="grey", linewidth=0.8, linestyle="--")
    last = max(float(record["round"]) for record in records)
    axes.text(last, MEANINGLESS, "no meaningful guarantee above", ha="right", va="top", fontsize=7, color="grey")
    axes.set(xlabel="round", ylabel="epsilon spent", title=title, ylim=(0, None))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    accuracy = axes.twinx()
    _line(accuracy, records, "server/accuracy", "server's accuracy", "black", "--")
    accuracy.set(ylabel="accuracy (dashed)", ylim=(0, 1.02))
    axes.legend(handles=[*axes.get_lines()[:-1], *accuracy.get_lines()], loc="upper left", fontsize=8)
    write_figure(path, figure)
    return True


def _capacity_metrics(records: Sequence[dict[str, Any]]) -> list[str]:
    names = {name for record in records for name in record if name.startswith("capacity-")}
    return sorted((name for name in names if name.endswith("/trained_common/mean")), reverse=True)


def _points(records: Sequence[dict[str, Any]], *names: str) -> list[list[float]]:
    present = [record for record in records if all(record.get(name) is not None for name in names)]
    return [[float(record[name]) for record in present] for name in ("round", *names)]


def _line(axes: Any, records: Sequence[dict[str, Any]], name: str, label: str, colour: str, style: str) -> None:
    rounds, values = _points(records, name)
    if values:
        axes.plot(rounds, values, style, color=colour, label=label, marker="." if len(rounds) < 30 else "")


def _band(axes: Any, records: Sequence[dict[str, Any]], name: str, colour: str) -> None:
    rounds, worst, mean = _points(records, f"{name}/worst", f"{name}/mean")
    if rounds:
        axes.fill_between(rounds, worst, mean, color=colour, alpha=0.15)


BARS = {
    OWN: "its own",
    ANOTHER: "another client's",
    MEAN: "mean of all",
    NONE: "none (released model)",
    FINE_TUNED: "its own, fine-tuned",
}
"""Whose private part a bar is about."""

UNSHARED = {OWN: "the server's model", FINE_TUNED: "fine-tuned"}
"""The same where nothing is private."""

FEWEST_BINS, MOST_BINS = 8, 30
"""Bins of the histogram; between them, twice the square root of the number of clients."""

Panel = Callable[[Axes], None]


def draw_fairness(measured: ClientAccuracies, records: Sequence[Mapping[str, Any]], title: str) -> Figure:
    """The clients' accuracies per group; curves where rounds were measured before; bars where there are controls."""
    panels: list[Panel] = [lambda axes: _distribution(axes, measured)]
    curves = [record for record in records if record.get(f"{PREFIX}accuracy") is not None]
    if len(curves) > 1:
        panels.append(lambda axes: _curves(axes, measured, curves))
    if len(measured.accuracies) > 1:
        panels.append(lambda axes: _bars(axes, measured))
    figure = Figure(figsize=(0.6 + 5.4 * len(panels), 4.6), layout="constrained")
    for axes, draw in zip(np.atleast_1d(figure.subplots(1, len(panels))), panels, strict=True):
        draw(axes)
    figure.suptitle(f"{title}\n{LOCAL_TEST} of every client after round {measured.round}", fontsize=11)
    return figure


def _distribution(axes: Axes, measured: ClientAccuracies) -> None:
    """Histogram per group in shares of the group, its mean, and a stroke per client below the axis of the histogram."""
    parts, edges = _by_group(measured), _edges(np.array(measured.accuracies[OWN]))
    for number, (name, accuracies) in enumerate(parts.items()):
        colour, weights = _colour(number), np.full(accuracies.size, POINTS / accuracies.size)
        who = f"all ({accuracies.size})" if len(parts) == 1 else f"{name} ({accuracies.size})"
        label = f"{who}: mean {accuracies.mean():.1%}, worst {accuracies.min():.1%}"
        look: dict[str, Any] = {"histtype": "stepfilled", "alpha": 0.3, "edgecolor": colour, "facecolor": colour}
        axes.hist(POINTS * accuracies, list(POINTS * edges), weights=weights, **look)
        axes.axvline(POINTS * accuracies.mean(), color=colour, linestyle="--", linewidth=1.4, label=label)
    _strokes(axes, parts)
    axes.set(xlabel=f"{LOCAL_TEST} of a client (%)", ylabel="share of the group's clients (%)")
    axes.set_xlim(POINTS * edges[0], POINTS * (edges[-1] + 0.02 * (edges[-1] - edges[0])))
    axes.set_title(f"variance {measured.fairness().variance:.1f} (squared percentage points)", fontsize=10)
    _key(axes)


def _strokes(axes: Axes, parts: Mapping[str, Array]) -> None:
    """A row of strokes per group, one for each client, in a band below zero that has no ticks."""
    top = axes.get_ylim()[1]
    row = 0.055 * top
    for number, accuracies in enumerate(parts.values()):
        low = -(number + 1.25) * row
        alpha = 0.8 if accuracies.size < 200 else 0.3
        axes.vlines(POINTS * accuracies, low, low + 0.85 * row, color=_colour(number), linewidth=1.0, alpha=alpha)
    axes.axhline(0, color="0.3", linewidth=0.8)
    axes.set_ylim(-(len(parts) + 0.5) * row, 1.25 * top)
    axes.set_yticks([tick for tick in MaxNLocator(6).tick_values(0, top) if 0 <= tick <= POINTS])


def _curves(axes: Axes, measured: ClientAccuracies, records: Sequence[Mapping[str, Any]]) -> None:
    """Mean, groups and worst client over the measured rounds."""
    groups = [group.name for group in measured.fairness().groups]
    rounds = [record["round"] for record in records]
    marker = "." if len(rounds) < 30 else ""

    def line(name: str, label: str, **look: Any) -> None:
        values = [POINTS * record.get(f"{PREFIX}{name}", np.nan) for record in records]  # a group may join late
        axes.plot(rounds, values, label=label, marker=marker, **look)

    line("worst", "worst client", color="0.55", linestyle=":")
    for number, name in enumerate(groups if len(groups) > 1 else ()):
        line(name, f"mean of the {name}", color=_colour(number))
    line("accuracy", "mean of all clients", color="black", linewidth=1.8)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="round", ylabel=f"{LOCAL_TEST} (%)")
    axes.set_title("over the rounds", fontsize=10)
    axes.set_ylim(top=min(axes.get_ylim()[1], POINTS + 1))
    axes.legend(loc="best", fontsize=8)
    axes.grid(alpha=0.3)


def _bars(axes: Axes, measured: ClientAccuracies) -> None:
    """Mean accuracy by whose private part is used, with intervals, and the mean of every group."""
    swap = measured.swap
    names = BARS if swap is not None else UNSHARED
    shown = [whose for whose in names if whose in measured.accuracies]
    for place, whose in enumerate(shown):
        fairness, interval = measured.fairness(whose), measured.estimate(whose).interval
        axes.barh(place, POINTS * fairness.mean, height=0.55, color="0.6" if whose == OWN else "0.82")
        if isinstance(interval, Interval):
            axes.plot([POINTS * interval.low, POINTS * interval.high], [place, place], color="black", linewidth=1.6)
        for number, group in enumerate(fairness.groups if len(fairness.groups) > 1 else ()):
            look: dict[str, Any] = {"color": _colour(number), "label": group.name if place == 0 else None}
            axes.plot(POINTS * group.mean, place - 0.38, "v", markersize=6, clip_on=False, **look)
        beside = axes.get_yaxis_transform()
        axes.text(1.02, place, f"{fairness.mean:.1%}", transform=beside, va="center", fontsize=9)
    axes.set_yticks(range(len(shown)), [names[whose] for whose in shown])
    axes.set(xlabel=f"mean {LOCAL_TEST} (%), with interval", xlim=(0, POINTS), ylim=(len(shown) - 0.4, -0.8))
    axes.set_ylabel("private part used" if swap is not None else "model")
    axes.set_title(swap.verdict.replace(": ", ":\n") if swap is not None else "before and after", fontsize=10)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=4, fontsize=8, frameon=False)


def _by_group(measured: ClientAccuracies) -> dict[str, Array]:
    accuracies, groups = np.array(measured.accuracies[OWN]), np.array(measured.groups)
    return {name: accuracies[groups == name] for name in dict.fromkeys(measured.groups)}


def _edges(accuracies: Array) -> Array:
    """Edges of the bins, a little wider than the accuracies and never narrower than ten points."""
    bins = int(np.clip(2 * np.sqrt(accuracies.size), FEWEST_BINS, MOST_BINS))
    high = min(1.0, max(accuracies.max() + 0.02, 0.1))
    low = max(0.0, min(accuracies.min() - 0.02, high - 0.1))
    return np.linspace(low, high, bins + 1)


def _colour(number: int) -> str:
    return PALETTE[number % len(PALETTE)]


def _key(axes: Axes) -> None:
    axes.legend(loc="upper left", fontsize=8)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
