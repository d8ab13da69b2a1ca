"""What the pictures of a plan show, gathered while the plan is audited."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch

from app.federation.audit import layer_of
from app.federation.parameters import Block, ParameterSpace
from app.federation.sent import SentRound

ABSENT = -1.0
"""In place of a width: the client is not in the round."""


@dataclass(eq=False)
class LayerMap:
    """Contributors of one weight matrix (outputs x inputs; the cells of a kernel have the same contributors).

    Attributes:
        name: dotted name of the layer.
        outputs: rows of the matrix.
        inputs: columns of the matrix.
        counts: (outputs, inputs) contributors in each of the shown rounds (0-based).
        summed: (outputs, inputs) contributors summed over all rounds so far.
        rounds: number of rounds so far.
        channels: (clients, outputs) in each of the shown rounds: width rate of a client that trains the output, 0 where
            it trains others, ABSENT where it is not in the round.
    """

    name: str
    outputs: int
    inputs: int
    counts: dict[int, np.ndarray] = field(default_factory=dict)
    summed: np.ndarray = field(init=False)
    rounds: int = 0
    channels: dict[int, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.summed = np.zeros((self.outputs, self.inputs), dtype=np.int64)

    @property
    def mean(self) -> np.ndarray:
        """(outputs, inputs) contributors in an average round."""
        return self.summed / max(1, self.rounds)


class PlanMaps:
    """Gathers the maps of all weight matrices that are sent.

    Attributes:
        layers: one map per layer with a weight matrix, in the order of the network.
    """

    def __init__(self, space: ParameterSpace, clients: int, shown: Collection[int]) -> None:
        """Nothing gathered yet.

        Args:
            space: layout of the server's vector.
            clients: number of clients in the federation.
            shown: rounds (0-based) to be shown one by one.
        """
        self._clients, self._shown = clients, frozenset(shown)
        self._blocks = {block.name: block for block in space.blocks if len(block.axes) == 2}
        self._maps: dict[str, LayerMap] = {}

    @property
    def layers(self) -> list[LayerMap]:
        """The maps so far."""
        return list(self._maps.values())

    def follow(self, plans: Iterable[SentRound]) -> Iterator[SentRound]:
        """The same rounds; notes on the way who trains which output in the rounds that are shown."""
        for plan in plans:
            found = self._channels(plan) if plan.round in self._shown else {}
            yield plan
            for name, channels in found.items():
                if name in self._maps:  # else the layer is not sent
                    self._maps[name].channels[plan.round] = channels

    def watch(self, round_: int, block: Block, counts: np.ndarray) -> None:
        """Take a block's contributors in one round, in the block's shape."""
        if block.name not in self._blocks:
            return
        matrix = counts.reshape(*block.shape[:2], -1)[:, :, 0]
        layer = self._maps.setdefault(block.name, LayerMap(layer_of(block), *matrix.shape))
        layer.summed += matrix
        layer.rounds += 1
        if round_ in self._shown:
            layer.counts[round_] = matrix.copy()

    def _channels(self, plan: SentRound) -> dict[str, np.ndarray]:
        found = {name: np.full((self._clients, block.shape[0]), ABSENT) for name, block in self._blocks.items()}
        for client in plan.participants:
            index, rate = plan.index(client), plan.rate(client)
            for name, block in self._blocks.items():
                ends = block.start + torch.arange(block.shape[0] + 1) * (block.size // block.shape[0])
                trained = torch.searchsorted(index, ends.to(index.device)).diff() > 0
                found[name][client] = rate * trained.cpu().numpy()
        return found
