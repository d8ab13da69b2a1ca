"""Against uploads with zeroed coordinates: the server knows what the client was sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import torch

from app.attacks.adaptive.base import Adaptation, ObservedModel
from app.attacks.models import TargetKind
from app.privacy.traits import Trait


class Refill(Adaptation):
    """Coordinates that arrive as exactly zero take the value that the client had received.

    Where a defense zeroes the coordinates that moved least, these are the coordinates whose received values come
    closest. Buffers are left alone.
    """

    name = "refilled"
    what = "parameters that arrive as zero take the value of the broadcast"
    called_by: ClassVar[Mapping[TargetKind, frozenset[Trait]]] = {"uploads": frozenset({"pruned-uploads"})}

    def applied(self, observations: Sequence[ObservedModel]) -> list[ObservedModel]:
        """Every round by itself."""
        return [_refilled(observed) for observed in observations]


def _refilled(observed: ObservedModel) -> ObservedModel:
    sent = observed.sent.clone()
    parameters = slice(observed.trainable)
    sent[parameters] = torch.where(sent[parameters] == 0, observed.received[parameters], sent[parameters])
    return replace(observed, sent=sent)
