"""Against noise that is drawn anew in every round: the mean over the rounds has less of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch

from app.attacks.adaptive.base import Adaptation, CalledBy, ObservedModel


class Averaging(Adaptation):
    """Replaces a model by the running mean of its observations.

    The mean is taken coordinate by coordinate of the server's vector, over the rounds in which the coordinate arrived,
    since a client's submodel may change from round to round.
    """

    name = "averaged"
    what = "models are averaged over the rounds that were kept"
    called_by: ClassVar[CalledBy] = {
        "uploads": frozenset({"own-noise", "partial-noise", "sample-dp"}),
        "global": frozenset({"server-noise", "sum-dp"}),
    }
    needs_rounds = 2

    def applied(self, models: Sequence[ObservedModel]) -> list[ObservedModel]:
        coordinates = 1 + max((int(model.index.max()) for model in models), default=0)
        total, times = (torch.zeros(coordinates, dtype=torch.float64) for _ in range(2))
        averaged = []
        for model in models:
            index, arrived = model.index, model.arrived
            total[index[arrived]] += model.after[arrived].double()
            times[index[arrived]] += 1
            mean = (total[index] / times[index].clamp(min=1)).to(model.after.dtype)
            averaged.append(replace(model, after=torch.where(times[index] > 0, mean, model.after)))
        return averaged
