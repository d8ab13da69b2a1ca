"""Against noise that is drawn anew in every round: the mean over the rounds has less of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import torch

from app.attacks.adaptive.base import Adaptation, ObservedModel
from app.attacks.models import TargetKind
from app.privacy.traits import Trait


class Averaging(Adaptation):
    """A model is taken for the mean of all its sightings so far, each counting once.

    The mean is taken coordinate by coordinate of the server's vector, over the rounds in which the coordinate arrived,
    since a client's submodel may change from round to round.
    """

    name = "averaged"
    what = "models are averaged over the rounds that were kept"
    called_by: ClassVar[Mapping[TargetKind, frozenset[Trait]]] = {
        "uploads": frozenset({"own-noise", "partial-noise", "sample-dp"}),
        "global": frozenset({"server-noise"}),
    }
    needs_rounds = 2

    def applied(self, observations: Sequence[ObservedModel]) -> list[ObservedModel]:
        """The running mean, in the coordinates of the round it belongs to."""
        return list(_running_means(observations))


def _running_means(observations: Sequence[ObservedModel]) -> Iterator[ObservedModel]:
    coordinates = 1 + max((int(observed.index.max()) for observed in observations), default=0)
    total, times = (torch.zeros(coordinates, dtype=torch.float64) for _ in range(2))
    for observed in observations:
        index, arrived = observed.index, observed.arrived
        total[index[arrived]] += observed.sent[arrived].double()
        times[index[arrived]] += 1
        mean = (total[index] / times[index].clamp(min=1)).to(observed.sent.dtype)
        yield replace(observed, sent=torch.where(times[index] > 0, mean, observed.sent))
