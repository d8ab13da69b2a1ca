"""Pictures of one run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from app.privacy.statement import MEANINGLESS


def draw_accuracy(records: Sequence[dict[str, Any]], path: Path, title: str) -> None:
    """Accuracy over the rounds: the server, the clients' mean and worst, and the mean of every capacity.

    Where participants are not evaluated, all clients stand for them.

    Args:
        records: lines of `metrics.jsonl`.
        path: picture to write.
        title: shown above the picture.
    """
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes = figure.subplots()
    _line(axes, records, "server/accuracy", "server, common test set", "black", "-")
    for name, label, colour in (
        ("clients/trained_common", "clients after local training, common test set", "tab:blue"),
        ("clients/trained_own", "clients after local training, own test set", "tab:orange"),
    ):
        _line(axes, records, f"{name}/mean", f"{label} (band: worst client to mean)", colour, "--")
        _band(axes, records, name, colour)
    for number, name in enumerate(_capacity_metrics(records)):
        label = f"clients of width {name.split('/')[0].removeprefix('capacity-')}, common test set"
        _line(axes, records, name, label, f"C{2 + number}", ":")
    if not _points(records, "clients/trained_own/mean")[0]:
        _line(
            axes,
            records,
            "everyone/accuracy",
            "every client with the model it would use, own test set",
            "tab:green",
            "-",
        )
    axes.set(xlabel="round", ylabel="accuracy", title=title)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(0, 1.02)
    axes.grid(alpha=0.3)
    if axes.get_lines():
        axes.legend(loc="lower right", fontsize=8)
    figure.savefig(path, dpi=130)


BUDGETS = {
    "privacy/epsilon": ("epsilon per sample, client that has spent most", "tab:red", "-"),
    "privacy/epsilon_mean": ("epsilon per sample, mean of the clients", "tab:red", ":"),
    "dp_fedavg/epsilon": ("epsilon per client", "tab:purple", "-"),
}
"""Metrics that are privacy budgets: label, colour and line."""


def draw_budget(records: Sequence[dict[str, Any]], path: Path, title: str) -> bool:
    """Privacy budget spent over the rounds, and the server's accuracy beside it; returns whether there was a budget.

    Args:
        records: lines of `metrics.jsonl`.
        path: picture to write.
        title: shown above the picture.
    """
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
    figure.savefig(path, dpi=130)
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
