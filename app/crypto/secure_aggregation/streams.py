"""The pseudo-random generator of masks (AES-256 in counter mode), and integers modulo the word size."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes

from app.common.errors import UserError

_CHUNK = 1 << 16
"""Bytes made at once: they stay in the processor's cache until they are added."""

_BLOCK = 16
_ZEROS = memoryview(bytes(_CHUNK))


def word_for(largest_sum: int) -> np.dtype:
    """The narrowest unsigned integers, 32 or 64 bits, that hold every signed sum up to `largest_sum` in absolute value.

    Raises:
        UserError: where not even 64 bits hold it.
    """
    if largest_sum < 2**31:
        return np.dtype("<u4")
    if largest_sum < 2**63:
        return np.dtype("<u8")
    raise UserError.of(
        f"sums of masked values reach {largest_sum:.3g}, more than the {2**63 - 1:.3g} that 64 bits hold",
        "sums would wrap around and come out as other numbers",
        "set a smaller --defenses.NAME.bits, or sample fewer clients per round",
    )


def key_stream(key: bytes) -> CipherContext:
    """The stream of a key of 32 secret bytes: zeros that are passed to `update` come out as random bytes.

    AES in counter mode is the fastest here: with processor support it is ahead of ChaCha20. A key makes one stream
    only, so that the counter may start at zero.
    """
    return Cipher(algorithms.AES256(key), modes.CTR(bytes(_BLOCK))).encryptor()


def add_stream(total: np.ndarray, key: bytes, negative: bool = False) -> None:
    """Add (or subtract) a stream of uniform integers to words in place, modulo their width, without storing it.

    The stream is the same for the same key of 32 secret bytes. A key is for one stream only.
    """
    add_streams(total, [(key, negative)])


def add_streams(total: np.ndarray, streams: Iterable[tuple[bytes, bool]]) -> None:
    """`add_stream` for several keys, each with whether to subtract; chunk by chunk, so that words are still cached."""
    changes = [(key_stream(key), np.subtract if negative else np.add) for key, negative in streams]
    step, buffer = _CHUNK // total.itemsize, bytearray(min(total.nbytes, _CHUNK) + _BLOCK)
    for start in range(0, total.size, step):
        target = total[start : start + step]
        zeros, words = _ZEROS[: target.nbytes], np.frombuffer(buffer, total.dtype.newbyteorder("<"), target.size)
        for encryptor, change in changes:
            encryptor.update_into(zeros, buffer)
            change(target, words, out=target)


def to_words(values: np.ndarray, word: np.dtype) -> np.ndarray:
    """Signed integers as words in two's complement.

    Raises:
        TypeError: where the values are not integers.
        ValueError: where one does not fit.
    """
    if not np.issubdtype(values.dtype, np.integer):
        raise TypeError(f"values must be integers, not {values.dtype}: masks on floats do not cancel exactly")
    limits = np.iinfo(_signed(word))
    if values.size and (values.min() < limits.min or values.max() > limits.max):
        raise ValueError(f"values reach from {values.min()} to {values.max()}, more than {limits.bits} bits hold")
    return values.astype(_signed(word)).view(word)


def from_words(sums: np.ndarray, word: np.dtype) -> np.ndarray:
    """Words in two's complement as int64."""
    return sums.astype(word, copy=False).view(_signed(word)).astype(np.int64)


def _signed(word: np.dtype) -> np.dtype:
    return np.dtype(f"<i{word.itemsize}")
