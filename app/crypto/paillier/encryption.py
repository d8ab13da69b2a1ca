"""Paillier encryption with precomputed randomness, in processes; decryption in threads, so that the key stays here."""

from __future__ import annotations

import math
import multiprocessing
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal

import gmpy2

from app.common.errors import UserError
from app.common.progress import Step
from app.crypto.paillier.keys import PrivateKey, PublicKey, security_bits
from app.crypto.paillier.sums import check_ciphertexts

Exponent = Literal["short", "half", "full"]
"""Where the noise comes from: powers of a fixed element with short or half-length exponents, or r^n."""

TimedNumbers = tuple[list[int], float]
"""Ciphertexts or plaintexts, and the CPU seconds that they took."""

_WINDOW = 8  # bits of the exponent per look-up: a byte of the operating system's randomness each
_FEW = 64  # plaintexts that are encrypted sooner than they are sent to workers
_CHUNK = 128  # most plaintexts handed out at a time
_DECRYPTED = 32  # ciphertexts per call: a call cannot be interrupted, and the last calls leave cores idle


def exponent_bits(bits: int, exponent: Exponent) -> int:
    """Bits of the random exponent, or of the random base where it is `full`, for a modulus of `bits` bits."""
    if exponent == "full":
        return bits
    return bits // 2 if exponent == "half" else 2 * security_bits(bits)


def check_plaintexts(public: PublicKey, plaintexts: Sequence[int]) -> None:
    """Raise a ValueError at the first plaintext outside [0, n), which decryption would return reduced modulo n."""
    for position, plaintext in enumerate(plaintexts):
        if not 0 <= plaintext < public.n:
            raise ValueError(f"the plaintext at position {position} is not in [0, n)")


class Encryptor:
    """Encrypts with one public key. Making one sets up the table of powers."""

    def __init__(self, public: PublicKey, exponent: Exponent) -> None:
        self._public = public
        self._n, self._square = gmpy2.mpz(public.n), gmpy2.mpz(public.square)
        self._bytes = exponent_bits(public.bits, exponent) // _WINDOW
        self._table = [] if exponent == "full" else self._powers(gmpy2.mpz(public.generator))

    def encrypt(self, plaintexts: Sequence[int]) -> list[int]:
        """Ciphertexts of integers in [0, n); equal plaintexts get different ones."""
        check_plaintexts(self._public, plaintexts)
        noise = self._from_table(len(plaintexts)) if self._table else self._random_powers(len(plaintexts))
        pairs = zip(plaintexts, noise, strict=True)
        return [int((1 + plaintext * self._n) * factor % self._square) for plaintext, factor in pairs]

    def _powers(self, base: gmpy2.mpz) -> list[list[gmpy2.mpz]]:
        """base^(digit 256^place) for every place and digit of an exponent."""
        table = []
        for _ in range(self._bytes):
            row = [gmpy2.mpz(1)]
            for _ in range(2**_WINDOW):
                row.append(row[-1] * base % self._square)
            base = row.pop()
            table.append(row)
        return table

    def _from_table(self, count: int) -> Iterator[gmpy2.mpz]:
        for _ in range(count):
            noise = gmpy2.mpz(1)
            for row, digit in zip(self._table, secrets.token_bytes(self._bytes), strict=True):
                noise = noise * row[digit] % self._square
            yield noise

    def _random_powers(self, count: int) -> Sequence[gmpy2.mpz]:
        return gmpy2.powmod_base_list([self._unit() for _ in range(count)], self._n, self._square)

    def _unit(self) -> int:
        while True:
            r = 1 + secrets.randbelow(self._public.n - 1)
            if math.gcd(r, self._public.n) == 1:
                return r


@dataclass(frozen=True, eq=False)
class Encrypted:
    """Ciphertexts, in the order of the plaintexts, and CPU seconds over all workers, without starting them."""

    ciphertexts: list[int]
    seconds: float


