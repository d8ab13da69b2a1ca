"""Which clients linear combinations of sums can be narrowed down to, in exact arithmetic.

A sum is a row with a 1 for every client in it. A combination of sums isolates a client if the client's unit vector is
in the row space, and narrows down two clients if a vector with two entries is. Fixed weights of clients scale columns,
which changes neither.
"""

from __future__ import annotations

from itertools import combinations
from math import comb

import numpy as np

PRIME = 2**31 - 1
"""Entries are integers modulo this prime, so that products fit into 64 bits. The rank of a matrix of zeros and ones is
never larger modulo a prime than in rational numbers, and smaller only if the prime divides one of its minors: a chance
of about 5e-10 per row."""

MOST_SETS = 3000
"""Sets of three and more clients are tried one by one up to so many: up to three of 25 clients."""


class RowSpaces:
    """Row spaces of many matrices of zeros and ones over the same clients, each in reduced echelon form.

    Adding a row costs (rank x clients) operations per space.
    """

    def __init__(self, spaces: int, clients: int) -> None:
        self._rows = np.zeros((spaces, 1, clients), dtype=np.int64)  # (spaces, depth, clients); unused rows are 0
        self._pivots = np.zeros((spaces, 1), dtype=np.int64)  # (spaces, depth) column of a row's leading 1
        self._sums = np.zeros((spaces, 1, clients), dtype=bool)  # the sums that raised the rank
        self.rank = np.zeros(spaces, dtype=np.int64)

    def add(self, sets: np.ndarray) -> None:
        """Add one row to every space: (spaces, clients) bool, the clients in the sum; none for no sum."""
        rest = sets.astype(np.int64)
        known = np.take_along_axis(rest, self._pivots, 1) * (np.arange(self._rows.shape[1]) < self.rank[:, None])
        rest = (rest - np.einsum("sd,sdc->sc", known, self._rows)) % PRIME
        new = np.flatnonzero(rest.any(axis=1))
        if not len(new):
            return
        if self.rank[new].max() == self._rows.shape[1]:
            self._deepen()
        rest, place = rest[new], self.rank[new]
        pivot = (rest != 0).argmax(axis=1)
        rest = rest * _inverse(np.take_along_axis(rest, pivot[:, None], 1)) % PRIME
        column = np.take_along_axis(self._rows[new], pivot[:, None, None], 2)
        self._rows[new] = (self._rows[new] - column * rest[:, None, :]) % PRIME
        self._rows[new, place], self._pivots[new, place], self._sums[new, place] = rest, pivot, sets[new]
        self.rank[new] += 1

    def isolated(self, k: int) -> np.ndarray:
        """(spaces, clients) bool: clients that some combination of sums narrows down to fewer than `k`, at least 2.

        Exact for one and two clients. For three and more, exact where their sets are at most MOST_SETS, else those
        that a row of the echelon form shows.
        """
        light = np.count_nonzero(self._rows, axis=2) < k
        found: np.ndarray = ((self._rows != 0) & light[:, :, None]).any(axis=1)
        if k > 2:
            columns = self._columns()
            order = columns.argsort(axis=1)
            same = np.diff(np.take_along_axis(columns, order, 1), axis=1) == 0
            pairs = np.pad(same, ((0, 0), (0, 1))) | np.pad(same, ((0, 0), (1, 0)))
            np.put_along_axis(pairs, order, pairs.copy(), 1)
            found |= pairs
        if k > 3 and sum(comb(found.shape[1], size) for size in range(1, k)) <= MOST_SETS:
            found |= np.stack([self._in_small_sets(k, space) for space in range(len(found))])
        return found

    def copy(self) -> RowSpaces:
        other = RowSpaces(0, 0)
        other._rows, other._pivots, other._sums = self._rows.copy(), self._pivots.copy(), self._sums.copy()
        other.rank = self.rank.copy()
        return other

    def _columns(self) -> np.ndarray:
        """(spaces, clients) int64: a fingerprint of every client's column of the matrix's null space, up to scale.

        Columns of zeros are clients that are isolated, and two clients are narrowed down exactly if their columns are
        multiples of each other. Different columns have equal fingerprints with a chance of 2^-62.
        """
        spaces, depth, clients = self._rows.shape
        free = self._rows.copy()
        np.put_along_axis(free, self._pivots[:, :, None], 0, 2)  # leaves the columns that have no pivot
        lead = np.take_along_axis(free, (free != 0).argmax(axis=2)[:, :, None], 2)
        free = free * _inverse(lead) % PRIME
        words = np.random.default_rng(0).integers(1, PRIME, (2, clients))
        high, low = ((free * word % PRIME).sum(axis=2) % PRIME for word in words)
        prints = np.tile((words[0] << 31) | words[1], (spaces, 1))
        used = np.arange(depth) < self.rank[:, None]
        prints[np.nonzero(used)[0], self._pivots[used]] = ((high << 31) | low)[used]
        return prints

    def _in_small_sets(self, k: int, space: int) -> np.ndarray:
        """(clients) bool: clients of the smallest sets of fewer than `k` that a combination of a space's sums is about.

        There is one about clients of a set exactly if the rank falls without their columns.
        """
        clients = self._rows.shape[2]
        found, larger = np.zeros(clients, dtype=bool), set[tuple[int, ...]]()
        for size in range(1, min(k, clients + 1)):
            sets = list(combinations(range(clients), size))
            others = np.ones((len(sets), clients), dtype=bool)
            np.put_along_axis(others, np.array(sets), False, 1)
            without = RowSpaces(len(sets), clients)
            for row in self._sums[space, : self.rank[space]]:
                without.add(row & others)
            smaller, larger = larger, {sets[number] for number in np.flatnonzero(without.rank < self.rank[space])}
            for one in larger:
                if smaller.isdisjoint(combinations(one, size - 1)):
                    found[list(one)] = True
        return found

    def _deepen(self) -> None:
        self._rows, self._sums = (np.concatenate([part, np.zeros_like(part)], 1) for part in (self._rows, self._sums))
        self._pivots = np.concatenate([self._pivots, np.zeros_like(self._pivots)], axis=1)


def _inverse(values: np.ndarray) -> np.ndarray:
    """Inverses modulo the prime, by Fermat's little theorem; 0 for 0."""
    result, power, exponent = np.ones_like(values), values, PRIME - 2
    while exponent:
        if exponent & 1:
            result = result * power % PRIME
        power, exponent = power * power % PRIME, exponent >> 1
    return result
