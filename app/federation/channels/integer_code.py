"""Updates as integers and sums of integers as means: what the encrypted and the masked channel share."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from app.common.errors import UserError
from app.crypto.contributors import Contributors
from app.crypto.fixed_point import FixedPoint, Outside, OutsideRangeError
from app.crypto.messages import DeliveryFailure
from app.crypto.secure_aggregation.streams import word_for
from app.federation.channels.base import Aggregate, UncoveredCells, Update
from app.federation.checks.federation import stack_traits, weighs_by_loss
from app.federation.execution.distributed import precise
from app.federation.parameters import ParameterSpace, plain_array

if TYPE_CHECKING:
    from app.federation.module import FederatedModule


@dataclass(frozen=True)
class WeightCode:
    """Weights as integers."""

    unit: float  # weights are rounded to multiples of it; a unit of 1 requires whole numbers
    largest: Mapping[int, int]  # largest weight of every client, in units
    secret: bool = False  # whether only sums of weights may be revealed
    # whether weights and changes are rounded towards 0, so that a bound on a client's influence still holds
    inward: bool = False

    def integer(self, weight: float) -> int:
        """A weight in units, at least 1 unless it is 0; a `ValueError` where a whole number is required."""
        units = weight / self.unit
        if self.unit == 1 and units != round(units):
            raise ValueError(f"weight {weight:g} is no whole number, as weights by samples and equal weights are")
        whole = math.floor(units) if self.inward else round(units)
        return max(whole, 1) if weight > 0 else whole


class IntegerCode:
    """Encodes the updates of one round as integers, and decodes their sums.

    Attributes:
        contributors: which clients contribute to which coordinates.
        length: number of integers that are summed.
        clipped: values of this process's clients that were clipped to the range.
        coded: all values of this process's clients.
    """

    def __init__(
        self, contributors: Contributors, point: FixedPoint, weights: WeightCode, theta: Tensor, outside: Outside
    ) -> None:
        self.contributors = contributors
        self._point, self._weights, self._theta, self._outside = point, weights, theta, outside
        self.length = contributors.coordinates + (2 * contributors.blocks if weights.secret else 0)
        self.clipped = self.coded = 0
        self._positions: dict[int, np.ndarray] = {}

    @cached_property
    def largest_sum(self) -> int:
        """No sum over the clients of the round can exceed it in absolute value."""
        return self._point.largest * sum(self._weights.largest[client] for client in self.contributors.clients)

    @cached_property
    def word(self) -> np.dtype:
        """Unsigned integers that masked sums are taken in."""
        return word_for(self.largest_sum)

    @cached_property
    def block_of(self) -> np.ndarray:
        """(length) contributor block of every integer: of the coordinates, then a weight and a curvature per block."""
        own = np.arange(self.contributors.blocks if self._weights.secret else 0)
        return np.concatenate([self.contributors.block_of, own, own])

    def positions(self, client: int) -> np.ndarray:
        """Where a client's integers belong (int64, ascending); clients with the same submodel share one array."""
        submodel = self.contributors.submodel_of[client]
        if submodel not in self._positions:
            index = self.contributors.submodels[submodel]
            if self._weights.secret:
                weights = self.contributors.coordinates + self.contributors.blocks_of(client)
                index = np.concatenate([index, weights, weights + self.contributors.blocks])
            self._positions[submodel] = index
        return self._positions[submodel]

    def needed(self, coordinates: np.ndarray) -> np.ndarray:
        """Positions of the sums from which the values of some coordinates (int64) are read."""
        return coordinates

    def weight(self, update: Update) -> int:
        """A client's weight in units; a `ValueError` where it exceeds what the sums have room for."""
        weight, most = self._weights.integer(update.weight), self._weights.largest[update.client]
        if not 0 <= weight <= most:
            raise ValueError(
                f"weight {update.weight:g} of client {update.client} is not in 0..{most * self._weights.unit:g}"
            )
        return weight

    def encode(self, update: Update) -> np.ndarray:
        """A client's integers (int64), one for each of its positions.

        Raises `ValueError` where the update has other coordinates than planned, or its weight or curvature is out of
        bounds, and `OutsideRangeError` where changes are outside the range.
        """
        change = self._change(update)
        weight = self.weight(update)
        values = self._point.quantise(change, self._outside, self._weights.inward)
        self.coded += len(values)
        if self._outside == "clip":
            largest = (self._point.largest + (1 if self._weights.inward else 0.5)) * self._point.step
            self.clipped += int(np.count_nonzero(np.abs(change) >= largest))
        if weight != 1:
            values *= weight
        if not self._weights.secret:
            return values
        curvature = self._curvature(update)
        blocks = len(self.contributors.blocks_of(update.client))
        return np.concatenate([values, np.full(blocks, weight), np.full(blocks, curvature)])

    def _change(self, update: Update) -> np.ndarray:
        """A client's change (float64); a `ValueError` where it is one of other coordinates than planned."""
        index = self.contributors.index(update.client)
        if update.index.numel() != len(index) or not np.array_equal(update.index.cpu().numpy(), index):
            raise ValueError(f"client {update.client} sends other weights than planned")
        return np.subtract(plain_array(update.vector), plain_array(update.received), dtype=np.float64)

    def restored(self, update: Update, values: np.ndarray) -> Tensor:
        """A client's vector from its integers, as a reader of its upload alone can compute it."""
        change = self._point.restore(values[: len(update.vector)] / max(1, self.weight(update)))
        return update.received + torch.from_numpy(change).to(update.received)

    def opened(self, update: Update, values: np.ndarray) -> tuple[Tensor, float]:
        """A client's vector from its integers, and its weight as it is in the sum."""
        return self.restored(update, values), self.weight(update) * self._weights.unit

    def _curvature(self, update: Update) -> int:
        curvature = self._weights.integer(update.curvature)
        most = self._point.largest * self._weights.largest[update.client]
        if not 0 <= curvature <= most:
            raise ValueError(f"curvature {update.curvature:g} of client {update.client} is too large for fixed point")
        return curvature

    def impossible(self, sums: np.ndarray, arrived: Mapping[int, int]) -> int:
        """How many sums (length) are larger than the values of the clients that arrived, with their weights, can be."""
        weights = {client: self._weights.largest[client] for client in arrived} if self._weights.secret else arrived
        largest = self._point.largest * self.contributors.sum_over(weights)
        return int((np.abs(sums) > largest[self.block_of]).sum())

    def unprotected(self, arrived: Iterable[int]) -> int:
        """How many sums over the clients that arrived have less noise than they need, so that none may be read."""
        return 0

    def decode(self, sums: np.ndarray, arrived: Mapping[int, int], uncovered: UncoveredCells) -> Aggregate:
        """The mean of every coordinate, from the sums (length) and the weights in units of the clients in them."""
        coordinates, blocks = self.contributors.coordinates, self.contributors.blocks
        weights, curvatures = self.contributors.sum_over(arrived), np.zeros(blocks)
        if self._weights.secret:
            weights, curvatures = np.split(sums[coordinates:], 2)
        block_of = torch.from_numpy(self.contributors.block_of).to(self._theta.device)
        weight, curvature = self._tensor(weights)[block_of], self._tensor(curvatures)[block_of]
        change = self._tensor(self._changes(sums)) / weight.clamp(min=1)
        theta = self._theta.to(weight.dtype)
        fill = theta if uncovered == "keep" or not arrived else torch.zeros_like(theta)
        mean = torch.where(weight > 0, theta + change, fill)
        return Aggregate(mean, weight * self._weights.unit, curvature * self._weights.unit, len(arrived))

    def _changes(self, sums: np.ndarray) -> np.ndarray:
        """(coordinates) float64: sums of changes times weights in units."""
        return self._point.restore(sums[: self.contributors.coordinates])

    def _tensor(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(values.astype(np.float64)).to(self._theta.device, precise(self._theta.device))


Coding = Callable[[Contributors, FixedPoint, WeightCode, Tensor, Outside], IntegerCode]
"""Makes the code of a round; `FederatedModule.coding` may be replaced by a defense."""

FINE = 2.0**-16
"""Unit of weights that are no integers."""


def weight_code(federation: FederatedModule, max_weight: float) -> WeightCode:
    """How the weights of a prepared federation's clients are encoded.

    `max_weight` is the largest weight where weights depend on losses; such weights are secret.
    """
    sizes = federation.client_pool.sizes
    if weighs_by_loss(federation):
        return WeightCode(FINE, dict.fromkeys(range(len(sizes)), round(max_weight / FINE)), secret=True)
    bounded = bool({"client-dp", "sum-dp"} & stack_traits(federation))
    if federation.weighting == "uniform":
        return WeightCode(1.0, dict.fromkeys(range(len(sizes)), 1), inward=bounded)
    if bounded:  # weights are at most 1
        return WeightCode(FINE, dict.fromkeys(range(len(sizes)), round(1 / FINE)), inward=True)
    return WeightCode(1.0, dict(enumerate(sizes)))


def largest_sum(federation: FederatedModule, point: FixedPoint, max_weight: float) -> int:
    """Bound on the sums of any round: the clients with the largest weights take part."""
    weights = sorted(weight_code(federation, max_weight).largest.values(), reverse=True)
    return point.largest * sum(weights[: federation.client_pool.most])


def encoded(code: IntegerCode, update: Update, space: ParameterSpace, defense: str) -> np.ndarray:
    """A client's integers; raises `UserError`, naming the layer and the option, where changes or weights do not fit."""
    try:
        return code.encode(update)
    except OutsideRangeError as error:
        raise _outside(error, update, space, defense) from error
    except ValueError as error:
        raise UserError.of(
            f"round {update.round + 1}: {error}",
            "sums would come out wrong",
            f"raise --defenses.{defense}.max_weight where weights depend on losses; elsewhere, take out the callback "
            "that changes weights or weights of updates",
        ) from error


def warn_of_failures(failures: Iterable[DeliveryFailure]) -> None:
    """Warn of messages that were damaged or lost."""
    for failure in dict.fromkeys(map(str, failures)):
        warnings.warn(failure, stacklevel=2)


def _outside(error: OutsideRangeError, update: Update, space: ParameterSpace, defense: str) -> UserError:
    coordinate = int(update.index[int(error.positions[0])])
    layer = next(block.name for block in space.blocks if block.coordinates.start <= coordinate < block.coordinates.stop)
    return UserError.of(
        f"round {update.round + 1}: {len(error.positions)} parameters of client {update.client} changed by up to "
        f"{error.largest:g}, the first of them in {layer}",
        "fixed point does not hold such changes, and sums would come out wrong; the last round's checkpoint is kept",
        f"raise --defenses.{defense}.range (with --defenses.{defense}.bits, to keep the precision), or cut such "
        f"changes with --defenses.{defense}.outside clip",
    )
