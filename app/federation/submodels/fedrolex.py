"""FedRolex: a window of channels that rolls through every layer."""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor

from app.federation.parameters import Axis
from app.federation.submodels.base import ClientRound, SubmodelMethod


class FedRolex(SubmodelMethod):
    """A window of channels that moves forwards by one channel per round and wraps around (Alam et al. 2022).

    The window moves forwards, as the FedRolex paper and the attacks on it define it; FedRolex's own code moves it
    backwards. After as many rounds as a layer has channels, every channel has been trained equally often.
    """

    def channels(self, axis: Axis, keep: int, seat: ClientRound) -> Tensor:
        """Channels round, round + 1, ... round + keep - 1, modulo the width, ascending."""
        return ((torch.arange(keep) + seat.round) % axis.width).sort().values

    def key(self, seat: ClientRound) -> Hashable:
        """All clients of one capacity share a window; the whole network stands still."""
        return (seat.capacity, 0 if seat.capacity == 1 else seat.round)
