"""A server that gives the attacked clients other channels than it announced, so that all of their cells can be read."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator

import torch
from torch import Tensor

from app.errors import Problem
from app.federation.parameters import Axis, ParameterSpace
from app.federation.plan import Plan
from app.federation.submodels import LocalWidths, Seat, SubmodelMethod
from app.models.base import scaled_width


class MovedWindow(SubmodelMethod):
    """Another method, but for one round in which some clients get channels that they did not have before."""

    def __init__(self, method: SubmodelMethod, before: Plan, after: Plan, clients: tuple[int, ...]) -> None:
        """Move the clients' window.

        Args:
            method: what was announced.
            before: the round before, as announced.
            after: the round in which the window is moved, as announced.
            clients: whose window is moved, all of one width.
        """
        self._method, self._before, self._after, self._clients = method, before, after, clients

    def channels(self, axis: Axis, keep: int, seat: Seat) -> Tensor:
        """Channels that the clients did not have before, and that the others keep; the announced ones otherwise."""
        if not self._moves(seat):
            return self._method.channels(axis, keep, seat)
        worse = torch.zeros(axis.width, dtype=torch.long)
        for client in self._clients:
            worse[self._held(self._before, client, axis)] += len(self._after.capacities)
        for client in {*self._before.participants, *self._after.participants} - set(self._clients):
            held = [self._mask(plan, client, axis) for plan in (self._before, self._after)]
            worse[held[0] != held[1]] += 1
        return worse.sort(stable=True).indices[:keep].sort().values

    def inputs(self, axis: Axis, keep: int, seat: Seat) -> Tensor | None:
        """As announced; moved clients read the channels that they write."""
        return None if self._moves(seat) else self._method.inputs(axis, keep, seat)

    def rate(self, seat: Seat) -> float:
        """As announced."""
        return self._method.rate(seat)

    def key(self, seat: Seat) -> Hashable:
        """As announced, but for moved clients, who share a window."""
        return ("moved", self.rate(seat)) if self._moves(seat) else self._method.key(seat)

    def rates(self, capacities: Iterable[float]) -> tuple[float, ...]:
        """As announced."""
        return self._method.rates(capacities)

    @property
    def title(self) -> str:
        """As announced."""
        return self._method.title

    @property
    def local_widths(self) -> LocalWidths | None:
        """As announced."""
        return self._method.local_widths

    def problems(self, space: ParameterSpace, capacities: Iterable[float], clients: int) -> Iterator[Problem]:
        """As announced."""
        return self._method.problems(space, capacities, clients)

    def _moves(self, seat: Seat) -> bool:
        return seat.round == self._after.round and seat.client in self._clients

    def _mask(self, plan: Plan, client: int, axis: Axis) -> Tensor:
        mask = torch.zeros(axis.width, dtype=torch.bool)
        if client in plan.participants:
            mask[self._held(plan, client, axis)] = True
        return mask

    def _held(self, plan: Plan, client: int, axis: Axis) -> Tensor:
        """Channels that a client was to have in a round."""
        if client not in plan.participants:
            return torch.empty(0, dtype=torch.long)
        seat = plan.seat(client)
        return self._method.channels(axis, scaled_width(axis.width, self._method.rate(seat)), seat)
