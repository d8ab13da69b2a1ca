"""Packing: many signed integers in the slots of one plaintext, so that one ciphertext operation acts on all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from app.common.errors import UserError

CHECK_BITS = 20
"""Bits of the counter above the slots: sums of up to 2^20 - 1 plaintexts."""

SPARE_BITS = 3
"""Plaintexts stay below n / 3 (n has its top bit set): `phe` takes larger ones for negative numbers."""

WIDEST = 63
"""Most bits of a slot: its values are handled as int64."""

_CHUNK = 65_536
"""Values packed at a time, which bounds the memory."""


class CorruptedError(ValueError):
    """Plaintexts (at ascending `positions`) that are no packed sums: a damaged ciphertext, or the wrong key."""

    def __init__(self, positions: tuple[int, ...]) -> None:
        self.positions = positions
        super().__init__(f"{len(positions)} plaintexts are no packed sums, the first at position {positions[0]}")


@dataclass(frozen=True, eq=False)
class Unpacked:
    """Sums and their numbers of contributors."""

    values: np.ndarray  # (count) int64, the sums
    # (plaintexts) int64, how many packed plaintexts were added up in each. A plaintext that was not made by adding
    # packed ones shows any of 2^20 numbers here, if it does not raise `CorruptedError`
    contributors: np.ndarray


@dataclass(frozen=True)
class Packing:
    """Slots of equal width side by side, lowest first, and a counter above them.

    A plaintext is sum_j v_j 2^(j width) + 2^(slots width), with signed v_j as they are. The last term counts the
    contributors once plaintexts are added, and keeps every plaintext positive. Slots borrow from their neighbours where
    values are negative; `unpack` undoes that by adding half the range to every slot of the sum, once.
    """

    width: int  # bits of a slot, in [1, 63]; sums up to 2^(width - 1) - 1 in absolute value fit
    slots: int  # values per plaintext, at least 1

    @classmethod
    def fit(cls, modulus_bits: int, largest_sum: int) -> Packing:
        """The narrowest slots that hold every sum, and as many of them as a plaintext has room for.

        Args:
            modulus_bits: bits of the key's modulus.
            largest_sum: bound on the absolute value of every sum of packed values, at least 0; sums beyond it would
                spill into their neighbours unnoticed.

        Raises:
            UserError: where a slot would be too wide for 64-bit integers or for the key.
        """
        width = largest_sum.bit_length() + 1
        slots = (modulus_bits - SPARE_BITS - CHECK_BITS) // width
        if width > WIDEST or slots < 1:
            room = min(WIDEST, modulus_bits - SPARE_BITS - CHECK_BITS)
            raise UserError.of(
                f"sums up to {largest_sum} need {width} bits, and there is room for {room}",
                "sums would overflow and come out wrong",
                "take fewer bits per value with --defenses.NAME.bits, smaller weights, or a longer "
                "--defenses.NAME.key_length",
            )
        return cls(width, slots)

    @property
    def largest(self) -> int:
        """Largest absolute value of a slot."""
        return 2 ** (self.width - 1) - 1

    def plaintexts(self, count: int) -> int:
        """Number of plaintexts that `count` values need."""
        return -(-count // self.slots)

    def pack(self, values: np.ndarray) -> list[int]:
        """Plaintexts of signed values (at most `largest` in absolute value); the last one is filled up with zeros."""
        if len(values) and max(int(values.max()), -int(values.min())) > self.largest:
            raise ValueError(f"a value exceeds {self.largest}, the largest one of {self.width} bits")
        length, change = self._words * 8, self._one - self._half
        return [
            int.from_bytes(data[start : start + length], "little") + change
            for chunk in self._chunks(values)
            for data in [_to_words(chunk + (self.largest + 1), self.width, self._words)]
            for start in range(0, len(data), length)
        ]

    def unpack(self, plaintexts: Sequence[int], count: int) -> Unpacked:
        """Values and contributors of sums of plaintexts, exactly as many as `count` values need.

        Raises:
            CorruptedError: where a plaintext is no sum of packed ones.
        """
        if len(plaintexts) != self.plaintexts(count):
            raise ValueError(f"{count} values are in {self.plaintexts(count)} plaintexts, not in {len(plaintexts)}")
        shifted = [plaintext + self._half for plaintext in plaintexts]
        wrong = tuple(at for at, plaintext in enumerate(shifted) if not 0 <= plaintext < self._one << CHECK_BITS)
        if wrong:
            raise CorruptedError(wrong)
        top, mask, length = self.slots * self.width, self._one - 1, self._words * 8
        contributors = np.fromiter((plaintext >> top for plaintext in shifted), np.int64, len(shifted))
        values = np.empty((len(shifted), self.slots), dtype=np.int64)
        rows = max(1, _CHUNK // self.slots)
        for start in range(0, len(shifted), rows):
            part = shifted[start : start + rows]
            data = b"".join((plaintext & mask).to_bytes(length, "little") for plaintext in part)
            values[start : start + rows] = _from_words(data, self.width, self.slots, self._words)
        return Unpacked(values.reshape(-1)[:count] - (self.largest + 1), contributors)

    @cached_property
    def _one(self) -> int:
        return 1 << (self.slots * self.width)

    @cached_property
    def _half(self) -> int:
        """Half the range in every slot."""
        return sum(1 << (slot * self.width + self.width - 1) for slot in range(self.slots))

    @property
    def _words(self) -> int:
        """64-bit words of all slots."""
        return -(-self.slots * self.width // 64)

    def _chunks(self, values: np.ndarray) -> Iterator[np.ndarray]:
        """Some rows at a time, one row per plaintext, the last one filled up."""
        step = max(1, _CHUNK // self.slots) * self.slots
        for start in range(0, len(values), step):
            chunk = values[start : start + step].astype(np.int64, copy=False)
            yield np.pad(chunk, (0, -len(chunk) % self.slots)).reshape(-1, self.slots)


@dataclass(frozen=True, eq=False)
class SlotLayout:
    """Fixed slots for the integers of a round, the same for all clients, so that ciphertexts can be added.

    Integers of one contributor block are neighbours. A client sends the ciphertexts that hold one of its values; the
    other slots of these hold 0.
    """

    slots: int  # slots per ciphertext
    place: np.ndarray  # (length) slot of every integer, counted over all ciphertexts

    @classmethod
    def of(cls, block_of: np.ndarray, slots: int) -> SlotLayout:
        """Put integers of one block next to each other; `block_of` has the contributor block of every integer."""
        place = np.empty(len(block_of), dtype=np.int64)
        place[np.argsort(block_of, kind="stable")] = np.arange(len(block_of))
        return cls(slots, place)

    def ciphertexts(self, positions: np.ndarray) -> np.ndarray:
        """Ciphertexts (int64, ascending) that hold the integers at some positions."""
        return np.unique(self.place[positions] // self.slots)

    def spread(self, positions: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """A client's ciphertexts, and the values of all their slots one after the other."""
        places = self.place[positions]
        numbers, row = np.unique(places // self.slots, return_inverse=True)
        dense = np.zeros(len(numbers) * self.slots, dtype=np.int64)
        dense[row * self.slots + places % self.slots] = values
        return numbers, dense

    def collect(self, numbers: np.ndarray, dense: np.ndarray) -> np.ndarray:
        """(length) the integers from all slots of some ciphertexts; 0 where a ciphertext is missing."""
        rows = -(-len(self.place) // self.slots)
        table = np.zeros((rows, self.slots), dtype=np.int64)
        table[numbers] = dense.reshape(len(numbers), self.slots)
        return table.reshape(-1)[self.place]


def _to_words(rows: np.ndarray, width: int, words: int) -> bytes:
    """Values below 2^width, (rows, slots) int64, as consecutive bits of `words` little-endian words per row."""
    columns = np.ascontiguousarray(rows.T).view(np.uint64)
    packed = np.zeros((words, len(rows)), dtype=np.uint64)
    for slot, column in enumerate(columns):
        word, shift = divmod(slot * width, 64)
        packed[word] |= column << np.uint64(shift)
        if shift + width > 64:
            packed[word + 1] |= column >> np.uint64(64 - shift)
    return packed.T.astype("<u8").tobytes()


def _from_words(data: bytes, width: int, slots: int, words: int) -> np.ndarray:
    """The inverse of `_to_words`: (rows, slots) int64."""
    packed = np.ascontiguousarray(np.frombuffer(data, dtype="<u8").reshape(-1, words).T)
    columns = np.empty((slots, packed.shape[1]), dtype=np.uint64)
    for slot, column in enumerate(columns):
        word, shift = divmod(slot * width, 64)
        column[:] = packed[word] >> np.uint64(shift)
        if shift + width > 64:
            column |= packed[word + 1] << np.uint64(64 - shift)
    return (columns & np.uint64(2**width - 1)).view(np.int64).T
