"""Measured cost of one Paillier ciphertext on this machine."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from app.crypto.paillier.encryption import Encryptor, Exponent, decrypt
from app.crypto.paillier.keys import PrivateKey
from app.crypto.paillier.sums import EncryptedSum


@dataclass(frozen=True)
class OperationCost:
    """CPU seconds on one core of this machine.

    Attributes:
        encrypt: seconds per ciphertext.
        add: seconds per ciphertext, of adding it to a sum.
        decrypt: seconds per ciphertext.
        table: seconds to set encryption up, once per process.
        sample: ciphertexts measured.
    """

    encrypt: float
    add: float
    decrypt: float
    table: float
    sample: int


def measure(private: PrivateKey, exponent: Exponent, sample: int = 48) -> OperationCost:
    """Measure on `sample` random plaintexts in this process, after a warm-up."""
    public = private.public
    encryptors: list[Encryptor] = []
    table = _seconds(lambda: encryptors.append(Encryptor(public, exponent)))
    encryptor, total = encryptors[0], EncryptedSum(public)
    plaintexts = [secrets.randbelow(public.n) for _ in range(sample)]
    ciphertexts = encryptor.encrypt(plaintexts)
    places = range(sample)
    total.add(places, ciphertexts)  # a first ciphertext is stored, not multiplied
    decrypt(private, ciphertexts[:1], workers=1, progress=False)
    return OperationCost(
        encrypt=_seconds(lambda: encryptor.encrypt(plaintexts)) / sample,
        add=_seconds(lambda: total.add(places, ciphertexts)) / sample,
        decrypt=decrypt(private, ciphertexts, workers=1, progress=False).seconds / sample,
        table=table,
        sample=sample,
    )


def _seconds(work: Callable[[], object]) -> float:
    started = time.thread_time()
    work()
    return time.thread_time() - started
