"""Figures of membership inference: ROC curves (log-log), leakage with intervals, and leakage of every client."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, Locator, LogLocator, MaxNLocator, NullFormatter, NullLocator

from app.common.files import plain_names
from app.metrics.intervals import Estimate, Interval
from app.metrics.leakage import Leakage
from app.metrics.membership import Array, MembershipScores, NotAvailable
from app.metrics.roc import RocCurve, log_log_roc, roc_curve
from app.results.attacks.membership_report import decimals
from app.results.attacks.wording import short_label, tpr_at, write_in_row

if TYPE_CHECKING:
    from app.results.attacks.membership import AttackRecord

CHANCE: dict[str, Any] = {"color": "0.45", "linewidth": 1.0, "linestyle": (0, (4, 3)), "zorder": 1}

PALETTE = (
    *("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#e377c2"),
    *("#7f7f7f", "#bcbd22", "#003f5c", "#b5179e", "#588157", "#6d597a", "#c9a227", "#000000"),
)
"""One colour per attack; further attacks start again."""

STYLES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))
"""One line style per target; further targets start again."""

SHOWN_FPR = 0.01
"""False positive rate whose TPR stands beside the AUC."""

MOST_BARS = 30
"""Clients up to which their intervals are thick."""


@plain_names()
def draw_roc(scores_by_label: Mapping[str, MembershipScores], title: str) -> Figure:
    """ROC curves on logarithmic axes, the largest AUC first in the key; colour by attack, line style by target."""
    curves = {label: roc_curve(scores) for label, scores in scores_by_label.items()}
    height = max(4.8, 1.1 + 0.2 * len(curves))
    beside = 1.1 + 0.062 * (7 + max(map(len, map(short_label, curves)), default=0))  # inches for the key
    figure = Figure(figsize=(height + beside, height), layout="constrained")
    axes = figure.subplots()
    looks = _looks(list(curves))
    smallest = [min(1 / curve.true_positives[-1], 1 / curve.false_positives[-1]) for curve in curves.values()]
    limits = (min([0.1, *smallest]), 1.0)
    for label, curve in sorted(curves.items(), key=lambda item: -item[1].auc):
        axes.plot(*log_log_roc(curve), linewidth=1.6, label=f"{_area(curve)}  {short_label(label)}", **looks[label])
    axes.plot(limits, limits, label="0.500  chance", **CHANCE)
    _roc_axes(axes, limits)
    axes.set_title(title)
    key: dict[str, Any] = {"title": "AUC, result", "alignment": "left", "handlelength": 2.6}
    figure.legend(loc="outside right upper", fontsize=8.5, title_fontsize=8.5, **key)
    return figure


def draw_leakage(results: Sequence[AttackRecord], title: str) -> Figure:
    """AUC and TPR at 1 % FPR with intervals, the largest AUC on top; below, what is not available and why."""
    records = sorted(results, key=lambda record: (-_auc(record), record.label))
    names = [short_label(record.label.removesuffix(f".{record.conditions.read_target}")) for record in records]
    width = 9.2 + 0.085 * max(map(len, names), default=0)
    figure = Figure(figsize=(width, 1.6 + 0.27 * max(3, len(records))), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    targets = sorted({record.conditions.read_target for record in records})
    colours = {target: PALETTE[number % len(PALETTE)] for number, target in enumerate(targets)}
    for place, record in enumerate(records):
        _draw_row(left, right, place, record, colours[record.conditions.read_target])
    left.set_yticks(range(len(records)), names)
    left.set_ylim(max(len(records), 1) - 0.4, -0.6)
    left.set(xlabel="AUC, with interval (dashed: chance)", xlim=_auc_limits(records))
    _rate_axis(right)
    for axes, chance in ((left, 0.5), (right, SHOWN_FPR)):
        axes.axvline(chance, **CHANCE)
        axes.grid(axis="x", alpha=0.3)
        axes.tick_params(axis="y", length=0)
    figure.suptitle(title, fontsize=11)
    dots = [Line2D([], [], color=colour, marker="o", linestyle="", label=name) for name, colour in colours.items()]
    figure.legend(handles=dots, title="attacked", loc="outside right upper", fontsize=8.5, title_fontsize=8.5)
    return figure


def draw_clients(record: AttackRecord, rates: Mapping[int, float] | None = None) -> Figure:
    """AUC of every client with its interval against its number of training samples, on a logarithmic axis.

    Clients of equal size are drawn side by side; colours are widths, where `rates` gives them by client id.
    """
    points = [
        _Point(row.client, row.size, row.leakage.auc)
        for row in record.clients
        if isinstance(row.leakage, Leakage) and row.size > 0
    ]
    figure = Figure(figsize=(7.5, 4.4), layout="constrained")
    axes = figure.subplots()
    places = _side_by_side([point.size for point in points])
    for width, (colour, chosen) in _by_width(points, rates).items():
        for number in chosen:
            _mark(axes, places[number], points[number].auc, colour, upright=True, thin=len(points) > MOST_BARS)
        axes.plot([], [], "o", color=colour, label=f"{width} ({len(chosen)})")
    axes.axhline(0.5, label="chance", **CHANCE)
    _client_axes(axes, points, places)
    _name_worst(axes, points, places)
    left_out = len(record.clients) - len(points)
    remark = f"\nnot shown, without a number: {left_out} of {len(record.clients)} clients" if left_out else ""
    axes.set_title(f"{record.label}{remark}", fontsize=11)
    return figure


@dataclass(frozen=True)
class _Point:
    """A client in a figure."""

    client: int
    size: int
    auc: Estimate


def _roc_axes(axes: Axes, limits: tuple[float, float]) -> None:
    axes.set(xscale="log", yscale="log", xlim=limits, ylim=limits)
    axes.set(xlabel="false positive rate", ylabel="true positive rate")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(_percent))
        axis.set_minor_formatter(NullFormatter())
    axes.grid(alpha=0.3)


def _looks(labels: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Colour by attack and line style by target, which is the last part of a label."""
    attacks, targets = ([*dict.fromkeys(label.rpartition(".")[part] for label in labels)] for part in (0, 2))
    return {
        label: {
            "color": PALETTE[attacks.index(label.rpartition(".")[0]) % len(PALETTE)],
            "linestyle": STYLES[targets.index(label.rpartition(".")[2]) % len(STYLES)],
        }
        for label in labels
    }


