"""The clients behind every coordinate as bit masks, and counts over them: the arithmetic of the plan's audit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import Protocol

import numpy as np
from torch import Tensor

from app.federation.parameters import Block

_HELD = 16
"""Distinct submodels whose indices are held at once; bounds memory where every client has its own."""

Watch = Callable[[int, Block, np.ndarray], None]
"""Called with the 0-based round, a block that is sent, and its coordinates' numbers of contributors (block's shape)."""


class PlannedRound(Protocol):
    """What is read of a round; a `Plan` is one."""

    @property
    def round(self) -> int:
        """0-based round."""

    @property
    def participants(self) -> Sequence[int]:
        """Ids of the clients that take part."""

    def index(self, client: int) -> Tensor:
        """Coordinates of the client's submodel (int64, strictly ascending)."""


class Register:
    """Assigns a bit to each client of the current and the previous round, however many clients there are.

    Attributes:
        words: 64-bit words that hold all bits in use so far, at least 1.
    """

    def __init__(self) -> None:
        self._bits: dict[int, int] = {}
        self._present: tuple[int, ...] = ()
        self.words = 1

    def enter(self, participants: Sequence[int]) -> None:
        """Go to the next round; clients of neither this nor the previous round lose their bit."""
        self._bits = {client: self._bits[client] for client in self._present}
        taken = set(self._bits.values())
        free = (bit for bit in count() if bit not in taken)
        self._bits |= {client: next(free) for client in participants if client not in self._bits}
        self._present = tuple(participants)
        self.words = max([self.words, *(bit // 64 + 1 for bit in self._bits.values())])

    def widened(self, sets: np.ndarray) -> np.ndarray:
        """(words, coordinates) bit masks with room for all bits in use; the same array where there is room."""
        if len(sets) == self.words:
            return sets
        wide = np.zeros((self.words, sets.shape[1]), sets.dtype)  # takes no memory before bits are set in it
        wide[: len(sets)] = sets
        return wide

    def mask(self, clients: Iterable[int]) -> np.ndarray:
        """(words) uint64: the clients' bits."""
        mask = [0] * self.words
        for client in clients:
            mask[self._bits[client] // 64] |= 1 << self._bits[client] % 64
        return np.array(mask, dtype=np.uint64)

    def clients(self, mask: np.ndarray) -> set[int]:
        """The clients whose bits are set in a (words) uint64 mask."""
        words = mask.tolist()
        return {client for client, bit in self._bits.items() if words[bit // 64] >> bit % 64 & 1}


class SetSizes:
    """Sizes of sets of clients, and the clients of small sets.

    Attributes:
        few: clients that were in a set of fewer than `k`.
    """

    def __init__(self, k: int) -> None:
        self._sets = np.zeros(k, dtype=np.int64)
        self._k = k
        self.few: set[int] = set()

    def add(self, sets: np.ndarray, register: Register) -> np.ndarray:
        """Count (words, coordinates) bit masks; returns their sizes (coordinates), uint16."""
        sizes: np.ndarray = np.bitwise_count(sets).sum(0, dtype=np.uint16)
        counts = np.bincount(sizes, minlength=len(self._sets))
        if counts[1 : self._k].any():
            small = (sizes > 0) & (sizes < self._k)
            self.few |= register.clients(np.bitwise_or.reduce(sets[:, small], axis=1))
        counts[: len(self._sets)] += self._sets
        self._sets = counts
        return sizes

    def histogram(self, less: int) -> tuple[int, ...]:
        """Entry n: sets of n clients, up to the largest n that occurs; `less` empty sets are left out."""
        sets = [int(self._sets[0]) - less, *self._sets[1:].tolist()]
        while sets and not sets[-1]:
            sets.pop()
        return tuple(sets)


class LayerTally:
    """Running counts of one layer.

    `sent` (bool, coordinates of the server's vector) is True for coordinates that are uploaded.

    Attributes:
        coordinates: number of its coordinates that are uploaded.
        contributors: sizes of the contributor sets.
        differences: sizes of their changes from one round to the next.
    """

    def __init__(self, blocks: Iterable[Block], sent: np.ndarray, k: int) -> None:
        self._blocks = [block for block in blocks if sent[block.coordinates].any()]
        self._covered = [np.zeros(block.size, dtype=bool) for block in self._blocks]
        self.coordinates = sum(int(sent[block.coordinates].sum()) for block in self._blocks)
        self.contributors, self.differences = SetSizes(k), SetSizes(k)

    @property
    def unsent(self) -> int:
        """Coordinates that are counted as empty sets in every round because they are not uploaded."""
        return sum(block.size for block in self._blocks) - self.coordinates

    @property
    def covered(self) -> int:
        return sum(int(covered.sum()) for covered in self._covered)

    def add(self, sets: np.ndarray, register: Register) -> Iterator[tuple[Block, np.ndarray]]:
        """Count a round; yields every block with its coordinates' numbers of contributors, and must be exhausted.

        `sets` are the contributors (words, coordinates of the server's vector).
        """
        for block, covered in zip(self._blocks, self._covered, strict=True):
            sizes = self.contributors.add(sets[:, block.coordinates], register)
            covered |= sizes > 0
            yield block, sizes

    def add_changes(self, changes: np.ndarray, register: Register) -> None:
        """Count the clients (words, coordinates of the server's vector) that joined or left since the round before."""
        for block in self._blocks:
            self.differences.add(changes[:, block.coordinates], register)


def toggle(sets: np.ndarray, plan: PlannedRound, register: Register, sent: np.ndarray) -> None:
    """Flip the bits of a round's contributors in (words, coordinates) uint64 masks, where coordinates are uploaded.

    Sets of no clients become those of the round; those of another round become the changes between the two.
    """
    everything = sent.all()
    for index, clients in _submodels(plan):
        if (index[1:] <= index[:-1]).any():
            raise ValueError(f"the weights of client {clients[0]} in round {plan.round} are not strictly ascending")
        chosen = index if everything else index[sent[index]]
        for word, bits in zip(sets, register.mask(clients), strict=True):
            if bits and len(chosen) == len(word):
                word ^= bits
            elif bits:
                word[chosen] ^= bits


def _submodels(plan: PlannedRound) -> Iterator[tuple[np.ndarray, list[int]]]:
    """Indices with the clients that hold them: a plan hands out one tensor for all clients with the same submodel."""
    held: dict[int, tuple[Tensor, list[int]]] = {}
    for client in plan.participants:
        index = plan.index(client)
        if id(index) not in held and len(held) == _HELD:
            yield from ((tensor.cpu().numpy(), clients) for tensor, clients in held.values())
            held.clear()
        held.setdefault(id(index), (index, []))[1].append(client)
    yield from ((tensor.cpu().numpy(), clients) for tensor, clients in held.values())
