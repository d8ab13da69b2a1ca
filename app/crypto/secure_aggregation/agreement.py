"""Key agreement between two clients (X25519), and authenticated encryption with the agreed keys (ChaCha20-Poly1305)."""

from __future__ import annotations

import hashlib
import secrets
import struct
from dataclasses import dataclass
from functools import lru_cache

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from app.crypto.messages import SecretHolder

PUBLIC_BYTES = 32
"""Length of a public key, and of a digest."""

_NONCE = 12

_public_key = lru_cache(maxsize=1 << 12)(X25519PublicKey.from_public_bytes)
"""The key of 32 bytes; clients of a simulation meet the same ones."""


@dataclass(frozen=True)
class PublicKeys:
    """What a client publishes under its signature at the start of a round, 32 bytes each."""

    encryption: bytes  # public key for shares sent to the client
    masking: bytes  # public key for pairwise masks
    seed_digest: bytes  # SHA-256 of the seed of the self mask, by which wrong shares of it are noticed

    def to_bytes(self) -> bytes:
        return self.encryption + self.masking + self.seed_digest

    @classmethod
    def from_bytes(cls, data: bytes) -> PublicKeys:
        if len(data) != 3 * PUBLIC_BYTES:
            raise ValueError(f"two public keys and a digest have {3 * PUBLIC_BYTES} bytes, not {len(data)}")
        return cls(*(data[start : start + PUBLIC_BYTES] for start in range(0, len(data), PUBLIC_BYTES)))


class KeyPair(SecretHolder):
    """An X25519 key of one client for one round and one purpose, new or from a `secret` of 32 bytes."""

    def __init__(self, client: int, secret: bytes | None = None) -> None:
        self.client = client
        self._key = X25519PrivateKey.generate() if secret is None else X25519PrivateKey.from_private_bytes(secret)
        self._agreed: dict[bytes, bytes] = {}

    @property
    def public(self) -> bytes:
        return self._key.public_key().public_bytes_raw()

    def secret(self) -> bytes:
        """The private key, 32 bytes, to be secret-shared."""
        return self._key.private_bytes_raw()

    def agree(self, public: bytes, purpose: bytes) -> bytes:
        """A key of 32 bytes that only the owners of both pairs can derive; a different one for every purpose.

        Args:
            public: the other client's public key.
            purpose: domain-separation label, the same bytes on both sides.

        Raises:
            ValueError: where the public key is invalid (a wrong length, or a point of low order).
        """
        if public not in self._agreed:
            self._agreed[public] = self._key.exchange(_public_key(public))
        return HKDF(SHA256(), 32, None, purpose).derive(self._agreed[public])


def seed_digest(seed: bytes) -> bytes:
    """What a client publishes of the seed of its self mask; a seed of 32 random bytes cannot be guessed from it."""
    return hashlib.sha256(b"rampart self mask" + seed).digest()


def domain_label(purpose: str, *parts: bytes | int) -> bytes:
    """Domain-separation label: the purpose and all parts, each with its length, so that no two labels are equal."""
    fields = [part if isinstance(part, bytes) else struct.pack(">q", part) for part in parts]
    return b"".join(struct.pack(">I", len(part)) + part for part in (purpose.encode(), *fields))


def aead_encrypt(key: bytes, text: bytes, about: bytes) -> bytes:
    """Encrypt a text and authenticate it together with `about`, public bytes that the reader must know as well."""
    nonce = secrets.token_bytes(_NONCE)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, text, about)


def aead_decrypt(key: bytes, sealed: bytes, about: bytes) -> bytes | None:
    """The text, or None where it was changed, encrypted with another key or about something else."""
    if len(sealed) < _NONCE:
        return None
    try:
        return ChaCha20Poly1305(key).decrypt(sealed[:_NONCE], sealed[_NONCE:], about)
    except InvalidTag:
        return None
