"""Who masks with whom, and who holds whose shares: a sparse graph in place of all pairs (SecAgg+, Bell et al. 2020)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from random import Random

import numpy as np

from app.crypto.contributors import Contributors
from app.crypto.secure_aggregation.parameters import GraphParameters, GraphSettings

MOST_RINGS = 32
"""Different sets of contributors in a round, beyond which all pairs of clients mask."""


@dataclass(frozen=True)
class Ring:
    """Clients in random order; each is joined to the `half` that follow it and the `half` before it."""

    clients: tuple[int, ...]
    half: int  # half of the degree; for a complete graph, half of the clients
    gap: int  # most drop-outs that are accepted among `half` clients in a row

    @classmethod
    def of(cls, clients: tuple[int, ...], parameters: GraphParameters | None) -> Ring:
        """The ring of these clients, in this order; complete without parameters."""
        if parameters is None:
            return cls(clients, len(clients) // 2, len(clients))
        return cls(clients, parameters.degree // 2, parameters.gap)

    @property
    def degree(self) -> int:
        """Neighbours of a client."""
        return min(2 * self.half, len(self.clients) - 1)

    def edges(self) -> Iterable[tuple[int, int]]:
        """Pairs of neighbours, some in both orders where the graph is complete."""
        for step in range(1, self.half + 1):
            yield from zip(self.clients, self.clients[step:] + self.clients[:step], strict=True)

    def crowded(self, alive: Collection[int]) -> bool:
        """Whether more than `gap` of `half` clients in a row are gone, so that colluders could cut the ring there."""
        gone = np.array([client not in alive for client in self.clients], dtype=np.int64)
        total = np.cumsum(np.concatenate([[0], gone, gone[: self.half]]))
        return bool((total[self.half :] - total[: -self.half]).max(initial=0) > self.gap) if self.half else False


@dataclass(frozen=True)
class NeighbourGraph:
    """The graph of one round. All clients compute it themselves, from public randomness and the public plan.

    Shares go around one ring of all clients. Masks go around a ring of every set of clients that contribute to the same
    weights, so that the sum of each weight is masked by a connected graph of its own contributors.
    """

    shares: Ring
    masks: tuple[Ring, ...]
    threshold: int  # shares of a client and its neighbours that restore one of its secrets

    @classmethod
    def of(cls, contributors: Contributors, settings: GraphSettings, randomness: bytes) -> NeighbourGraph | None:
        """The graph of a round's contributors from 32 random bytes; None where all pairs of clients mask."""
        clients = contributors.clients
        parameters = settings.sparse(len(clients))
        if parameters is None:
            return None
        order = list(clients)
        Random(randomness).shuffle(order)
        held = np.unique(contributors.holds, axis=1).T
        if len(held) > MOST_RINGS:
            return None
        sets = [tuple(one for one in order if holds[contributors.submodel_of[one]]) for holds in held]
        rings = tuple(Ring.of(members, settings.parameters(len(members))) for members in sets if members)
        return cls(Ring.of(tuple(order), parameters), rings, parameters.threshold)

    @cached_property
    def points(self) -> Mapping[int, Mapping[int, int]]:
        """The point 1, 2, ... of every holder of a client's shares, which are its neighbours and itself, by client."""
        holders = _adjacent([self.shares])
        return {
            client: {holder: place for place, holder in enumerate(sorted([*others, client]), start=1)}
            for client, others in holders.items()
        }

    @cached_property
    def partners(self) -> Mapping[int, frozenset[int]]:
        """With whom every client masks."""
        return {client: frozenset(others) for client, others in _adjacent(self.masks).items()}

    def crowded(self, alive: Collection[int]) -> bool:
        """Whether so many clients are gone in one place that the sum over those left could come apart."""
        present = frozenset(alive)
        return any(ring.crowded(present) for ring in self.masks)


def _adjacent(rings: Iterable[Ring]) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for ring in rings:
        for client in ring.clients:
            found.setdefault(client, set())
        for one, other in ring.edges():
            if one != other:
                found[one].add(other)
                found[other].add(one)
    return found
