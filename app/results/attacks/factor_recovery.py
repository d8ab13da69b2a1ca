"""Result of factor recovery (WAFFLe): numbers, a table of clients, a figure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from app.attacks.factor_recovery import COSTS, ClientRecovery, FactorFinding
from app.common.files import csv_text, finite
from app.common.wording import counted
from app.metrics.intervals import Estimate, Interval
from app.metrics.membership import Array, NotAvailable
from app.result import IN_MEMORY, Cell, PlainTable, Result
from app.results.text_table import table_lines

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
    """Movement of factors against the probability that clients use them, AUCs, and accuracies of rebuilt models."""
    figure = Figure(figsize=(13.0, 4.3), layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=(5, 4, 4))
    _draw_movements(left, finding.chosen.ravel(), finding.moved.ravel())
    _draw_areas(middle, finding)
    _draw_accuracies(right, finding)
    count = len(finding.clients)
    figure.suptitle(f"{title}: last uploads of {counted(count, 'client')}", fontsize=11)
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
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))  # without TeX
    axes.yaxis.set_minor_formatter(NullFormatter())
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
    estimates = [finding.means[name] for name in AREAS]
    return min((_bounds(estimate)[0] for estimate in estimates if isinstance(estimate, Estimate)), default=0.5)


def _draw_accuracies(axes: Axes, finding: FactorFinding) -> None:
    """Bars start just below the smallest value, since the differences matter."""
    estimates = {name: estimate for name in ACCURACIES if isinstance(estimate := finding.means[name], Estimate)}
    if not estimates:
        axes.text(0.5, 0.5, "N/A: clients have no test sets\n(--data.holdout.clients)", ha="center", va="center")
        axes.set_axis_off()
        return
    bounds = [_bounds(estimate) for estimate in estimates.values()]
    floor = max(0.0, 100 * (min(low for low, _ in bounds) - 0.02))
    for place, (name, estimate) in enumerate(estimates.items()):
        low, high = (100 * end for end in _bounds(estimate))
        value, colour = 100 * estimate.value, USED if name in ("own", "recovered") else "0.6"
        axes.bar(
            place, value - floor, bottom=floor, color=colour, alpha=0.85 if name == "recovered" else 0.5, width=0.7
        )
        axes.plot([place, place], [low, high], color="0.2", linewidth=1.5)
        axes.text(place + 0.08, value, f"{value:.1f}", ha="left", va="bottom", fontsize=8.5)
    axes.set_xticks(range(len(estimates)), [ACCURACIES[name] for name in estimates])
    axes.set(ylim=(floor, max(100 * high for _, high in bounds) + 1), ylabel="accuracy on own test sets, %")
    axes.tick_params(axis="x", length=0)
    axes.grid(axis="y", alpha=0.3)
    axes.set_title("uploads, rebuilt with a choice of factors", fontsize=10)


def _bounds(estimate: Estimate) -> tuple[float, float]:
    interval = estimate.interval
    return (interval.low, interval.high) if isinstance(interval, Interval) else (estimate.value, estimate.value)


MEANINGS = {
    "support": "AUC: the server's ranking (movement times prior odds) tells the factors that a client uses (above 1/2)",
    "moved": "the same by how far factors moved alone",
    "prior": "control without any upload: the same by the public prior alone",
    "population": "control without the client's upload: the same by the mean choice of all clients, which is secret",
    "specific": "AUC: movement over its mean tells the factors that a client uses more than the population does",
    "own": "accuracy on the client's own test set of its upload with its true choice",
    "recovered": "the same with the choice that the server takes it for",
    "concealed": "the same as the upload was sent: without a choice",
    "another": "the same with another client's choice",
    "concealed_cost": "what the upload as it was sent loses of the accuracy with the true choice, paired by client",
    "recovered_cost": "what it still loses with the choice that the server takes it for",
    "another_cost": "what it loses with another client's choice",
}
"""What is measured, in words."""

TABLE = "attacks/factors.csv"
"""One line per client, within the run's folder."""


