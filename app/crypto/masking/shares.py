"""The two secrets whose shares clients hold for each other, and how shares are written into messages."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from app.crypto.masking.shamir import SHARE_BYTES, Share
from app.crypto.messages import RejectedError, Step


class Secret(IntEnum):
    """Which of a client's secrets a share belongs to. The server may learn one of them, never both."""

    MASKING_KEY = 1
    """Private key of the pairwise masks: revealed where the client dropped out."""
    OWN_MASK = 2
    """Seed of the own mask: revealed where the client's vector arrived."""


@dataclass(frozen=True)
class HeldShare:
    """A share that a client holds of a secret.

    Attributes:
        owner: client whose secret it is.
        secret: which of its secrets.
        share: the share.
    """

    owner: int
    secret: Secret
    share: Share


_HEAD = struct.Struct(">qB")
_RECORD = _HEAD.size + SHARE_BYTES


def pack(shares: Iterable[HeldShare]) -> bytes:
    """Shares as bytes."""
    return b"".join(_HEAD.pack(held.owner, held.secret) + held.share.to_bytes() for held in shares)


def read(sender: int, step: Step, data: bytes) -> list[HeldShare]:
    """The shares that `pack` wrote.

    Args:
        sender: client whose message it is.
        step: what the message is for.
        data: the bytes.

    Raises:
        RejectedError: where the bytes are not those of shares; it names the sender.
    """
    try:
        return [_unpack(data[start : start + _RECORD]) for start in range(0, len(data), _RECORD)]
    except (ValueError, struct.error):
        raise RejectedError(sender, step, "its bytes are not those of shares") from None


def _unpack(record: bytes) -> HeldShare:
    """One share."""
    owner, secret = _HEAD.unpack_from(record)
    return HeldShare(owner, Secret(secret), Share.from_bytes(record[_HEAD.size :]))
