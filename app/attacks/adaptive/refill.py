"""Against uploads with zeroed coordinates: the server knows what the client was sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import torch

from app.attacks.adaptive.base import Adaptation, Sighting
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

    def applied(self, sightings: Sequence[Sighting]) -> list[Sighting]:
        """Every round by itself."""
        return [_refilled(sighting) for sighting in sightings]


def _refilled(sighting: Sighting) -> Sighting:
    sent = sighting.sent.clone()
    parameters = slice(sighting.trainable)
    sent[parameters] = torch.where(sent[parameters] == 0, sighting.received[parameters], sent[parameters])
    return replace(sighting, sent=sent)