def _draw_row(left: Axes, right: Axes, place: int, record: AttackRecord, colour: str) -> None:
    """Two dots with their intervals, or the reason where there are none."""
    leakage = record.leakage
    if isinstance(leakage, NotAvailable):
        write_in_row(left, place, f"N/A: {leakage.reason}", 66)
        write_in_row(right, place, "N/A", 10)
        return
    _mark(left, place, leakage.auc, colour)
    rate = tpr_at(leakage, SHOWN_FPR)
    if rate is None:
        write_in_row(right, place, f"N/A: too few non-members ({leakage.nonmembers})", 60)
    else:
        _mark(right, place, Estimate(rate.decision.tpr, rate.tpr_at_target), colour)


def _mark(axes: Axes, place: float, estimate: Estimate, colour: Any, upright: bool = False, thin: bool = False) -> None:
    """A dot with its interval, horizontal unless `upright`."""
    turned = slice(None, None, -1 if upright else 1)
    if isinstance(estimate.interval, Interval):
        line = ([estimate.interval.low, estimate.interval.high], [place, place])[turned]
        axes.plot(*line, color=colour, linewidth=0.7 if thin else 1.5, alpha=0.45 if thin else 0.65)
    dot = ([estimate.value], [place])[turned]
    axes.plot(*dot, "o", color=colour, markersize=4.5 if thin else 5.5, zorder=3)


