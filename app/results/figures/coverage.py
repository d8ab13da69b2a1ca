"""Number of clients that train every weight under each method, and the outputs that each client trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap, to_rgba
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from app.common.reading import read_json
from app.federation.transcript import Transcript
from app.results.figures import layout
from app.results.figures.data import FigureData
from app.results.figures.style import COLOURS, FAINT, ReportFigure, report_style
from app.results.run.plan_figures import MOST_POINTS, fewest
from app.results.run.store import RunRecord

ALONE = COLOURS[6]
"""Colour of weights that a single client trains."""

ACROSS = 3
"""Methods side by side."""

MOST_METHODS = 9


@dataclass(frozen=True, eq=False)
class Coverage:
    """Clients that train a weight matrix in one round, counted from 1."""

    method: str
    layer: str
    round: int
    counts: np.ndarray  # (outputs, inputs) number of clients that train the weight
    # (clients of the round, outputs) width rate of a client that trains the output, 0 where it does not
    outputs: np.ndarray
    clients: tuple[int, ...]  # ids of the rows of `outputs`


def contributors(data: FigureData, dataset: str) -> ReportFigure | None:
    """Clients per weight, two panels per method; None where every client trains the whole network."""
    methods: dict[str, RunRecord] = {}
    for row in data.baseline_first(dataset):
        for run in data.runs(row)[:1]:
            methods.setdefault(row.method, run)
    maps = [layers for method, run in methods.items() if (layers := contributors_of(method, run.path))]
    shown = _same_layer(maps[:MOST_METHODS])
    if not any(np.ptp(one.counts) > 0 or np.any(one.outputs == 0) for one in shown):
        return None
    names = {one.layer for one in shown}
    where = f"the weights of {names.pop()}" if len(names) == 1 else "the weights of each network's largest layer"
    with report_style():
        plot = _plot(shown)
    return data.report_figure(
        "contributors",
        "Clients that train each weight",
        dataset,
        plot,
        f"Above, {where}, outputs by inputs, coloured by the number of clients that train them in the last round "
        "that was kept. Below, the outputs that each client trains; the stronger the colour, the wider the client's "
        "submodel.",
        "Many clients per weight are good. Red weights are trained by a single client: a sum over all clients would "
        "reveal that client's own update. Grey weights are trained by no client.",
    )


def contributors_of(method: str, folder: Path) -> dict[str, Coverage]:
    """Coverage of all weight matrices in the last round that the run has kept, by name; empty where it has kept none.

    Args:
        method: name of the method.
        folder: the run's.
    """
    try:
        plan = read_json(folder / "plan.json")
        transcript = Transcript(folder / "transcript")
        last = transcript.rounds[-1]
        indices = transcript.coordinates(last)
        layers, rates = plan.get("layers", []), plan["capacities"]
        return {layer["name"]: _map(method, last, layer, indices, rates) for layer in layers}
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError, BadZipFile):
        return {}


def _map(
    method: str, round_: int, layer: Mapping[str, Any], indices: Mapping[int, Tensor | None], rates: Sequence[float]
) -> Coverage:
    start, shape = int(layer["start"]), tuple(layer["shape"])
    size, kernel = int(np.prod(shape)), int(np.prod(shape[2:]))
    counts = np.zeros(shape[:2], dtype=np.int64)
    outputs = np.zeros((len(indices), shape[0]))
    for row, (client, index) in enumerate(indices.items()):
        trained = np.ones(size, dtype=bool)
        if index is not None:
            inside = index[(index >= start) & (index < start + size)].numpy() - start
            trained = np.zeros(size, dtype=bool)
            trained[inside] = True
        matrix = trained.reshape(*shape[:2], kernel)[:, :, 0]
        counts += matrix
        outputs[row] = rates[client] * matrix.any(axis=1)
    return Coverage(method, str(layer["name"]), round_, counts, outputs, tuple(indices))


def _same_layer(methods: Sequence[Mapping[str, Coverage]]) -> list[Coverage]:
    """The largest matrix that all methods have and that is trained unevenly; without a common one, each one's largest.

    Args:
        methods: matrices of each method by name.
    """
    if not methods:
        return []
    common = [name for name in methods[0] if all(name in layers for layers in methods)]
    uneven = [name for name in common if any(np.ptp(layers[name].counts) > 0 for layers in methods)]
    if not common:
        return [max(layers.values(), key=lambda one: one.counts.size) for layers in methods]
    chosen = max(uneven or common, key=lambda name: methods[0][name].counts.size)
    return [layers[chosen] for layers in methods]


def _plot(shown: Sequence[Coverage]) -> Figure:
    """Two panels per method, one above the other, and one colour bar."""
    across = min(ACROSS, len(shown))
    lines = -(-len(shown) // across)
    colours, norm = _colours(max(int(one.counts.max()) for one in shown))
    margins = layout.Margins(right=0.75, across=0.55, down=0.62)
    plot, grid = layout.panels(2 * lines, [2.0] * across, 1.5, margins)
    for number in range(across * lines):
        line, column = divmod(number, across)
        upper, lower = grid[2 * line, column], grid[2 * line + 1, column]
        if number >= len(shown):
            upper.set_visible(False)
            lower.set_visible(False)
            continue
        _show_counts(upper, shown[number], cmap=colours, norm=norm)
        _show_outputs(lower, shown[number])
        if column == 0:
            upper.set_ylabel("output")
            lower.set_ylabel("client")
    _colour_bar(grid[0, across - 1])
    return plot


def _colours(most: int) -> tuple[ListedColormap, BoundaryNorm]:
    """A colour for each number of clients from 0 to `most`."""
    many = colormaps["viridis"](np.linspace(0.25, 1.0, max(1, most - 1)))
    colours = [to_rgba(FAINT), to_rgba(ALONE), *map(tuple, many)][: max(2, most + 1)]
    return ListedColormap(colours), BoundaryNorm(np.arange(len(colours) + 1) - 0.5, len(colours))


def _show_counts(axes: Axes, one: Coverage, **colours: Any) -> None:
    outputs, inputs = one.counts.shape
    extent = (-0.5, inputs - 0.5, outputs - 0.5, -0.5)
    axes.imshow(
        fewest(one.counts, MOST_POINTS), aspect="auto", interpolation="nearest", extent=extent, gid="counts", **colours
    )
    axes.set_title(f"{one.method}, round {one.round}", fontsize=layout.SMALL + 0.5)
    axes.set_xlabel("input", labelpad=1)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(4, integer=True))


def _show_outputs(axes: Axes, one: Coverage) -> None:
    clients, outputs = one.outputs.shape
    image = np.zeros((clients, outputs, 4))
    image[...] = to_rgba(COLOURS[0])
    image[..., 3] = np.where(one.outputs > 0, 0.3 + 0.7 * one.outputs, 0.0)
    extent = (-0.5, outputs - 0.5, clients - 0.5, -0.5)
    axes.imshow(image, aspect="auto", interpolation="nearest", extent=extent)
    for edge in range(1, clients if clients <= 40 else 0):
        axes.axhline(edge - 0.5, color=FAINT, linewidth=0.4)
    step = -(-clients // 12)
    axes.set_yticks(range(0, clients, step), [str(client) for client in one.clients[::step]], fontsize=7.5)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.set_xlabel("output", labelpad=1)


def _colour_bar(axes: Axes) -> None:
    """Legend of the colours beside the last panel of the first line."""
    place = axes.inset_axes((1.08, 0.0, 0.06, 1.0))
    bar = axes.figure.colorbar(axes.images[0], cax=place)
    bar.ax.yaxis.set_major_locator(MaxNLocator(8, integer=True))
    bar.ax.minorticks_off()
    bar.ax.tick_params(length=0, labelsize=7.5)
    bar.set_label("clients", fontsize=layout.SMALL)
    bar.outline.set_visible(False)
