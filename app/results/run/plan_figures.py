"""Figures of a plan: how many clients train every weight, and who trains which output."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap, to_rgba
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from app.common.wording import counted
from app.federation.parameters import Block, ParameterSpace
from app.federation.plan_audit.audit import layer_of
from app.federation.private_coordinates import UploadedRound

ABSENT = -1.0
"""In place of a width: the client is not in the round."""


@dataclass(eq=False)
class LayerMap:
    """Contributors of one weight matrix (outputs x inputs; the weights of a kernel have the same contributors)."""

    name: str  # dotted name of the layer
    outputs: int  # rows of the matrix
    inputs: int  # columns of the matrix
    # (outputs, inputs) contributors in each of the shown rounds (0-based)
    counts: dict[int, np.ndarray] = field(default_factory=dict)
    summed: np.ndarray = field(init=False)  # (outputs, inputs) contributors summed over all rounds so far
    rounds: int = 0  # number of rounds so far
    # (clients, outputs) in each of the shown rounds: width rate of a client that trains the output, 0 where it trains
    # others, ABSENT where it is not in the round
    channels: dict[int, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.summed = np.zeros((self.outputs, self.inputs), dtype=np.int64)

    @property
    def mean(self) -> np.ndarray:
        return self.summed / max(1, self.rounds)


class PlanMaps:
    """Gathers the maps of all weight matrices that are sent.

    Attributes:
        layers: one map per layer with a weight matrix, in the order of the network.
    """

    def __init__(self, space: ParameterSpace, clients: int, shown: Collection[int]) -> None:
        """Start empty; `shown` are the rounds (0-based) to be shown one by one."""
        self._clients, self._shown = clients, frozenset(shown)
        self._blocks = {block.name: block for block in space.blocks if len(block.axes) == 2}
        self._maps: dict[str, LayerMap] = {}

    @property
    def layers(self) -> list[LayerMap]:
        return list(self._maps.values())

    def follow(self, plans: Iterable[UploadedRound]) -> Iterator[UploadedRound]:
        """The same rounds; notes on the way who trains which output in the rounds that are shown."""
        for plan in plans:
            by_layer = self._channels(plan) if plan.round in self._shown else {}
            yield plan
            for name, channels in by_layer.items():
                if name in self._maps:  # else the layer is not sent
                    self._maps[name].channels[plan.round] = channels

    def watch(self, round_: int, block: Block, counts: np.ndarray) -> None:
        """Take a block's contributors in one round, in the block's shape."""
        if block.name not in self._blocks:
            return
        matrix = counts.reshape(*block.shape[:2], -1)[:, :, 0]
        layer = self._maps.setdefault(block.name, LayerMap(layer_of(block), *matrix.shape))
        layer.summed += matrix
        layer.rounds += 1
        if round_ in self._shown:
            layer.counts[round_] = matrix.copy()

    def _channels(self, plan: UploadedRound) -> dict[str, np.ndarray]:
        by_layer = {name: np.full((self._clients, block.shape[0]), ABSENT) for name, block in self._blocks.items()}
        for client in plan.participants:
            index, rate = plan.index(client), plan.rate(client)
            for name, block in self._blocks.items():
                ends = block.start + torch.arange(block.shape[0] + 1) * (block.size // block.shape[0])
                trained = torch.searchsorted(index, ends.to(index.device)).diff() > 0
                by_layer[name][client] = rate * trained.cpu().numpy()
        return by_layer


NOBODY, ALONE = "0.78", "#d7191c"
"""Colours of weights that no client and a single client trains."""

MOST_POINTS = 256
"""Points along a side of a panel, which is about 300 pixels: more could not all be seen."""

MOST_CLIENTS_IN_WORDS = 25


def draw_layer(layer: LayerMap, title: str) -> Figure:
    """Contributors of a layer's weights, and below them who trains which output, in each of the shown rounds."""
    rounds = sorted(layer.counts)
    figure, grid = _panels(len(rounds), max(len(_shown_clients(layer, round_)) for round_ in rounds), _reading(layer))
    colours, norm = _count_colours(max(int(layer.counts[round_].max()) for round_ in rounds))
    for number, round_ in enumerate(rounds):
        image = _show(grid[0, number], fewest(layer.counts[round_], MOST_POINTS), layer, cmap=colours, norm=norm)
        _show_channels(grid[1, number], layer, round_)
        grid[0, number].set(title=f"round {round_ + 1}", xlabel="input")
        grid[1, number].set(xlabel="output")
    grid[0, 0].set_ylabel("output")
    grid[1, 0].set_ylabel("client")
    bar = figure.colorbar(image, cax=grid[0, -1].inset_axes((0, 0, 0.15, 1)))
    bar.set_label("clients that train the weight", labelpad=8)
    bar.set_ticks(_integer_ticks(norm.N - 2))
    bar.ax.minorticks_off()
    grid[1, -1].legend(handles=_width_legend(layer), title="client's width", loc="upper left", borderaxespad=0)
    size = f"{counted(layer.outputs, 'output')} x {counted(layer.inputs, 'input')}"
    figure.suptitle(f"{layer.name}: {size}\n{title}", fontsize=11)
    return figure


