"""What the encrypted and the masked channel must know of a federation, and how they tell what goes wrong."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from app.crypto.fixed_point import FixedPoint, OutsideRangeError
from app.crypto.messages import Incident
from app.errors import Problem, UserError
from app.federation.channel import Update
from app.federation.composition import stack_traits, weighs_by_loss
from app.federation.integer_code import IntegerCode, WeightCode
from app.federation.parameters import ParameterSpace

if TYPE_CHECKING:
    from app.federation.module import FederatedModule

FINE = 2.0**-16
"""Unit of weights that are no integers."""


def weight_code(federation: FederatedModule, max_weight: float) -> WeightCode:
    """How the weights of a federation's clients travel.

    Args:
        federation: prepared.
        max_weight: largest weight where weights depend on losses; they are secret then.
    """
    sizes = federation.roster.sizes
    if weighs_by_loss(federation):
        return WeightCode(FINE, dict.fromkeys(range(len(sizes)), round(max_weight / FINE)), secret=True)
    bounded = "client-dp" in stack_traits(federation)
    if federation.weighting == "uniform":
        return WeightCode(1.0, dict.fromkeys(range(len(sizes)), 1), inward=bounded)
    if bounded:  # weights are at most 1
        return WeightCode(FINE, dict.fromkeys(range(len(sizes)), round(1 / FINE)), inward=True)
    return WeightCode(1.0, dict(enumerate(sizes)))


def largest_sum(federation: FederatedModule, point: FixedPoint, max_weight: float) -> int:
    """Bound on the sums of any round: the clients with the largest weights take part.

    Args:
        federation: prepared.
        point: precision of a client's change.
        max_weight: largest weight where weights depend on losses.
    """
    weights = sorted(weight_code(federation, max_weight).largest.values(), reverse=True)
    return point.largest * sum(weights[: federation.roster.most])


def channel_problems(defense: str, point: FixedPoint, max_weight: float, attempts: int) -> Iterator[Problem]:
    """What is wrong with settings that both channels have."""
    yield from _point_problems(defense, point)
    if not max_weight > 0:
        remedy = "set --defenses.NAME.max_weight above 0"
        yield Problem(f"max_weight of {defense} is {max_weight:g}", "no client could count", remedy)
    if attempts < 1:
        remedy = "set --defenses.NAME.attempts to 1 or more"
        yield Problem(f"attempts of {defense} is {attempts}", "no message would ever be sent", remedy)


def _point_problems(defense: str, point: FixedPoint) -> Iterator[Problem]:
    if not 8 <= point.bits <= 32:
        consequence = "sums would be useless" if point.bits < 8 else "more digits than a float has would be sent"
        yield Problem(f"bits of {defense} is {point.bits}", consequence, "set --defenses.NAME.bits between 8 and 32")
    if not 0 < point.range < float("inf"):
        remedy = "set --defenses.NAME.range above 0"
        yield Problem(f"range of {defense} is {point.range}", "no change of a parameter would fit", remedy)


def encoded(code: IntegerCode, update: Update, space: ParameterSpace, defense: str) -> np.ndarray:
    """A client's integers.

    Args:
        code: of the round.
        update: what the client sends.
        space: layout of the server's vector.
        defense: what the user calls the defense.

    Raises:
        UserError: where changes or weights do not fit.
    """
    try:
        return code.encode(update)
    except OutsideRangeError as error:
        raise _outside(error, update, space, defense) from error
    except ValueError as error:
        raise UserError.of(
            f"round {update.round + 1}: {error}",
            "sums would come out wrong",
            f"raise --defenses.{defense}.max_weight where weights depend on losses; elsewhere, take out the callback "
            "that changes weights or cells of updates",
        ) from error


def tell_incidents(incidents: Iterable[Incident]) -> None:
    """Warn of what went wrong on the way."""
    for told in dict.fromkeys(map(str, incidents)):
        warnings.warn(told, stacklevel=2)


def _outside(error: OutsideRangeError, update: Update, space: ParameterSpace, defense: str) -> UserError:
    cell = int(update.index[int(error.positions[0])])
    layer = next(block.name for block in space.blocks if block.cells.start <= cell < block.cells.stop)
    return UserError.of(
        f"round {update.round + 1}: {len(error.positions)} parameters of client {update.client} changed by up to "
        f"{error.largest:g}, the first of them in {layer}",
        "fixed point does not hold such changes, and sums would come out wrong; the last round's checkpoint is kept",
        f"raise --defenses.{defense}.range (with --defenses.{defense}.bits, to keep the precision), or cut such "
        f"changes with --defenses.{defense}.outside clip",
    )
