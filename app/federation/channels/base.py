"""How updates reach the server. Plain here; masked and encrypted channels replace it by overriding the same methods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from app.federation.execution.distributed import precise
from app.federation.plan import Plan

UncoveredCells = Literal["keep", "zero"]
Form = Literal["plain", "masked", "ciphertext", "opened"]
"""How values travel; `opened` is ciphertext that a client with the private key decrypts for the server."""

Carries = Literal["values", "changes"]
Reduce = Callable[[Tensor], Tensor]
"""Sums a tensor over all processes."""

CACHED = 2**17
"""Coordinates that are added at a time on a CPU, so that what is made of them stays in its cache."""


@dataclass
class Update:
    """A client's update before it is uploaded; defenses edit `vector` in place."""

    client: int
    round: int  # 0-based
    # coordinates of the server's vector that `vector` holds (int64, ascending), without private coordinates
    index: Tensor
    vector: Tensor  # the client's values after local training, parameters first, then buffers
    received: Tensor  # the values the client received, same coordinates
    trainable: int  # how many leading coordinates are parameters; the rest are buffers, which noise must not touch
    samples: int
    lr: float
    loss: float  # mean training loss over the local steps
    received_loss: float  # loss of the received model on the client's training set; NaN unless the server needs it
    weight: float = 1.0
    curvature: float = 0.0  # this client's term of q-FFL's normaliser, 0 elsewhere


@dataclass(frozen=True)
class Message:
    """What the server sees of one update."""

    client: int  # sender
    round: int  # 0-based
    index: Tensor  # coordinates the message is about (public)
    payload: Tensor | None  # the values; None where the server sees only masked values or ciphertext
    form: Form  # how the values travelled
    size: int  # bytes on the wire
    # values and weight, which the server does not see, for participants who may tell it: under encryption whoever holds
    # the private key, under masks the sender; None where nothing is hidden
    opens: Callable[[], tuple[Tensor, float]] | None = None


@dataclass
class Aggregate:
    """The result of a round on the server; server-side defenses edit `mean` in place."""

    # weighted mean of every coordinate (float64); coordinates that no client uploaded are filled according to
    # `uncovered_cells`
    mean: Tensor
    weight: Tensor  # total weight of every coordinate; 0 where no client uploaded it
    curvature: Tensor  # total curvature of every coordinate, over the clients that uploaded it (q-FFL); 0 elsewhere
    updates: int  # number of updates in it


class Channel(ABC):
    """How updates travel from the clients to the server during one round."""

    form: Form = "plain"
    """What travels. Under `ciphertext` the server cannot read the models it hands out either."""

    carries: Carries = "values"
    """Whether the mean is one of the clients' values, or the server's vector plus the mean of their changes."""

    @abstractmethod
    def open(self, plan: Plan, theta: Tensor) -> None:
        """Start a round from the server's vector `theta`."""

    @abstractmethod
    def send(self, update: Update) -> Message | None:
        """Carry one update; returns what the server saw of it, None where it did not arrive."""

    @abstractmethod
    def close(self, uncovered: UncoveredCells, reduce: Reduce) -> Aggregate:
        """End the round: combine what arrived on all processes."""

    def bytes_down(self, client: int, received: Tensor) -> int:
        """Bytes of the model that the server sent to a client."""
        return received.numel() * received.element_size()

    def end(self) -> None:  # noqa: B027  most channels hold nothing
        """Release workers and secrets at the end of the run."""


class PlainChannel(Channel):
    """The server reads every update. Sums are kept in double precision, so the order of updates does not matter."""

    def open(self, plan: Plan, theta: Tensor) -> None:
        wide = precise(theta.device)
        self._theta = theta
        self._total = torch.zeros_like(theta, dtype=wide)
        self._weight = torch.zeros_like(theta, dtype=wide)
        self._curvature = torch.zeros_like(theta, dtype=wide)
        self._weight_everywhere = self._curvature_everywhere = self._updates = 0.0

    def send(self, update: Update) -> Message:
        if update.index.numel() == self._total.numel():
            self._total.add_(update.vector, alpha=update.weight)
            self._weight_everywhere += update.weight
            self._curvature_everywhere += update.curvature
        else:
            together = CACHED if update.vector.device.type == "cpu" else max(1, update.vector.numel())
            for index, vector in zip(update.index.split(together), update.vector.split(together), strict=True):
                self._add(index, vector.to(self._total.dtype), update)
        self._updates += 1
        size = update.vector.numel() * update.vector.element_size()
        return Message(update.client, update.round, update.index, update.vector, "plain", size)

    def _add(self, index: Tensor, values: Tensor, update: Update) -> None:
        self._total.index_add_(0, index, values, alpha=update.weight)
        self._weight.index_add_(0, index, torch.ones_like(values), alpha=update.weight)
        if update.curvature:
            self._curvature.index_add_(0, index, torch.ones_like(values), alpha=update.curvature)

    def close(self, uncovered: UncoveredCells, reduce: Reduce) -> Aggregate:
        curvature = self._curvature + self._curvature_everywhere
        own = torch.tensor([self._updates, float(curvature.any())], dtype=curvature.dtype, device=curvature.device)
        updates, curved = reduce(own).tolist()
        total, weight = reduce(self._total), reduce(self._weight + self._weight_everywhere)
        curvature = reduce(curvature) if curved else curvature
        fill = self._theta.to(total.dtype) if uncovered == "keep" or updates == 0 else torch.zeros_like(total)
        mean = torch.where(weight > 0, total / weight.clamp(min=torch.finfo(weight.dtype).tiny), fill)
        return Aggregate(mean, weight, curvature, int(updates))
