"""The update of some clients, freed from the sum; or one client's upload, where the server reads it anyway."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

ZEROED = 1e-5
"""Cells whose returned value is smaller than this share of the sent one count as zeroed by a defense."""


@dataclass(frozen=True, eq=False)
class IsolatedUpdate:
    """What an attacker takes for the change of the attacked clients, added up.

    Attributes:
        clients: whose change it is, ascending.
        round: 0-based round in which they made it.
        index: cells of the server's vector that it is known for (int64, ascending).
        change: (cells) float64, sum of weight x (returned - sent) over the clients.
        weight: (cells) float64, weights of those of the clients that train the cell, added up.
        sent: (cells) float64, sum of weight x sent over the clients.
        own: cells of the submodel of the widest of the clients (int64, ascending).
        model: what that client was sent, at `own`.
    """

    clients: tuple[int, ...]
    round: int
    index: Tensor
    change: Tensor
    weight: Tensor
    sent: Tensor
    own: Tensor
    model: Tensor

    def without_pull(self, cells: Tensor, pull: float) -> Tensor:
        """Change at some of the cells, in their shape, if `pull` is the share of a value that weight decay took off."""
        places = torch.searchsorted(self.index, cells.reshape(-1))
        change = self.change[places]
        return (change + pull * self.sent[places] if pull else change).view(cells.shape)

    def refilled(self) -> IsolatedUpdate:
        """The same update for an attacker who knows that cells which moved little are zeroed: these did not move."""
        zeroed = (self.change + self.sent).abs() <= ZEROED * self.sent.abs()
        return replace(self, change=torch.where(zeroed, 0.0, self.change))

    def relative_error(self, truth: Tensor, read: Tensor) -> float:
        """Euclidean distance from the clients' true change where it is read, as a share of its length.

        Args:
            truth: (cells of the server's vector) float64, what the clients really did.
            read: (cells of the server's vector) bool.

        Returns:
            0 or more; nan where the clients did nothing at all there.
        """
        cells = read[self.index]
        real = truth[self.index][cells]
        return float((self.change[cells] - real).norm() / real.norm()) if real.any() else float("nan")
