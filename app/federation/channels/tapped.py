"""A channel whose results somebody else hears, too: what a server that does not keep to the protocol listens with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from app.federation.channels.base import Aggregate, Channel, Message, Reduce, UncoveredCells, Update
from app.federation.plan import Plan


class TappedChannel(Channel):
    """Another channel; at the end of a round a listener gets what the server gets, before any defense of the server."""

    def __init__(self, channel: Channel, listen: Callable[[Aggregate], None]) -> None:
        """Tap a channel.

        Args:
            channel: what carries the updates.
            listen: called on every process with a copy of the aggregate.
        """
        self._channel, self._listen = channel, listen
        self.form, self.carries = channel.form, channel.carries

    def open(self, plan: Plan, theta: Tensor) -> None:
        """Start a round."""
        self._channel.open(plan, theta)

    def send(self, update: Update) -> Message | None:
        """Carry one update."""
        return self._channel.send(update)

    def close(self, uncovered: UncoveredCells, reduce: Reduce) -> Aggregate:
        """End the round, and tell the listener."""
        aggregate = self._channel.close(uncovered, reduce)
        self._listen(replace(aggregate, mean=aggregate.mean.clone(), weight=aggregate.weight.clone()))
        return aggregate

    def bytes_down(self, client: int, received: Tensor) -> int:
        """Bytes of the model that the server sent to a client."""
        return self._channel.bytes_down(client, received)

    def end(self) -> None:
        """The run is over."""
        self._channel.end()