class EncryptionPool:
    """Encrypts in this process or, with several `workers`, in processes that start at the first large job."""

    def __init__(self, public: PublicKey, exponent: Exponent, workers: int, progress: bool) -> None:
        self._public, self._exponent = public, exponent
        self._workers, self._progress = workers, progress
        self._processes: ProcessPoolExecutor | None = None

    def encrypt(self, plaintexts: Sequence[int]) -> Encrypted:
        """Encrypt integers in [0, n), spread over the workers; a UserError where a worker died."""
        check_plaintexts(self._public, plaintexts)
        bar = Step("encrypting", len(plaintexts), "ciphertexts", 2, self._progress)
        return Encrypted(*_collected(self._parts(plaintexts), bar))

    def close(self) -> None:
        if self._processes is not None:
            self._processes.shutdown(cancel_futures=True)
            self._processes = None

    @cached_property
    def _encryptor(self) -> Encryptor:
        return Encryptor(self._public, self._exponent)

    def _parts(self, plaintexts: Sequence[int]) -> Iterator[TimedNumbers]:
        size = min(_CHUNK, -(-len(plaintexts) // (4 * self._workers)) or 1)
        chunks = [plaintexts[start : start + size] for start in range(0, len(plaintexts), size)]
        if self._workers == 1 or len(plaintexts) < _FEW:
            yield from (_timed(self._encryptor.encrypt, chunk) for chunk in chunks)
            return
        try:
            yield from self._started().map(_in_worker, chunks)
        except BrokenProcessPool as error:
            self.close()
            raise UserError.of(
                f"a process that encrypts ended unexpectedly ({self._workers} were at work)",
                "the update cannot be encrypted; a script that starts a run outside of "
                '`if __name__ == "__main__":` or too little memory can be the reason',
                "set --defenses.NAME.workers 1, which encrypts without further processes",
            ) from error

    def _started(self) -> ProcessPoolExecutor:
        if self._processes is None:
            # a fork would copy the locks of this process's threads in whatever state they are
            context = multiprocessing.get_context("spawn")
            known = (self._public, self._exponent)
            self._processes = ProcessPoolExecutor(self._workers, context, _start_worker, known)
        return self._processes


_worker: Encryptor
"""The encryptor of a worker process."""


def _start_worker(public: PublicKey, exponent: Exponent) -> None:
    global _worker
    _worker = Encryptor(public, exponent)


def _in_worker(plaintexts: Sequence[int]) -> TimedNumbers:
    return _timed(_worker.encrypt, plaintexts)


def _timed(work: Callable[[Sequence[int]], list[int]], numbers: Sequence[int]) -> TimedNumbers:
    started = time.thread_time()
    return work(numbers), time.thread_time() - started


def _collected(parts: Iterable[TimedNumbers], bar: Step) -> TimedNumbers:
    numbers: list[int] = []
    seconds = 0.0
    with bar:
        for part, spent in parts:
            numbers += part
            seconds += spent
            bar.update(len(part))
    return numbers, seconds


@dataclass(frozen=True, eq=False)
class Decrypted:
    """Plaintexts in [0, n), in the order of the ciphertexts, and CPU seconds over all threads."""

    plaintexts: list[int]
    seconds: float


def decrypt(private: PrivateKey, ciphertexts: Sequence[int], workers: int, progress: bool) -> Decrypted:
    """Decrypt integers in [1, n^2) on so many threads, not in constant time; a ValueError where a number is outside."""
    check_ciphertexts(private.public, ciphertexts, range(len(ciphertexts)))
    chunks = [ciphertexts[start : start + _DECRYPTED] for start in range(0, len(ciphertexts), _DECRYPTED)]
    bar = Step("decrypting", len(ciphertexts), "ciphertexts", 2, progress)
    with ThreadPoolExecutor(workers, "decrypt") as pool:
        return Decrypted(*_collected(pool.map(partial(_timed, _Halves(private).decrypt), chunks), bar))


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

    def decrypt(self, ciphertexts: Sequence[int]) -> list[int]:
        numbers = [gmpy2.mpz(ciphertext) for ciphertext in ciphertexts]
        pairs = zip(_modulo(numbers, self._p, self._hp), _modulo(numbers, self._q, self._hq), strict=True)
        return [int(mp + self._p * ((mq - mp) * self._p_inverse % self._q)) for mp, mq in pairs]


def _modulo(ciphertexts: list[gmpy2.mpz], prime: gmpy2.mpz, h: gmpy2.mpz) -> list[gmpy2.mpz]:
    """Plaintexts modulo one of the primes."""
    square = prime * prime
    powers = gmpy2.powmod_base_list([ciphertext % square for ciphertext in ciphertexts], prime - 1, square)
    return [(power - 1) // prime * h % prime for power in powers]
