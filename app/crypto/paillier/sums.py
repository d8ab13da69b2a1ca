"""Homomorphic addition, and ciphertexts as bytes. Needs the public key only: this is the server's part."""

from __future__ import annotations

from collections.abc import Sequence

import gmpy2
import numpy as np

from app.crypto.paillier.keys import PublicKey


class EncryptedSum:
    """Encrypted sums, one per position, of ciphertexts made with one public key."""

    def __init__(self, public: PublicKey) -> None:
        self.public = public
        self._square = gmpy2.mpz(public.square)
        self._sums: dict[int, gmpy2.mpz] = {}

    def add(self, positions: Sequence[int] | np.ndarray, ciphertexts: Sequence[int]) -> None:
        """Add a ciphertext, or a sum made elsewhere, to each position; nothing is added where one of them is refused.

        Raises:
            ValueError: where a number is not in [1, n^2), naming its position.
        """
        places = [int(position) for position in positions]
        check_ciphertexts(self.public, ciphertexts, places)
        for position, ciphertext in zip(places, ciphertexts, strict=True):
            known = self._sums.get(position)
            new = gmpy2.mpz(ciphertext)
            self._sums[position] = new if known is None else known * new % self._square

    @property
    def positions(self) -> list[int]:
        """Positions with a sum, ascending."""
        return sorted(self._sums)

    @property
    def ciphertexts(self) -> list[int]:
        """The encrypted sums in the order of `positions`."""
        return [int(self._sums[position]) for position in self.positions]


def check_ciphertexts(public: PublicKey, ciphertexts: Sequence[int], positions: Sequence[int]) -> None:
    """Raise a ValueError at the first number outside [1, n^2), where every ciphertext lies; it names the position."""
    if len(positions) != len(ciphertexts):
        raise ValueError(f"{len(ciphertexts)} ciphertexts came with {len(positions)} positions")
    square = public.square
    for position, ciphertext in zip(positions, ciphertexts, strict=True):
        if not 0 < ciphertext < square:
            raise ValueError(f"the number at position {position} is no ciphertext: it is not in [1, n^2)")


def to_bytes(public: PublicKey, ciphertexts: Sequence[int]) -> bytes:
    """Ciphertexts as bytes, `public.ciphertext_bytes` each, big-endian."""
    length = public.ciphertext_bytes
    return b"".join(ciphertext.to_bytes(length, "big") for ciphertext in ciphertexts)


def from_bytes(public: PublicKey, data: bytes) -> list[int]:
    """The inverse of `to_bytes`; a ValueError where the length is no multiple of a ciphertext's."""
    length = public.ciphertext_bytes
    if len(data) % length:
        raise ValueError(f"{len(data)} bytes are no whole number of ciphertexts of {length} bytes")
    return [int.from_bytes(data[start : start + length], "big") for start in range(0, len(data), length)]