def _rate_axis(axes: Axes) -> None:
    """True positive rates, 0 included: logarithmic above the rate of chance, linear below."""
    axes.set_xscale("symlog", linthresh=SHOWN_FPR, linscale=0.7)
    axes.set(xlabel=f"TPR at {_percent(SHOWN_FPR)} FPR, with interval (dashed: chance)", xlim=(-0.0008, 1.15))
    axes.xaxis.set_major_locator(FixedLocator([0, 0.01, 0.03, 0.1, 0.3, 1]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(_percent))


def _auc_limits(records: Sequence[AttackRecord]) -> tuple[float, float]:
    aucs = [record.leakage.auc for record in records if isinstance(record.leakage, Leakage)]
    ends = [end for auc in aucs if isinstance(auc.interval, Interval) for end in (auc.interval.low, auc.interval.high)]
    values = [0.5, 0.6, *ends, *(auc.value for auc in aucs)]
    return min(values) - 0.02, max(values) + 0.02


def _auc(record: AttackRecord) -> float:
    return record.leakage.auc.value if isinstance(record.leakage, Leakage) else -1.0


def _side_by_side(sizes: Sequence[int]) -> Array:
    """Places on a logarithmic axis; equal sizes are spread less than a third of the way to the next size."""
    distinct = sorted(set(sizes))
    gaps = [after / before for before, after in pairwise(distinct)]
    room = min([1.5, *gaps]) ** 0.3
    places = np.array(sizes, dtype=np.float64)
    for size in distinct:
        same = np.flatnonzero(places == size)
        places[same] = size * room ** (np.linspace(-1, 1, same.size) if same.size > 1 else 0)
    return places


def _by_width(points: Sequence[_Point], rates: Mapping[int, float] | None) -> dict[str, tuple[Any, list[int]]]:
    """Colour and row numbers of the clients of every width, widest first and darkest; all alike without widths."""
    if rates is None:
        return {"clients": (PALETTE[0], [*range(len(points))])}
    widths = sorted({rates[point.client] for point in points}, reverse=True)
    colours = colormaps["viridis"](np.linspace(0, 0.85, len(widths)))
    return {
        f"width {width:g}": (colour, [number for number, point in enumerate(points) if rates[point.client] == width])
        for width, colour in zip(widths, colours, strict=True)
    }


def _client_axes(axes: Axes, points: Sequence[_Point], places: Array) -> None:
    sizes = sorted({point.size for point in points})
    axes.set_xscale("log")
    low, high = (float(places.min()), float(places.max())) if sizes else (1.0, 10.0)
    edge = (high / low) ** 0.08 if high > low else 1.2
    axes.set_xlim(low / edge, high * edge)
    axes.xaxis.set_major_locator(_size_ticks(sizes or [1]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: f"{size:,.0f}"))
    tied = " (equal sizes side by side)" if len(sizes) < len(points) else ""
    axes.set(xlabel=f"training samples of the client{tied}", ylabel="AUC, with interval")
    axes.margins(y=0.1)
    axes.grid(alpha=0.3)
    axes.figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", fontsize=8.5)


def _size_ticks(sizes: Sequence[int]) -> Locator:
    """The sizes themselves where they are few and far enough apart; round numbers otherwise."""
    span = sizes[-1] / sizes[0]
    if all(after / before >= span ** (1 / 8) for before, after in pairwise(sizes)):
        return FixedLocator(sizes)
    return LogLocator(subs=(1, 2, 5)) if span > 4 else MaxNLocator(6, integer=True)


def _name_worst(axes: Axes, points: Sequence[_Point], places: Array) -> None:
    """Names the client that leaks most; names of all would overlap."""
    worst = max(zip(points, places, strict=True), key=lambda pair: pair[0].auc.value, default=None)
    if worst is not None:
        client, auc = worst[0].client, worst[0].auc
        top = auc.interval.high if isinstance(auc.interval, Interval) else auc.value
        style: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "fontsize": 8.5}
        axes.annotate(f"client {client}", (worst[1], top), (0, 4), **style)


def _area(curve: RocCurve) -> str:
    """AUC with the decimals that so many rows deserve, given the spread of the AUC of random scores."""
    members, nonmembers = int(curve.true_positives[-1]), int(curve.false_positives[-1])
    reach = 1.96 * math.sqrt((members + nonmembers + 1) / (12 * members * nonmembers))
    return f"{curve.auc:.{decimals(Interval(-reach, reach), 3)}f}"


def _percent(rate: float, _: object = None) -> str:
    return f"{100 * rate:g} %"
