"""Decryption on all cores, in threads: the private key never leaves the process."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import gmpy2

from app.crypto.paillier.encryption import progress_bar
from app.crypto.paillier.keys import PrivateKey
from app.crypto.paillier.sums import check_ciphertexts

_CHUNK = 32  # ciphertexts per call: a call cannot be interrupted, and the last calls leave cores idle


@dataclass(frozen=True, eq=False)
class Decrypted:
    """Plaintexts in [0, n), in the order of the ciphertexts, and CPU seconds over all threads."""

    plaintexts: list[int]
    seconds: float


def decrypt(private: PrivateKey, ciphertexts: Sequence[int], workers: int, progress: bool) -> Decrypted:
    """Decrypt integers in [1, n^2) on so many threads, not in constant time; a ValueError where a number is outside."""
    check_ciphertexts(private.public, ciphertexts, range(len(ciphertexts)))
    halves = _Halves(private)
    chunks = [ciphertexts[start : start + _CHUNK] for start in range(0, len(ciphertexts), _CHUNK)]
    plaintexts: list[int] = []
    seconds = 0.0
    with (
        ThreadPoolExecutor(workers, "decrypt") as pool,
        progress_bar("decrypting", len(ciphertexts), progress) as bar,
    ):
        for part in pool.map(halves.decrypt, chunks):
            plaintexts += part.plaintexts
            seconds += part.seconds
            bar.update(len(part.plaintexts))
    return Decrypted(plaintexts, seconds)


class _Halves:
    """Decryption modulo p and modulo q, put together by the Chinese remainder theorem.

    Same formulas as `phe`'s, but the powers, which take nearly all the time, are computed list by list: these calls
    release the interpreter's lock.
    """

    def __init__(self, private: PrivateKey) -> None:
        key = private.phe
        self._p, self._q = gmpy2.mpz(key.p), gmpy2.mpz(key.q)
        self._hp, self._hq = gmpy2.mpz(key.hp), gmpy2.mpz(key.hq)
        self._p_inverse = gmpy2.mpz(key.p_inverse)

    def decrypt(self, ciphertexts: Sequence[int]) -> Decrypted:
        started = time.thread_time()
        numbers = [gmpy2.mpz(ciphertext) for ciphertext in ciphertexts]
        pairs = zip(_modulo(numbers, self._p, self._hp), _modulo(numbers, self._q, self._hq), strict=True)
        plaintexts = [int(mp + self._p * ((mq - mp) * self._p_inverse % self._q)) for mp, mq in pairs]
        return Decrypted(plaintexts, time.thread_time() - started)


def _modulo(ciphertexts: list[gmpy2.mpz], prime: gmpy2.mpz, h: gmpy2.mpz) -> list[gmpy2.mpz]:
    """Plaintexts modulo one of the primes."""
    square = prime * prime
    powers = gmpy2.powmod_base_list([ciphertext % square for ciphertext in ciphertexts], prime - 1, square)
    return [(power - 1) // prime * h % prime for power in powers]
