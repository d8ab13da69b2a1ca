"""FedRolex: a window of channels that rolls through every layer."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Literal

import torch
from torch import Tensor

from app.federation.parameters import Axis
from app.federation.submodels.base import ClientRound, SubmodelMethod


class FedRolex(SubmodelMethod):
    """A window of channels that moves by one channel per round and wraps around (Alam et al. 2022).

    After as many rounds as a layer has channels, every channel has been trained equally often. FedRolex's public code
    also counts, by a misplaced line, later clients of a round more than earlier ones on norms, biases and classifier;
    here all clients count equally, in either direction.

    Args:
        direction: the window moves forwards, as the FedRolex paper and the attacks on it define it (`paper`), or
            backwards, as its public code does (`code`): the same sets of channels, mirrored.
    """

    def __init__(self, direction: Literal["paper", "code"] = "paper") -> None:
        self.direction = direction

    def channels(self, axis: Axis, keep: int, client_round: ClientRound) -> Tensor:
        offset = client_round.round if self.direction == "paper" else -client_round.round
        return ((torch.arange(keep) + offset) % axis.width).sort().values

    def key(self, client_round: ClientRound) -> Hashable:
        return (client_round.capacity, 0 if client_round.capacity == 1 else client_round.round)
