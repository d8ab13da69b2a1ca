"""Which value goes into which ciphertext: coordinates with the same contributors share ciphertexts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Arrangement:
    """Fixed places for the integers of a round, the same for all clients, so that ciphertexts can be added.

    A client sends the ciphertexts that hold one of its values; the other slots of these hold 0.

    Attributes:
        slots: values per ciphertext.
        place: (length) place of every integer; places / slots is the ciphertext.
    """

    slots: int
    place: np.ndarray

    @classmethod
    def of(cls, block_of: np.ndarray, slots: int) -> Arrangement:
        """Put integers of one block next to each other.

        Args:
            block_of: (length) contributor block of every integer.
            slots: values per ciphertext.
        """
        place = np.empty(len(block_of), dtype=np.int64)
        place[np.argsort(block_of, kind="stable")] = np.arange(len(block_of))
        return cls(slots, place)

    def ciphertexts(self, positions: np.ndarray) -> np.ndarray:
        """Ciphertexts (int64, ascending) that hold the integers at some positions."""
        return np.unique(self.place[positions] // self.slots)

    def spread(self, positions: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """A client's ciphertexts and all values in them, one after the other."""
        places = self.place[positions]
        numbers, row = np.unique(places // self.slots, return_inverse=True)
        dense = np.zeros(len(numbers) * self.slots, dtype=np.int64)
        dense[row * self.slots + places % self.slots] = values
        return numbers, dense

    def collect(self, numbers: np.ndarray, dense: np.ndarray) -> np.ndarray:
        """(length) the integers from all values of some ciphertexts; 0 where a ciphertext is missing."""
        rows = -(-len(self.place) // self.slots)
        table = np.zeros((rows, self.slots), dtype=np.int64)
        table[numbers] = dense.reshape(len(numbers), self.slots)
        return table.reshape(-1)[self.place]
