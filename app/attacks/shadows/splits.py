"""Which samples a shadow is trained on: pure, seeded functions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from app.attacks.responses import Ids
from app.errors import UserError
from app.seeding import numpy_generator

PARTS = 4
"""The attacker's own data are cut into so many parts; a shadow leaves out one of them at least."""

FEWEST = 4
"""Fewest samples of the attacker's own from which shadows can be drawn."""

STEP = 1.25
"""Targets whose training sets differ by less than about this factor share their shadows."""


@dataclass(frozen=True, eq=False)
class ShadowSplit:
    """Training set of one shadow.

    Attributes:
        members: ids it is trained on, ascending.
        nonmembers: ids from the same source that it is not trained on, ascending.
    """

    members: Ids
    nonmembers: Ids


def shared_size(size: int) -> int:
    """A size that targets of about that size have in common, at most 12 % away from it."""
    return max(1, round(STEP ** round(math.log(max(1, size), STEP))))


def draw_out(auxiliary: Ids, size: int, seed: int, number: int) -> ShadowSplit:
    """A random part of the attacker's own data.

    Of `PARTS` shadows in a row, every sample is left out by one at least, so that a shadow can play the target.

    Args:
        auxiliary: the attacker's own data.
        size: samples wanted; fewer where all but the part that is left out are too few.
        seed: key of the draw.
        number: of the shadow.
    """
    refuse_few(auxiliary)
    left_out = held_out_part(auxiliary, seed, number)
    rest = np.setdiff1d(auxiliary, left_out)
    members = numpy_generator(seed, "shadow-out", number).permutation(rest)[: max(1, size)]
    return ShadowSplit(np.sort(members), np.setdiff1d(auxiliary, members))


def held_out_part(auxiliary: Ids, seed: int, number: int) -> Ids:
    """The part of the attacker's own data that one shadow certainly leaves out, ascending."""
    order = numpy_generator(seed, "shadow-parts", number // PARTS).permutation(auxiliary)
    return np.sort(np.array_split(order, PARTS)[number % PARTS])


def draw_in_out(audited: Ids, auxiliary: Ids, size: int, seed: int, number: int) -> ShadowSplit:
    """A random half of the audited samples, filled up from the attacker's own data to the size of the target.

    Shadows come in pairs: what one leaves out, the next one takes, so that every sample is in exactly half of an even
    number of shadows.

    Args:
        audited: samples whose membership is to be told.
        auxiliary: the attacker's own data.
        size: samples wanted.
        seed: key of the draw.
        number: of the shadow.
    """
    order = numpy_generator(seed, "shadow-in-out", number // 2).permutation(audited)
    half = len(order) // 2
    inside, outside = (order[:half], order[half:]) if number % 2 == 0 else (order[half:], order[:half])
    filling = numpy_generator(seed, "shadow-filling", number).permutation(auxiliary)[: max(0, size - len(inside))]
    return ShadowSplit(np.sort(np.concatenate([inside, filling])), np.sort(outside))


def refuse_few(auxiliary: Ids) -> None:
    """Raise where the attacker has too little data of its own."""
    if len(auxiliary) < FEWEST:
        raise UserError.of(
            f"the attacker has {len(auxiliary)} samples of its own",
            "no shadow model can be trained",
            "keep some out of training with --data.holdout.shadow, such as 0.2",
        )
