"""Shamir's secret sharing (1979): any `threshold` shares restore a secret, fewer reveal nothing; shares as bytes."""

from __future__ import annotations

import math
import secrets
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache

from app.crypto.messages import RejectedMessageError, Step

PRIME = 2**256 + 297
"""The smallest prime above all secrets."""

SECRET_BYTES = 32
"""Length of a secret."""

_RECORD = struct.Struct(">qBHH33s")  # owner, kind of secret, point, threshold, value


@dataclass(frozen=True)
class Share:
    """One point of a secret's polynomial. The value is not shown."""

    point: int  # where the polynomial was evaluated, in [1, 65535]
    threshold: int  # how many shares give the secret, in [1, 65535]
    value: int = field(repr=False)  # of the polynomial, in [0, PRIME)


def split(secret: bytes, shares: int, threshold: int) -> list[Share]:
    """Split a secret of 32 bytes into shares for the points 1, 2, ... `shares` (at most 65535)."""
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret has {SECRET_BYTES} bytes, not {len(secret)}")
    if not 1 <= threshold <= shares < 2**16:
        raise ValueError(f"{threshold} of {shares} shares: needs 1 <= threshold <= shares <= 65535")
    coefficients = [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
    coefficients.append(int.from_bytes(secret, "big"))
    return [Share(point, threshold, _evaluate(coefficients, point)) for point in range(1, shares + 1)]


def _evaluate(coefficients: Sequence[int], point: int) -> int:
    """Value of a polynomial, highest coefficient first. Points are small, so one reduction at the end is cheapest."""
    value = 0
    for coefficient in coefficients:
        value = value * point + coefficient
    return value % PRIME


def join(shares: Mapping[int, Share]) -> bytes:
    """The secret from its shares by point; of more than needed the lowest points are used.

    Raises:
        ValueError: where there are fewer than the threshold, a share lies under another point than its own, or the
            shares are not of one secret.
    """
    threshold = next(iter(shares.values())).threshold if shares else 1
    if any(share.threshold != threshold for share in shares.values()):
        raise ValueError("the shares are of different secrets")
    if any(share.point != point for point, share in shares.items()):
        raise ValueError("a share lies under another point than its own")
    if len(shares) < threshold:
        raise ValueError(f"{len(shares)} shares of at least {threshold}")
    points = tuple(sorted(shares)[:threshold])
    terms = (weight * shares[point].value for point, weight in zip(points, _weights(points), strict=True))
    secret = sum(terms) % PRIME
    if secret >> (8 * SECRET_BYTES):
        raise ValueError("the shares are not of one secret")
    return secret.to_bytes(SECRET_BYTES, "big")


@lru_cache(maxsize=16)
def _weights(points: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange coefficients that turn the values at these points into the value at 0."""
    weights = []
    for point in points:
        others = [other for other in points if other != point]
        below = math.prod(other - point for other in others)
        weights.append(math.prod(others) * pow(below, -1, PRIME) % PRIME)
    return tuple(weights)


class SecretKind(IntEnum):
    """Which of a client's secrets a share belongs to. The server may learn one of them, never both."""

    MASKING_KEY = 1
    """Private key of the pairwise masks: revealed where the client dropped out."""
    SELF_MASK = 2
    """Seed of the own mask: revealed where the client's vector arrived."""


@dataclass(frozen=True)
class HeldShare:
    """A share that a client holds of one of the owner's secrets."""

    owner: int
    secret: SecretKind
    share: Share


def pack(shares: Iterable[HeldShare]) -> bytes:
    """Shares as bytes."""
    records = ((one.owner, one.secret, one.share.point, one.share.threshold, one.share.value) for one in shares)
    return b"".join(_RECORD.pack(*head, value.to_bytes(33, "big")) for *head, value in records)


def read(sender: int, step: Step, data: bytes) -> list[HeldShare]:
    """The shares that `pack` wrote; a RejectedMessageError with the sender where the bytes are no shares."""
    try:
        return [_held(*record) for record in _RECORD.iter_unpack(data)]
    except (ValueError, struct.error):
        raise RejectedMessageError(sender, step, "its bytes are not those of shares") from None


def _held(owner: int, secret: int, point: int, threshold: int, value: bytes) -> HeldShare:
    share = Share(point, threshold, int.from_bytes(value, "big"))
    if not (point and threshold and share.value < PRIME):
        raise ValueError("the bytes are not those of a share")
    return HeldShare(owner, SecretKind(secret), share)


class AbortedRoundError(Exception):
    """A round that cannot go on, or a request that a client refuses, with the reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def require_threshold(present: int, threshold: int, what: str, missing: Iterable[int] = ()) -> None:
    """Raise an AbortedRoundError, which names the counts and who is missing, where too few clients did `what`."""
    if present >= threshold:
        return
    names = listed(missing)
    raise AbortedRoundError(
        f"{present} clients {what}, threshold {threshold}" + (f"; missing: {names}" if names else "")
    )


def listed(clients: Iterable[int]) -> str:
    """Numbers of clients in ascending order."""
    return ", ".join(str(client) for client in sorted(clients))
