"""Channels around another one: to listen to every aggregate, as a malicious server does, or to send updates more."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from torch import Tensor

from app.federation.channels.base import Aggregate, Channel, Message, Reduce, UncoveredCells, Update
from app.federation.plan import Plan


class TappedChannel(Channel):
    """Passes everything on to another channel, and every round's aggregate to a listener.

    `listen` is called on every process with a copy of the aggregate, before any server-side defense edits it.
    """

    def __init__(self, channel: Channel, listen: Callable[[Aggregate], None]) -> None:
        self._channel, self._listen = channel, listen
        self.form, self.carries = channel.form, channel.carries

    def open(self, plan: Plan, theta: Tensor) -> None:
        self._channel.open(plan, theta)

    def send(self, update: Update) -> Message | None:
        return self._channel.send(update)

    def close(self, uncovered: UncoveredCells, reduce: Reduce) -> Aggregate:
        aggregate = self._channel.close(uncovered, reduce)
        self._listen(replace(aggregate, mean=aggregate.mean.clone(), weight=aggregate.weight.clone()))
        return aggregate

    def bytes_down(self, client: int, received: Tensor) -> int:
        return self._channel.bytes_down(client, received)

    def end(self) -> None:
        self._channel.end()


class InsertingChannel(TappedChannel):
    """Passes everything on to another channel, and sends further updates before a round is closed."""

    def __init__(self, channel: Channel, updates: Callable[[], Iterable[Update]]) -> None:
        super().__init__(channel, lambda aggregate: None)
        self._updates = updates

    def close(self, uncovered: UncoveredCells, reduce: Reduce) -> Aggregate:
        for update in self._updates():
            self._channel.send(update)
        return self._channel.close(uncovered, reduce)
