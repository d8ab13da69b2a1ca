"""Images from the update of a dense first layer: the weight gradient of a neuron is its bias gradient x the input."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.optim import SGD

from app.attacks.reconstruction.active.observations import IsolatedUpdate
from app.attacks.reconstruction.active.trap_weights import Calibration, TrapWeights
from app.attacks.reconstruction.base import Candidates, to_pixels
from app.federation.local_training import LocalTraining
from app.federation.parameters import Block, ParameterSpace
from app.models.base import DataShape
from datamodules.store import ImageStore

OFF_SCALE = 0.02
"""Largest excess of a pixel over 0..1; beyond it, an image is a mixture with negative weights."""

QUIET = 1e-3
"""Neurons that moved by less than this share of the largest moves are dominated by other clients."""

NOTHING_LEFT = 1e-9
"""Share of an image's squared norm below which its residual counts as 0."""


def purity(images: Tensor, moved: Tensor, count: int) -> Tensor:
    """(n,) confidence that each candidate is a single image: corners first, in the order in which they are found.

    Args:
        images: (n, channels, height, width) on the pixel scale.
        moved: (n,) absolute bias change of the neuron of each.
        count: number of images that the attacked clients have.
    """
    outside = (images.clamp(0, 1) - images).abs().flatten(1)
    confidence = -outside.mean(dim=1)
    if not len(images):
        return confidence
    largest = moved.sort(descending=True).values[: max(1, len(moved) // 20)].median()
    usable = (outside.amax(dim=1) <= OFF_SCALE) & (moved >= QUIET * largest)
    for place, corner in enumerate(corners(images.flatten(1)[usable], count).tolist()):
        confidence[torch.nonzero(usable)[corner]] = 1 + 1 / (1 + place)
    return confidence


def corners(points: Tensor, count: int) -> Tensor:
    """Positions of at most `count` vertices of the hull of (n, values) points (successive projection algorithm)."""
    residuals, lengths = points.double().clone(), points.double().square().sum(dim=1)
    chosen: list[int] = []
    while len(chosen) < min(count, len(points)):
        remaining = residuals.square().sum(dim=1)
        longest = int(remaining.argmax())
        if remaining[longest] <= NOTHING_LEFT * lengths[longest]:
            break
        chosen.append(longest)
        direction = residuals[longest] / residuals[longest].norm()
        residuals = residuals - (residuals @ direction)[:, None] * direction
    return torch.tensor(chosen, dtype=torch.long)


Decay = Literal["corrected", "ignored"]

MOST_STEPS = 10_000
"""Largest number of steps that are simulated; after so many, no image can be read."""

LEAST_BIAS = 1e-9
"""Rows whose bias moved by less than this share of the largest move hold rounding errors only."""


@dataclass(frozen=True)
class LinearTraining:
    """Public settings of local training by SGD.

    Attributes:
        lr: learning rate of the round.
        steps: local steps of the round.
        shrinkage: share of a weight that weight decay removes in the round, for weights that hardly move.
    """

    lr: float
    steps: int
    shrinkage: float = 0.0

    @classmethod
    def of(cls, local: LocalTraining, lr: float, samples: int) -> LinearTraining | str:
        """Training of a client with so many samples, or why its update is not proportional to gradients."""
        if local.scaffold:
            return "clients correct their steps by control variates (SCAFFOLD), which the attack does not undo"
        value = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
        optimizer = local.build_optimizer([value], lr)
        if not isinstance(optimizer, SGD):
            name = type(optimizer).__name__
            return f"clients train with {name}, whose steps tell little more than the signs of the gradient"
        steps = local.steps if local.steps is not None else local.epochs * local.steps_per_epoch(samples)
        for _ in range(min(steps, MOST_STEPS)):  # simulated, so that decay and momentum interact as in the optimiser
            value.grad = torch.zeros_like(value)
            optimizer.step()
        return cls(lr, steps, 1 - float(value.detach()))


@dataclass(frozen=True)
class DenseLayer:
    """A dense first layer that reads the image: weights (rows, inputs) and biases (rows)."""

    weight: Block
    bias: Block

    @property
    def rows(self) -> int:
        return self.weight.shape[0]

    @property
    def inputs(self) -> int:
        return self.weight.shape[1]

    def coordinates(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Coordinates of the server's vector: (rows, inputs) of the weights, (rows) of the biases."""
        weights = self.weight.start + rows[:, None] * self.inputs + torch.arange(self.inputs)
        return weights, self.bias.start + rows

    def rows_in(self, index: Tensor) -> Tensor:
        """Rows (int64, ascending) all of whose coordinates are in the index (int64, ascending)."""
        weights, biases = (index[_held(index, block)] - block.start for block in (self.weight, self.bias))
        counts = torch.bincount(weights // self.inputs, minlength=self.rows)
        biased = torch.bincount(biases, minlength=self.rows) > 0
        return torch.nonzero(biased & (counts == self.inputs)).flatten()


def first_dense(space: ParameterSpace, shape: DataShape) -> DenseLayer | str:
    """The first layer of a network if images can be read from it, else why not."""
    first = space.blocks[0]
    if len(first.shape) != 2 or first.shape[1] != shape.channels * shape.height * shape.width:
        return "the first layer is not dense: no neuron sees the whole image (gradient matching needs no dense layer)"
    name = first.name.rpartition(".")[0] + ".bias"
    bias = next((block for block in space.blocks if block.name == name), None)
    if bias is None:
        return "the first layer has no bias: the image is known up to a factor only, and rows cannot be told apart"
    return DenseLayer(first, bias)


def with_trap_weights(
    layer: DenseLayer,
    space: ParameterSpace,
    traps: TrapWeights,
    index: Tensor,
    theta: Tensor,
    draw: torch.Generator,
    calibration: Calibration | None = None,
) -> Tensor:
    """A client's submodel with trap weights in the first layer and the later layers that the traps ask for.

    Args:
        index: coordinates of the client (int64, ascending).
        theta: the server's vector, for coordinates that are kept.
        draw: generator of the weights; in the same state for all clients that are to get the same model.
        calibration: images that biases are fitted to; None for drawn biases.
    """
    vector, rows = theta[index].clone(), layer.rows_in(index)
    weights, biases = layer.coordinates(rows)
    matrix = traps.matrix(len(rows), layer.inputs, draw)
    shift = traps.vector(len(rows), draw) if calibration is None else calibration.biases(matrix)
    vector[torch.searchsorted(index, weights.reshape(-1))] = matrix.reshape(-1).to(vector)
    vector[torch.searchsorted(index, biases)] = shift.to(vector)
    for place, shape in _behind(layer, space, index):
        if (values := traps.behind(shape, draw)) is not None:
            vector[place] = values.reshape(-1).to(vector)
    return vector


def _behind(layer: DenseLayer, space: ParameterSpace, index: Tensor) -> Iterator[tuple[slice, tuple[int, ...]]]:
    """Slices of a client's vector that hold the parameters of later layers, with their shapes as matrix or vector."""
    for block in space.blocks:
        if block.name in (layer.weight.name, layer.bias.name) or block.start >= space.trainable:
            continue
        place = _held(index, block)
        coordinates = index[place] - block.start
        rows = len(torch.unique(coordinates // (block.size // block.shape[0])))
        yield place, ((rows, len(coordinates) // rows) if len(block.shape) > 1 else (rows,))


def _held(index: Tensor, block: Block) -> slice:
    """Where the coordinates of a block are in an ascending index."""
    return slice(*torch.searchsorted(index, torch.tensor([block.start, block.start + block.size])).tolist())


def invert(
    layer: DenseLayer,
    update: IsolatedUpdate,
    store: ImageStore,
    training: LinearTraining,
    decay: Decay,
    count: int,
    differences: bool = False,
) -> Candidates:
    """An image for every neuron that moved: the change of its weights over the change of its bias.

    Args:
        store: shape and normalisation of the images; its images are not used.
        decay: subtract the effect of weight decay, or ignore it.
        count: number of images that the attacked clients have.
        differences: read differences of neighbouring neurons instead.
    """
    rows = layer.rows_in(update.index)
    weights, biases = layer.coordinates(rows)
    shrinkage = training.shrinkage if decay == "corrected" else 0.0
    moved, bias_moved = (update.without_decay(coordinates, shrinkage) for coordinates in (weights, biases))
    if differences:
        moved[:-1], bias_moved[:-1] = moved[:-1] - moved[1:], bias_moved[:-1] - bias_moved[1:]
    alive = bias_moved.abs() > LEAST_BIAS * bias_moved.abs().max() if len(rows) else torch.zeros(0, dtype=torch.bool)
    shape = store.shape
    ratios = (moved[alive] / bias_moved[alive, None]).view(-1, shape.channels, shape.height, shape.width)
    finite = torch.isfinite(ratios).flatten(1).all(dim=1)
    images = to_pixels(store, ratios[finite])
    return Candidates(images, purity(images, bias_moved[alive][finite].abs(), count))
