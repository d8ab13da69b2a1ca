"""Number of contributing clients of every coordinate of a plan, and its changes: what secure aggregation can hide.

A pure function of the plan. A sum over a single client is that client's update; two sums over sets that differ by a
single client narrow that client's update down.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from torch import Tensor

from app.federation.parameters import Block, ParameterSpace
from app.federation.plan_audit.contributor_sets import LayerTally, PlannedRound, Register, Watch, toggle


@dataclass(frozen=True)
class LayerAudit:
    """Contributors of one layer's coordinates: weights, biases and buffers together.

    A pair is one coordinate in one round. The contributors of a pair are the clients that train the coordinate in that
    round. Numbers of contributors are 0 for a layer without coordinates.
    """

    name: str  # dotted name of the layer; "total" for all layers together
    coordinates: int  # coordinates that are sent to the server at all
    rounds: int
    contributors: tuple[int, ...]  # entry n is the number of pairs with n contributors; up to the largest n that occurs
    # entry n is the number of pairs, from the second round on, whose contributors differ by n clients (joining plus
    # leaving) from those of the round before; up to the largest n that occurs
    differences: tuple[int, ...]
    covered: int  # coordinates that at least one client trains in at least one round
    alone: tuple[int, ...]  # clients that are the only contributor of some pair, or one of fewer than `k`, ascending
    # clients whose joining or leaving is the only change of some pair, or one of fewer than `k`, ascending
    exposed: tuple[int, ...]

    @property
    def pairs(self) -> int:
        return self.coordinates * self.rounds

    @property
    def nobody(self) -> int:
        return sum(self.contributors[:1])

    @property
    def single(self) -> int:
        return self.below(2)

    @property
    def changed(self) -> int:
        return sum(self.differences[1:])

    @property
    def changed_by_one(self) -> int:
        return self.changes_below(2)

    @property
    def smallest_change(self) -> int | None:
        """Fewest clients by which contributors change where they change at all; None where they never do."""
        return next((size for size, pairs in enumerate(self.differences) if size and pairs), None)

    @property
    def trained(self) -> float:
        """Share of the coordinates that are trained in an average round, in [0, 1]; NaN without coordinates."""
        return 1 - self.nobody / self.pairs if self.pairs else float("nan")

    @property
    def trained_once(self) -> float:
        """Share of the coordinates that are trained in at least one round, in [0, 1]; NaN without coordinates."""
        return self.covered / self.coordinates if self.coordinates else float("nan")

    @property
    def fewest(self) -> int:
        return self._contributors_at(0)

    @property
    def median(self) -> float:
        return (self._contributors_at((self.pairs - 1) // 2) + self._contributors_at(self.pairs // 2)) / 2

    @property
    def most(self) -> int:
        return max(0, len(self.contributors) - 1)

    def below(self, k: int) -> int:
        """Pairs with at least one and fewer than `k` contributors."""
        return sum(self.contributors[1 : max(k, 1)])

    def changes_below(self, k: int) -> int:
        """Pairs whose contributors changed by at least one and fewer than `k` clients."""
        return sum(self.differences[1 : max(k, 1)])

    def _contributors_at(self, position: int) -> int:
        """Contributors of the pair at a 0-based position in ascending order."""
        reached = np.cumsum(self.contributors, dtype=np.int64)
        return int(np.searchsorted(reached, position, side="right")) if self.pairs else 0


@dataclass(frozen=True)
class PlanAudit:
    """Contributors of all coordinates over consecutive rounds."""

    rounds: range  # the rounds, 0-based
    layers: tuple[LayerAudit, ...]  # one entry per layer, in the order of the network

    @property
    def total(self) -> LayerAudit:
        return LayerAudit(
            "total",
            sum(layer.coordinates for layer in self.layers),
            len(self.rounds),
            _summed(layer.contributors for layer in self.layers),
            _summed(layer.differences for layer in self.layers),
            sum(layer.covered for layer in self.layers),
            tuple(sorted({client for layer in self.layers for client in layer.alone})),
            tuple(sorted({client for layer in self.layers for client in layer.exposed})),
        )


def audit(
    plans: Iterable[PlannedRound],
    space: ParameterSpace,
    sent: Tensor | None = None,
    watch: Watch | None = None,
    k: int = 2,
) -> PlanAudit:
    """Count the contributors of every coordinate in every round.

    Memory does not grow with the number of rounds: it is one bit per coordinate and client of two rounds.

    Args:
        plans: at least one round; consecutive rounds, in order.
        space: layout of the server's vector.
        sent: (size) bool, True for coordinates that clients upload; by default all. Private coordinates are left out of
            every number.
        watch: called with every round's counts, for figures.
        k: clients are named where there are fewer than so many of them, at least 2.

    Raises:
        ValueError: without rounds, where rounds are not consecutive, or where an index is not ascending.
    """
    kept = np.ones(space.size, dtype=bool) if sent is None else sent.cpu().numpy()
    tallies = {name: LayerTally(blocks, kept, k) for name, blocks in layers(space).items()}
    rounds: list[int] = []
    register, before = Register(), None
    sets = np.zeros((0, space.size), dtype=np.uint64)
    for plan in plans:
        register.enter(plan.participants)
        sets = register.widened(sets)
        toggle(sets, plan, register, kept)
        if before is not None:  # the sets of the round before have become their changes
            for tally in tallies.values():
                tally.add_changes(sets, register)
            toggle(sets, before, register, kept)
        for tally in tallies.values():
            for block, counts in tally.add(sets, register):
                if watch is not None:
                    watch(plan.round, block, counts.reshape(block.shape))
        rounds.append(plan.round)
        before = plan
    if not rounds or any(after != number + 1 for number, after in pairwise(rounds)):
        raise ValueError(f"an audit needs consecutive rounds, not {rounds}")
    return PlanAudit(
        range(rounds[0], rounds[-1] + 1), tuple(_layer(name, tally, len(rounds)) for name, tally in tallies.items())
    )


def layers(space: ParameterSpace) -> dict[str, list[Block]]:
    """Blocks of every layer by the layer's name."""
    blocks: dict[str, list[Block]] = {}
    for block in space.blocks:
        blocks.setdefault(layer_of(block), []).append(block)
    return blocks


def layer_of(block: Block) -> str:
    """Name of the layer a block belongs to: the block's name without the last part, where it has several."""
    return block.name.rpartition(".")[0] or block.name


def _layer(name: str, tally: LayerTally, rounds: int) -> LayerAudit:
    return LayerAudit(
        name,
        tally.coordinates,
        rounds,
        tally.contributors.histogram(less=tally.unsent * rounds),
        tally.differences.histogram(less=tally.unsent * (rounds - 1)),
        tally.covered,
        tuple(sorted(tally.contributors.few)),
        tuple(sorted(tally.differences.few)),
    )


def _summed(histograms: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    rows = list(histograms)
    return tuple(sum(row[size] for row in rows if size < len(row)) for size in range(max(map(len, rows), default=0)))
