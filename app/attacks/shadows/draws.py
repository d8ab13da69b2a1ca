"""Which samples a shadow is trained on: pure, seeded functions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from app.attacks.responses import Ids
from app.errors import UserError
from app.seeding import numpy_generator

MOST = 0.75
"""Largest share of the attacker's own data that one shadow is trained on: the rest are its non-members."""

FEWEST = 4
"""Fewest samples of the attacker's own from which shadows can be drawn."""

STEP = 1.25
"""Targets whose training sets differ by less than about this factor share their shadows."""


@dataclass(frozen=True, eq=False)
class Draw:
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


def draw_out(auxiliary: Ids, size: int, seed: int, number: int) -> Draw:
    """A random part of the attacker's own data.

    Args:
        auxiliary: the attacker's own data.
        size: samples wanted; cut to `MOST` of the data where there are too few.
        seed: key of the draw.
        number: of the shadow.
    """
    refuse_few(auxiliary)
    order = numpy_generator(seed, "shadow-out", number).permutation(auxiliary)
    count = max(1, min(size, math.floor(MOST * len(auxiliary))))
    return Draw(np.sort(order[:count]), np.sort(order[count:]))


def draw_in_out(audited: Ids, auxiliary: Ids, size: int, seed: int, number: int) -> Draw:
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
    return Draw(np.sort(np.concatenate([inside, filling])), np.sort(outside))


def refuse_few(auxiliary: Ids) -> None:
    """Raise where the attacker has too little data of its own."""
    if len(auxiliary) < FEWEST:
        raise UserError.of(
            f"the attacker has {len(auxiliary)} samples of its own",
            "no shadow model can be trained",
            "keep some out of training with --data.holdout.shadow, such as 0.2",
        )
