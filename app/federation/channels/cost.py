"""What a round costs on its way to the server, before anything is trained: bytes from the plan, seconds from samples.

Bytes are those of the run; of secure aggregation, those of a round in which nobody drops out and nothing is sent twice.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from app.crypto.contributors import Contributors
from app.crypto.cost import MaskingCost, OperationCost
from app.crypto.fixed_point import FixedPoint
from app.crypto.paillier.packing import Packing, SlotLayout
from app.crypto.secure_aggregation.graph import NeighbourGraph
from app.crypto.secure_aggregation.parameters import GraphSettings
from app.crypto.secure_aggregation.streams import word_for
from app.federation.channels.encrypted import OVERHEAD
from app.federation.channels.integer_code import IntegerCode, weight_code
from app.federation.plan import Plan
from app.federation.private_coordinates import received_coordinates, uploaded_indices

if TYPE_CHECKING:
    from app.federation.module import FederatedModule


_ALL_PAIRS = GraphSettings("all")

_BLOCKS = 1 << 14
"""Blocks of coordinates that are looked at together; bounds memory."""


@dataclass(frozen=True)
class ChannelCost:
    """Cost of one round over one channel."""

    name: str
    clients: int
    up: int  # bytes that all clients upload
    down: int  # bytes that all clients receive
    client: float = 0.0  # CPU seconds of one client on average, without decryption
    server: float = 0.0  # CPU seconds of the server
    decrypt: float = 0.0  # CPU seconds to decrypt the sum once; 0 where nothing is encrypted
    values: int = 0  # values per ciphertext; 0 where nothing is encrypted
    neighbours: int = 0  # clients with which a client shares its secrets; 0 where nothing is masked

    @property
    def shared_decrypt(self) -> float:
        """Seconds per client where the clients share the work of decryption."""
        return self.decrypt / max(1, self.clients)


class RoundCosts:
    """Costs of one planned round of a prepared federation, over each channel.

    `point` is the precision of a client's change, `max_weight` the largest weight where weights depend on losses.
    """

    def __init__(self, federation: FederatedModule, plan: Plan, point: FixedPoint, max_weight: float) -> None:
        theta = federation.space.read(federation.net)
        contributors = Contributors.of(theta.numel(), uploaded_indices(federation, plan))
        self._code = IntegerCode(contributors, point, weight_code(federation, max_weight), theta, "refuse")
        self._clients = contributors.clients
        coordinates = sum(plan.index(client).numel() for client in self._clients)
        self._down = coordinates * theta.element_size() * (1 + federation.local.scaffold)  # and the control variate
        self._element = theta.element_size()
        keys = Counter(plan.key(client) for client in self._clients)
        one = {plan.key(client): client for client in self._clients}
        self._received = [(received_coordinates(federation, plan, one[key]), times) for key, times in keys.items()]

    def plain(self) -> ChannelCost:
        up = sum(len(self._code.contributors.index(client)) for client in self._clients) * self._element
        return ChannelCost("plain", len(self._clients), up, self._down)

    def masked(self, cost: MaskingCost, settings: GraphSettings = _ALL_PAIRS) -> ChannelCost:
        """Cost of secure aggregation without dropouts."""
        clients = len(self._clients)
        # all graphs of a plan are alike but for the order of the clients, which only the run's randomness gives
        graph = NeighbourGraph.of(self._code.contributors, settings, bytes(32))
        words = self._words_of_masks(graph)
        size = word_for(self._code.largest_sum).itemsize
        sent = sum(len(self._code.positions(client)) for client in self._clients)
        pairs = clients * (clients - 1) if graph is None else sum(len(held) - 1 for held in graph.points.values())
        up = sent * size + round(clients * cost.client_bytes + pairs * cost.pair_bytes)
        seconds = (words * cost.word + pairs * cost.pair) / max(1, clients)
        neighbours = clients - 1 if graph is None else graph.shares.degree
        return ChannelCost(
            "secure aggregation", clients, up, self._down, seconds, sent * cost.word, neighbours=neighbours
        )

    def paillier(self, key_length: int, cost: OperationCost) -> ChannelCost:
        """Cost of packed Paillier encryption; `key_length` in bits."""
        packing = Packing.fit(key_length, self._code.largest_sum)
        slot_layout = SlotLayout.of(self._code.block_of, packing.slots)
        numbers: dict[int, np.ndarray] = {}
        for client in self._clients:
            submodel = self._code.contributors.submodel_of[client]
            if submodel not in numbers:
                numbers[submodel] = slot_layout.ciphertexts(self._code.positions(client))
        sent = [len(numbers[self._code.contributors.submodel_of[client]]) for client in self._clients]
        summed = len(np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *numbers.values()])))
        got = sum(len(slot_layout.ciphertexts(coordinates)) * times for coordinates, times in self._received)
        length = key_length // 4
        return ChannelCost(
            name=f"Paillier, {key_length} bits",
            clients=len(sent),
            up=sum(sent) * length + len(sent) * OVERHEAD,
            down=got * length,
            client=sum(sent) * cost.encrypt / max(1, len(sent)),
            server=sum(sent) * cost.add,
            decrypt=summed * cost.decrypt,
            values=packing.slots,
        )

    def _words_of_masks(self, graph: NeighbourGraph | None) -> int:
        """Mask words of all clients: one mask of their own, one for every partner with common weights."""
        contributors = self._code.contributors
        sizes = np.bincount(contributors.block_of, minlength=contributors.blocks).astype(np.float64)
        common = np.zeros((len(contributors.submodels),) * 2)
        for start in range(0, contributors.blocks, _BLOCKS):
            held = contributors.holds[:, start : start + _BLOCKS].astype(np.float64)
            common += (held * sizes[start : start + _BLOCKS]) @ held.T
        if graph is not None:
            of = contributors.submodel_of
            pairs = [(of[one], of[other]) for one in self._clients for other in (one, *graph.partners[one])]
            return round(float(common[tuple(np.array(pairs).T)].sum()))
        members = np.bincount(
            [contributors.submodel_of[client] for client in self._clients], minlength=len(contributors.submodels)
        )
        # a client's masks with the others, and the mask of its own in place of the one with itself
        return round(float(members @ common @ members))
