"""Who trains which coordinates in a round, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from app.common.dealing import deal
from app.common.seeding import derive_bytes, torch_generator
from app.federation.parameters import ParameterSpace
from app.federation.submodels import ClientRound, SubmodelMethod
from app.privacy.noise import NoiseStream

NO_CLIENT = -1
"""Client id that pads the lists of ranks with fewer clients, so that all ranks make the same number of steps."""


ClientSampling = Literal["fixed", "poisson"]
"""Equally many clients in every round, or each client by a coin of its own."""


@dataclass(frozen=True)
class ClientPool:
    """The clients of a federation, as the server knows them."""

    sizes: tuple[int, ...]  # training samples of each client
    capacities: tuple[float, ...]  # width rate that each client can afford, in (0, 1]
    participation: float  # fraction of the clients that take part in a round, in (0, 1]
    seed: int
    redraw: bool = False  # whether the capacities are assigned to the clients anew in every round
    sampling: ClientSampling = "fixed"  # equally many participants in every round, or each client sampled independently
    # newcomers: clients that take part in no round before `joining`, or in none at all
    absent: frozenset[int] = frozenset()
    joining: int | None = None  # 0-based round from which on the absent clients may take part; None: never
    dictionary: float = 1.0  # share of the weight factors, in (0, 1], that clients train before that round

    def participants(self, round_: int) -> tuple[int, ...]:
        """Clients of a round, those with the most samples first."""
        present = set(self.present_in(round_))
        if self.sampling == "poisson":
            stream = NoiseStream(derive_bytes(self.seed, "participation", round_))
            drawn = stream.coins(len(self.sizes), self.participation).nonzero().flatten().tolist()
            chosen = [client for client in drawn if client in present]
        else:
            generator = torch_generator(self.seed, "participation", round_)
            order = torch.randperm(len(self.sizes), generator=generator).tolist()
            chosen = [client for client in order if client in present][: self._taking_part(len(present))]
        return tuple(sorted(chosen, key=lambda client: (-self.sizes[client], client)))

    def joined(self, round_: int) -> bool:
        """Whether newcomers may take part in a round, and the dictionary of weight factors has grown."""
        return self.joining is not None and round_ >= self.joining

    def present_in(self, round_: int) -> tuple[int, ...]:
        """Clients that may take part in a round, ascending."""
        absent = frozenset() if self.joined(round_) else self.absent
        return tuple(client for client in range(len(self.sizes)) if client not in absent)

    @property
    def most(self) -> int:
        """Largest number of clients in a round."""
        clients = len(self.present_in(self.joining or 0))
        return clients if self.sampling == "poisson" else self._taking_part(clients)

    def _taking_part(self, clients: int) -> int:
        return max(1, round(self.participation * clients))

    def capacities_in(self, round_: int) -> tuple[float, ...]:
        if self.dictionary < 1 and not self.joined(round_):
            return (self.dictionary,) * len(self.sizes)
        if not self.redraw:
            return self.capacities
        order = torch.randperm(len(self.sizes), generator=torch_generator(self.seed, "capacities", round_))
        return tuple(self.capacities[place] for place in order.tolist())


class Plan:
    """One round: its participants and their submodels. Public: every adversary may read it.

    Submodels are computed on demand and stored once per distinct submodel, on `device`, so that memory does not grow
    with the number of clients.
    """

    def __init__(
        self,
        round_: int,
        client_pool: ClientPool,
        method: SubmodelMethod,
        space: ParameterSpace,
        device: torch.device | str = "cpu",
        samples_trained: Callable[[int], int] = int,
    ) -> None:
        """Plan a round; `samples_trained` gives the samples that a client of so many goes through in it."""
        self.round = round_
        self._device, self._samples_trained = device, samples_trained
        self.client_pool = client_pool
        self.participants = client_pool.participants(round_)
        self.capacities = client_pool.capacities_in(round_)
        self._method = method
        self._space = space
        self._indices: dict[Hashable, Tensor] = {}

    def client_round(self, client: int) -> ClientRound:
        return ClientRound(self.round, client, self.capacities[client], len(self.capacities), self.client_pool.seed)

    def key(self, client: int) -> Hashable:
        return self._method.key(self.client_round(client))

    def rate(self, client: int) -> float:
        return self._method.rate(self.client_round(client))

    def index(self, client: int) -> Tensor:
        key = self.key(client)
        if key not in self._indices:
            if len(self._indices) >= 64:  # methods with one submodel per client must not fill the memory
                self._indices.clear()
            self._indices[key] = self._method.index(self._space, self.client_round(client)).to(self._device)
        return self._indices[key]

    def cost(self, client: int) -> int:
        """Work of one local training, 1 or more: samples times coordinates of the submodel."""
        return max(1, self._samples_trained(self.client_pool.sizes[client]) * self._space.size_at(self.rate(client)))

    def share(self, rank: int, ranks: int) -> tuple[int, ...]:
        """Clients that one of several processes trains, dealt by their costs, so that all take about equally long.

        Shares are padded with NO_CLIENT to the length of the longest one that is possible in any round.
        """
        longest = max(1, self.client_pool.most - ranks + 1)  # every process has a client before one gets its second
        costs = [self.cost(client) for client in self.participants]
        mine = tuple(self.participants[place] for place in sorted(deal(costs, ranks)[rank]))
        return mine + (NO_CLIENT,) * (longest - len(mine))


class BlockLoader:
    """A dataloader of `length` batches; every iteration asks `make` for the current ones."""

    def __init__(self, make: Callable[[], Iterable[Tensor | list[Tensor]]], length: int) -> None:
        self._make = make
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Tensor | list[Tensor]]:
        yield from self._make()
