"""Updates as integers with noise: a client's share, of which only the sum over clients is enough.

A client's change over all its coordinates is clipped, rotated block by block (coordinates with the same contributors),
rounded to integers of bounded norm, and gets the client's share of the noise. Blocks are filled up to a power of 2; the
integers of the filling stand behind those of the coordinates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from torch import Tensor

from app.crypto.contributors import Contributors
from app.crypto.fixed_point import FixedPoint, Outside
from app.federation.channels.base import Update
from app.federation.channels.integer_code import IntegerCode, WeightCode
from app.privacy.distributed.discrete_noise import NoiseTable, noise_table
from app.privacy.distributed.rotation import clipped, rotated, rounded, signs, unrotated
from app.privacy.distributed.shared_noise import Block, Grid, SharedNoise
from app.privacy.noise import NoiseStream


@dataclass(frozen=True)
class Randomness:
    """Where the random numbers of a round come from."""

    signs: Callable[[int], bytes]  # public key of the rotation of a block
    noise: Callable[[int], NoiseStream]  # what a client rounds with and makes noise of


@dataclass(frozen=True, eq=False)
class _Part:
    """Where one block lies in a client's vector, or in the sum."""

    block: int
    own: np.ndarray  # positions of its coordinates (int64, ascending)
    all: np.ndarray  # the same, then those of the filling