@dataclass(frozen=True, eq=False, repr=False)
class FactorRecord(Result):
    """How well a server recovers which factors the clients use."""

    kind = "private choice of factors"
    folder = "attacks"
    part = "factors"
    label = "factors"

    # value, low and high by name in `MEANINGS`; or the reason of a missing one
    means: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    reason: str = ""  # why there are no numbers; empty where there are some
    finding: FactorFinding | None = field(default=None, metadata=IN_MEMORY)  # of a result that was not loaded

    @classmethod
    def of(cls, finding: FactorFinding | NotAvailable) -> FactorRecord:
        if isinstance(finding, NotAvailable):
            return cls(reason=finding.reason)
        means = {name: dict(_numbers(estimate)) for name, estimate in finding.means.items()}
        return cls(means, finding.notes, finding=finding)

    @property
    def numbers(self) -> Mapping[str, float]:
        return {name: mean["value"] for name, mean in self.means.items() if mean.get("value") is not None}

    def record(self) -> dict[str, Any]:
        if self.reason:
            return {"reason": self.reason}
        clients = len(self.finding.clients) if self.finding is not None else None
        return {"clients": clients, "means": self.means, "meaning": MEANINGS, "notes": list(self.notes)}

    @classmethod
    def paths(cls, run: Path) -> list[Path]:
        return [path for path in super().paths(run) if path.stem == cls.label]

    def save(self, run: Path) -> None:
        super().save(run)
        (run / TABLE).unlink(missing_ok=True)  # of an earlier result; `overview` writes that of this one

    def draw(self, title: str) -> Iterator[tuple[str, Figure]]:
        if self.finding is not None:
            yield f"{self.label}.png", draw_factors(self.finding, title)

    @classmethod
    def text(cls, results: Sequence[Self]) -> str:
        return "\n".join(line for one in results for line in one.lines())

    def lines(self) -> list[str]:
        """The result, for the terminal."""
        if self.reason:
            return [f"  N/A: {self.reason}"]
        text = {name: _estimate_text(mean, _form(name)) for name, mean in self.means.items()}
        rows = [
            ("factors in use", f"AUC {text['support']}; movement alone {text['moved']}"),
            (
                "without the upload",
                f"AUC {text['prior']} by the public prior, {text['population']} by the clients' mean",
            ),
            ("more than others do", f"AUC {text['specific']}"),
            ("rebuilt models", f"{text['own']} true choice, {text['recovered']} recovered"),
            ("", f"{text['concealed']} as uploaded, {text['another']} another client's choice"),
            ("cost of not knowing", f"{text['concealed_cost']} points of accuracy; recovered {text['recovered_cost']}"),
        ]
        return [*table_lines((), rows, left=(0, 1), indent="  "), *(f"  {note}" for note in self.notes)]

    @classmethod
    def table(cls, results: Sequence[Self]) -> PlainTable:
        rows: list[list[Cell]] = [
            [name, mean.get("value"), mean.get("low"), mean.get("high"), mean.get("reason"), MEANINGS[name]]
            for one in results
            for name, mean in one.means.items()
        ]
        return PlainTable(("number", "value", "low", "high", "reason", "meaning"), rows)

    @classmethod
    def files(cls, results: Sequence[Self]) -> Iterator[tuple[str, str]]:
        for finding in (one.finding for one in results if one.finding is not None):
            rows = [list(finite(asdict(client)).values()) for client in finding.clients]
            yield TABLE, csv_text([[each.name for each in fields(ClientRecovery)], *rows])


def _form(name: str) -> Callable[[float], str]:
    """How a number is written: areas as they are, accuracies in percent, losses of accuracy in points."""
    if name in COSTS:
        return lambda value: f"{100 * value:.2f}"
    return "{:.3f}".format if name in AREAS else "{:.2%}".format


def _estimate_text(mean: Mapping[str, Any], form: Callable[[float], str]) -> str:
    if "value" not in mean:
        return "N/A"
    value = form(mean["value"])
    return f"{value} ({form(mean['low'])} to {form(mean['high'])})" if "low" in mean else value


def _numbers(estimate: Estimate | NotAvailable) -> Iterator[tuple[str, float | str]]:
    if isinstance(estimate, NotAvailable):
        yield "reason", estimate.reason
        return
    yield "value", estimate.value
    if isinstance(estimate.interval, Interval):
        yield from (("low", estimate.interval.low), ("high", estimate.interval.high))
