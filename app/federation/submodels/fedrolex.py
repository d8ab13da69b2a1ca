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

    def channels(self, axis: Axis, keep: int, client_round: ClientRound) -> Tensor:
        return ((torch.arange(keep) + client_round.round) % axis.width).sort().values

    def key(self, client_round: ClientRound) -> Hashable:
        return (client_round.capacity, 0 if client_round.capacity == 1 else client_round.round)
