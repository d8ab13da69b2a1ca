"""The first channels of every layer."""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor

from app.federation.parameters import Axis
from app.federation.submodels.base import ClientRound, SubmodelMethod


class Prefix(SubmodelMethod):
    """The first channels of every layer: HeteroFL, OFM in the taxonomy; with capacity 1 everywhere, FedAvg."""

    def channels(self, axis: Axis, keep: int, client_round: ClientRound) -> Tensor:
        return torch.arange(keep)

    def key(self, client_round: ClientRound) -> Hashable:
        return self.rate(client_round)