def draw_overview(layers: Sequence[LayerMap], title: str) -> Figure:
    """Contributors of every weight matrix in an average round, on one scale."""
    columns = min(len(layers), max(3, math.ceil(math.sqrt(1.4 * len(layers)))))
    rows = math.ceil(len(layers) / columns)
    figure = Figure(figsize=(max(7.5, 2.1 * columns + 1.4), 2.15 * rows + 1.7), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    most = max(1.0, *(float(layer.mean.max()) for layer in layers))
    colours = colormaps["YlGnBu"].with_extremes(under=NOBODY)
    for axes, layer in zip(panels, layers, strict=False):
        image = _show(axes, _averaged(layer.mean, MOST_POINTS), layer, cmap=colours, vmin=1e-9, vmax=most)
        axes.set_title(layer.name, fontsize=8.5)
        axes.set_xlabel(counted(layer.inputs, "input"), fontsize=8)
        axes.set_ylabel(counted(layer.outputs, "output"), fontsize=8)
        axes.set(xticks=[], yticks=[])
    for axes in panels[len(layers) :]:
        axes.set_axis_off()
    figure.colorbar(
        image, ax=list(panels), label="clients per round that train the weight, on average", pad=0.02, aspect=35
    )
    figure.suptitle(f"{title}: mean of {counted(layers[0].rounds, 'round')}", fontsize=11)
    reading = (
        "How to read it: one panel per weight matrix, a row per output and a column per input. The darker a weight, "
        "the more clients train it; grey is never trained. A panel of one colour is trained evenly. Points of matrices "
        f"with more than {MOST_POINTS} rows or columns are means of neighbours."
    )
    _caption(figure, reading)
    return figure


def fewest(counts: np.ndarray, most: int) -> np.ndarray:
    """A matrix of contributors with at most `most` points a side; a point shows the fewest of its weights.

    The fewest, because a weight with a single contributor is what one looks for, and a mean or every n-th weight would
    hide it. For the same reason one goes before none: nobody's update is revealed where nobody trains.
    """
    swapped = np.where(counts < 2, 1 - counts.astype(np.int64), counts)
    shrunk = _shrunk(swapped, most, np.minimum)
    return np.where(shrunk < 2, 1 - shrunk, shrunk)


def _averaged(values: np.ndarray, most: int) -> np.ndarray:
    """The same for the overview: means, so that large matrices compare with small ones."""
    return _shrunk(values, most, np.add) / _shrunk(np.ones_like(values), most, np.add)


def _shrunk(matrix: np.ndarray, most: int, join: np.ufunc) -> np.ndarray:
    """Joins equal blocks, such that at most `most` of them are left a side."""
    for axis in (0, 1):
        step = _step(matrix.shape[axis], most)
        matrix = join.reduceat(matrix, np.arange(0, matrix.shape[axis], step), axis=axis)
    return matrix


def _step(length: int, most: int) -> int:
    return -(-length // most)


def _show(axes: Axes, matrix: np.ndarray, layer: LayerMap, **colours: Any) -> AxesImage:
    """Heat map whose axes count the layer's outputs and inputs, also where points stand for several."""
    across, down = _step(layer.inputs, MOST_POINTS), _step(layer.outputs, MOST_POINTS)
    extent = (-0.5, matrix.shape[1] * across - 0.5, matrix.shape[0] * down - 0.5, -0.5)
    image = axes.imshow(matrix, aspect="auto", interpolation="nearest", extent=extent, **colours)
    axes.set(xlim=(-0.5, layer.inputs - 0.5), ylim=(layer.outputs - 0.5, -0.5))  # the last point may be cut short
    axes.xaxis.set_major_locator(_ticks(5))
    axes.yaxis.set_major_locator(_ticks(6))
    return image


def _show_channels(axes: Axes, layer: LayerMap, round_: int) -> None:
    """Clients x outputs, in the colour of the client's width."""
    step = _step(layer.outputs, MOST_POINTS)
    shown = _shown_clients(layer, round_)
    channels = layer.channels[round_][shown, ::step]
    widths = _widths(layer)
    image = np.ones((*channels.shape, 4))
    image[channels == ABSENT] = to_rgba("0.9")
    for width, colour in zip(widths, _width_colours(len(widths)), strict=True):
        image[channels == width] = colour
    extent = (-0.5, channels.shape[1] * step - 0.5, len(shown) - 0.5, -0.5)
    axes.imshow(image, aspect="auto", interpolation="nearest", extent=extent)
    axes.set_xlim(-0.5, layer.outputs - 0.5)
    axes.xaxis.set_major_locator(_ticks(5))
    named = range(0, len(shown), _step(len(shown), MOST_CLIENTS_IN_WORDS))
    axes.set_yticks(named, [str(shown[row]) for row in named], fontsize=8)
    axes.hlines(np.arange(1, len(shown)) - 0.5, *extent[:2], color="white", linewidth=min(1, 20 / len(shown)))


def _shown_clients(layer: LayerMap, round_: int) -> np.ndarray:
    """Ids of the clients with a row of their own: all of a few, of many only those in the round."""
    present = (layer.channels[round_] != ABSENT).any(1)
    return np.flatnonzero(present | (len(present) <= MOST_CLIENTS_IN_WORDS))


def _ticks(most: int) -> MaxNLocator:
    return MaxNLocator(most, integer=True, min_n_ticks=1, steps=[1, 2, 4, 5, 8, 10])


def _count_colours(most: int) -> tuple[ListedColormap, BoundaryNorm]:
    """A colour for each number of contributors from 0 to `most`: none and one stand out, more are darker."""
    many = colormaps["YlGnBu"](np.linspace(0.25, 1, max(1, most - 1)))
    colours = [to_rgba(NOBODY), to_rgba(ALONE), *map(tuple, many)][: max(2, most + 1)]
    return ListedColormap(colours), BoundaryNorm(np.arange(len(colours) + 1) - 0.5, len(colours))


def _integer_ticks(most: int) -> list[int]:
    step = max(1, math.ceil(most / 12))
    return sorted({0, 1, *range(step, most + 1, step)})


def _widths(layer: LayerMap) -> list[float]:
    values = np.unique(np.concatenate([channels.ravel() for channels in layer.channels.values()]))
    return [float(value) for value in values[::-1] if value > 0]


def _width_colours(number: int) -> np.ndarray:
    """Dark for the widest; no red, which means a single client."""
    return np.asarray(colormaps["Purples"](np.linspace(1, 0.45, number) if number > 1 else [0.8]))


def _width_legend(layer: LayerMap) -> list[Patch]:
    widths = _widths(layer)
    handles = [
        Patch(color=tuple(colour), label=f"{width:g}")
        for width, colour in zip(widths, _width_colours(len(widths)), strict=True)
    ]
    if any((layer.channels[round_][_shown_clients(layer, round_)] == ABSENT).any() for round_ in layer.channels):
        handles.append(Patch(color="0.9", label="not in the round"))
    return handles


def _reading(layer: LayerMap) -> str:
    text = (
        "How to read it: above, every weight is coloured by the number of clients that train it in that round; red is "
        "one (a sum would be that client's own update), grey is none. Below, a bar marks the outputs that a client "
        "trains."
    )
    steps = [_step(length, MOST_POINTS) for length in (layer.outputs, layer.inputs)]
    if max(steps) > 1:
        text += (
            f" A point above stands for {steps[0]} x {steps[1]} weights and shows the fewest clients among them, one "
            "before none."
        )
    return text + (f" Below, one output in {steps[0]} is shown." if steps[0] > 1 else "")


def _panels(rounds: int, clients: int, caption: str) -> tuple[Figure, np.ndarray]:
    """Two rows of axes, one column per round and one for the keys. Fixed margins: fitting them takes seconds."""
    top, bottom = 3.0, min(max(0.17 * clients, 1.5), 5.0)
    width = 2.75 * rounds + 2.6
    below = 0.75 + 0.16 * len(_wrapped(caption, width))
    height = top + bottom + below + 1.45
    figure = Figure(figsize=(width, height))
    _caption(figure, caption)
    grid = figure.subplots(
        2,
        rounds + 1,
        squeeze=False,
        height_ratios=[top, bottom],
        width_ratios=[*[2.2] * rounds, 1.5],
        gridspec_kw={
            "left": 0.65 / width,
            "right": 1 - 0.1 / width,
            "top": 1 - 0.85 / height,
            "bottom": below / height,
            "hspace": 2 * 0.6 / (top + bottom),
            "wspace": 0.26,
        },
    )
    for axes in grid[:, -1]:
        axes.set_axis_off()
    return figure, grid


def _caption(figure: Figure, text: str) -> None:
    width = figure.get_figwidth()
    figure.supxlabel("\n".join(_wrapped(text, width)), fontsize=9, color="0.25", x=0.15 / width, ha="left")


def _wrapped(text: str, width: float) -> list[str]:
    """Lines of small print in a figure that is `width` inches wide."""
    return textwrap.wrap(text, int(13.5 * width))