class NoisyCode(IntegerCode):
    """Encodes the updates of one round with clipping and noise, and decodes their sums."""

    def __init__(
        self,
        contributors: Contributors,
        point: FixedPoint,
        weights: WeightCode,
        theta: Tensor,
        outside: Outside,
        shared: SharedNoise,
        randomness: Randomness,
    ) -> None:
        super().__init__(contributors, point, weights, theta, outside)
        self._shared, self._randomness = shared, randomness
        self._sizes = np.bincount(contributors.block_of, minlength=contributors.blocks)
        counts = contributors.sum_over(dict.fromkeys(contributors.clients, 1.0)).astype(int).tolist()
        #: by number; coordinates that no client trains are in none
        self.blocks: dict[int, Block] = {
            number: shared.block(int(self._sizes[number]), count) for number, count in enumerate(counts) if count
        }
        ends = contributors.coordinates + np.cumsum([self._filling(number) for number in self.blocks])
        self._ends = dict(zip(self.blocks, ends.tolist(), strict=True))
        self.length = int(ends[-1]) if len(ends) else contributors.coordinates
        self._parts: dict[int, list[_Part]] = {}
        self._flips: dict[int, np.ndarray] = {}

    @cached_property
    def grid(self) -> Grid:
        """The integers of the round; a `UserError` where there are too few bits for them."""
        sizes = [sum(self.blocks[int(one)].size for one in np.flatnonzero(held)) for held in self.contributors.holds]
        return self._shared.grid(tuple(self.blocks.values()), max(sizes))

    @cached_property
    def largest_sum(self) -> int:
        widest = max(-self._table(number).lowest if self.grid.variance else 0 for number in self.blocks)
        return len(self.contributors.clients) * (int(self.grid.moved.norm) + 1 + widest)

    @cached_property
    def word(self) -> np.dtype:
        """The narrowest word with the bits of the modulus, which takes the upper ones."""
        return super().word if self._shared.bits is None else np.dtype("<u2" if self._shared.bits <= 16 else "<u4")

    @cached_property
    def block_of(self) -> np.ndarray:
        filling = [np.full(self._filling(number), number) for number in self.blocks]
        return np.concatenate([self.contributors.block_of, *filling])

    def positions(self, client: int) -> np.ndarray:
        submodel = self.contributors.submodel_of[client]
        if submodel not in self._positions:
            filling = [self._filled(int(block)) for block in self.contributors.blocks_of(client)]
            self._positions[submodel] = np.concatenate([self.contributors.submodels[submodel], *filling])
        return self._positions[submodel]

    def needed(self, coordinates: np.ndarray) -> np.ndarray:
        blocks = np.intersect1d(self.contributors.block_of[coordinates], list(self.blocks))
        return np.flatnonzero(np.isin(self.block_of, blocks))

    def encode(self, update: Update) -> np.ndarray:
        """A client's integers (int64) modulo 2^bits, with its share of the noise; see `IntegerCode.encode`."""
        change = clipped(self._change(update), self._shared.clip) * (self.weight(update) * self._weights.unit)
        parts, stream = self._parts_of(update.client), self._randomness.noise(update.client)
        turned = [rotated(change[part.own], self._signs(part.block)) for part in parts]
        integers = rounded(np.concatenate(turned) * self.grid.scale, self.grid.moved.norm, stream)
        self.coded += len(integers)
        if self.grid.variance:
            integers += np.concatenate([self._noise(part, stream) for part in parts])
        values = np.empty_like(integers)
        values[np.concatenate([part.all for part in parts])] = integers
        return self._wrapped(values)

    def _noise(self, part: _Part, stream: NoiseStream) -> np.ndarray:
        return self._table(part.block).draw(stream, len(part.all))

    def restored(self, update: Update, values: np.ndarray) -> Tensor:
        """A client's vector from its integers: with its own noise alone."""
        weight = self.weight(update) * self._weights.unit
        change = self._turned_back(self._unwrapped(values), self._parts_of(update.client), len(update.vector))
        return update.received + self._tensor(change / (weight or 1.0)).to(update.received)

    def impossible(self, sums: np.ndarray, arrived: Mapping[int, int]) -> int:
        """None: sums are taken modulo 2^bits, and every number is possible."""
        return 0

    def unprotected(self, arrived: Iterable[int]) -> int:
        """How many sums some, but too few of their contributors have made noise for."""
        counts = self.contributors.sum_over(dict.fromkeys(arrived, 1.0))
        bare = [number for number, block in self.blocks.items() if 0 < counts[number] < block.least]
        return int(np.isin(self.block_of, bare).sum())

    def _changes(self, sums: np.ndarray) -> np.ndarray:
        everything = np.arange(self.contributors.coordinates)
        changes = self._turned_back(self._unwrapped(sums), self._layout(everything, list(self.blocks)), len(everything))
        return changes / self._weights.unit

    def _turned_back(self, integers: np.ndarray, parts: Iterable[_Part], size: int) -> np.ndarray:
        """(size) float64 changes of the first integers."""
        changes = np.zeros(size)
        for part in parts:
            changes[part.own] = unrotated(integers[part.all], self._signs(part.block), len(part.own))
        return changes / self.grid.scale

    def _parts_of(self, client: int) -> list[_Part]:
        """A client's blocks; clients with the same submodel share one list."""
        submodel = self.contributors.submodel_of[client]
        if submodel not in self._parts:
            index, blocks = self.contributors.submodels[submodel], self.contributors.blocks_of(client).tolist()
            self._parts[submodel] = self._layout(index, blocks)
        return self._parts[submodel]

    def _layout(self, index: np.ndarray, blocks: list[int]) -> list[_Part]:
        """Blocks in a vector of the coordinates `index` and, behind them, the blocks' filling in their order."""
        labels = self.contributors.block_of[index]
        order = np.argsort(labels, kind="stable")
        starts, stops = (np.searchsorted(labels, blocks, side, order) for side in ("left", "right"))
        parts, filled = [], len(index)
        for block, start, stop in zip(blocks, starts, stops, strict=True):
            own, end = order[start:stop], filled + self._filling(block)
            parts.append(_Part(block, own, np.concatenate([own, np.arange(filled, end)])))
            filled = end
        return parts

    def _filling(self, block: int) -> int:
        return self.blocks[block].size - int(self._sizes[block])

    def _filled(self, block: int) -> np.ndarray:
        """Where the filling of a block lies in the sum."""
        return np.arange(self._ends[block] - self._filling(block), self._ends[block])

    def _signs(self, block: int) -> np.ndarray:
        if block not in self._flips:
            self._flips[block] = signs(self._randomness.signs(block), self.blocks[block].size)
        return self._flips[block]

    def _table(self, block: int) -> NoiseTable:
        return noise_table(self._shared.mechanism, self.grid.share(self.blocks[block]))

    def _wrapped(self, values: np.ndarray) -> np.ndarray:
        """Modulo 2^bits around 0, in the upper bits of a word: sums modulo the word are sums modulo 2^bits."""
        if self._shared.bits is None:
            return values
        half = 1 << (self._shared.bits - 1)
        return (((values + half) & (2 * half - 1)) - half) << self._spare

    def _unwrapped(self, sums: np.ndarray) -> np.ndarray:
        return sums if self._shared.bits is None else sums >> self._spare

    @property
    def _spare(self) -> int:
        """Bits of a word below those of the modulus."""
        assert self._shared.bits is not None
        return 8 * self.word.itemsize - self._shared.bits
