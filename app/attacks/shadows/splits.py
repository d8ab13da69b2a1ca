"""Random splits of samples into members and non-members of shadow models."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from app.attacks.models import Ids
from app.common.errors import UserError
from app.common.seeding import numpy_generator
from app.common.wording import counted

PARTS = 4
"""Parts of the attacker's own data; a shadow leaves out at least one of them."""

FEWEST = 4
"""Fewest samples of its own that an attacker needs for shadows."""


@dataclass(frozen=True, eq=False)
class ShadowSplit:
    """Ids that a shadow is trained on, and ids from the same source that it is not trained on; ascending."""

    members: Ids
    nonmembers: Ids


def shared_size(size: int) -> int:
    """The size rounded to a power of 1.25, at most 12 % away: targets of similar size share their shadows."""
    return max(1, round(1.25 ** round(math.log(max(1, size), 1.25))))


def split_out(auxiliary: Ids, size: int, seed: int, number: int) -> ShadowSplit:
    """A random part of the attacker's own data.

    Of `PARTS` consecutive shadows, every sample is left out by at least one, so that a shadow can be attacked itself.
    The training set has the given size, or less where the data without the left-out part are fewer.
    """
    if len(auxiliary) < FEWEST:
        raise UserError.of(
            f"the attacker has {counted(len(auxiliary), 'sample')} of its own",
            "no shadow model can be trained",
            "keep some out of training with --data.holdout.shadow, such as 0.2",
        )
    rest = np.setdiff1d(auxiliary, held_out_part(auxiliary, seed, number))
    members = numpy_generator(seed, "shadow-out", number).permutation(rest)[: max(1, size)]
    return ShadowSplit(np.sort(members), np.setdiff1d(auxiliary, members))


def held_out_part(auxiliary: Ids, seed: int, number: int) -> Ids:
    """The part of the attacker's own data that one shadow always leaves out, ascending."""
    order = numpy_generator(seed, "shadow-parts", number // PARTS).permutation(auxiliary)
    return np.sort(np.array_split(order, PARTS)[number % PARTS])


def split_in_out(audited: Ids, auxiliary: Ids, size: int, seed: int, number: int) -> ShadowSplit:
    """A random half of the audited samples, filled up from the attacker's own data to the size of the training set.

    Shadows come in pairs of complementary halves, so that every sample is in exactly half of an even number of shadows.
    """
    order = numpy_generator(seed, "shadow-in-out", number // 2).permutation(audited)
    half = len(order) // 2
    inside, outside = (order[:half], order[half:]) if number % 2 == 0 else (order[half:], order[:half])
    filling = numpy_generator(seed, "shadow-filling", number).permutation(auxiliary)[: max(0, size - len(inside))]
    return ShadowSplit(np.sort(np.concatenate([inside, filling])), np.sort(outside))
