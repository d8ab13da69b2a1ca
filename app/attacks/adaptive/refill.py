"""Against uploads with zeroed coordinates: the server knows what it has sent to the client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch

from app.attacks.adaptive.base import Adaptation, CalledBy, ObservedModel


class Refill(Adaptation):
    """Replaces parameters that arrive as exactly zero by the values that the client had received.

    Where a defense zeroes the parameters that moved least, these are closest to their received values.
    """

    name = "refilled"
    what = "parameters that arrive as zero take the value of the broadcast"
    called_by: ClassVar[CalledBy] = {"uploads": frozenset({"pruned-uploads"})}

    def applied(self, models: Sequence[ObservedModel]) -> list[ObservedModel]:
        return [_refilled(model) for model in models]


def _refilled(model: ObservedModel) -> ObservedModel:
    after = model.after.clone()
    parameters = slice(model.trainable)
    after[parameters] = torch.where(after[parameters] == 0, model.before[parameters], after[parameters])
    return replace(model, after=after)
