"""Signed messages between clients and server: keys, signatures, delivery with retries, and failures."""

from __future__ import annotations

import hashlib
import secrets
import struct
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal, NoReturn, SupportsIndex
from weakref import WeakValueDictionary

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SERVER = -1
"""The server's number among senders and recipients."""

SESSION_BYTES = 16
HEADER_BYTES = SESSION_BYTES + 8 + 1 + 8 + 8 + 8
"""Session, round, step, sender, recipient and length of the body, as they would be sent."""

Step = Literal["keys", "shares", "masked", "survivors", "reveal", "ciphertext"]
"""What a message is for."""


def new_session() -> bytes:
    """A session id that no other round has, in this run or in another."""
    return secrets.token_bytes(SESSION_BYTES)


class SecretHolder:
    """An object with secrets: neither copied nor pickled, and its repr shows the client's number only."""

    client: int

    def __repr__(self) -> str:
        return f"{type(self).__name__}(client={self.client})"

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(f"{type(self).__name__} holds secrets and is neither copied nor pickled")


class RejectedMessageError(Exception):
    """A message that fails a check: whose message it should have been, which step it belongs to, and the reason."""

    def __init__(self, client: int, step: Step, reason: str) -> None:
        super().__init__(client, step, reason)
        self.client, self.step, self.reason = client, step, reason

    def __str__(self) -> str:
        return f"the {self.step} message of client {self.client} is rejected: {self.reason}"


@dataclass(frozen=True)
class SignedMessage:
    """A signed message. The body may hold shares of secrets and is therefore not shown."""

    session: bytes  # 16 bytes that name one run of the protocol, fresh in every round
    round: int
    step: Step
    sender: int  # client that signed it
    recipient: int  # client it is for, or `SERVER`
    body: bytes = field(repr=False)
    signature: bytes = field(repr=False)  # Ed25519 over everything above

    @property
    def size(self) -> int:
        """Bytes when sent: the body, the signature (64) and a header of 49."""
        return HEADER_BYTES + len(self.body) + len(self.signature)

    @property
    def signed_bytes(self) -> bytes:
        """Bytes that a signature covers: every field with its length, so that no two messages give the same bytes."""
        numbers = (struct.pack(">q", number) for number in (self.round, self.sender, self.recipient))
        fields = (b"rampart message", self.session, self.step.encode(), *numbers, _digest(self.body))
        return b"".join(struct.pack(">I", len(part)) + part for part in fields)


@lru_cache(maxsize=1)
def _digest(body: bytes) -> bytes:
    """BLAKE2b; in a simulation, a long body is verified right after it was signed."""
    return hashlib.blake2b(body, digest_size=32).digest()


class SigningKey(SecretHolder):
    """The long-term Ed25519 key of one client (number 0 or more), new or from a `secret` of 32 bytes."""

    def __init__(self, client: int, secret: bytes | None = None) -> None:
        self.client = client
        self._key = Ed25519PrivateKey.generate() if secret is None else Ed25519PrivateKey.from_private_bytes(secret)

    @property
    def public(self) -> bytes:
        return self._key.public_key().public_bytes_raw()

    def sign(self, session: bytes, round_: int, step: Step, recipient: int, body: bytes) -> SignedMessage:
        """Sign a message; the fields are those of `SignedMessage`."""
        if len(session) != SESSION_BYTES:
            raise ValueError(f"a session has {SESSION_BYTES} bytes, not {len(session)}")
        message = SignedMessage(session, round_, step, self.client, recipient, body, b"")
        return replace(message, signature=self._key.sign(message.signed_bytes))


class KeyRegistry:
    """The identity keys of all clients: a public-key infrastructure that is fixed before the run.

    Every client holds the same registry and got it from elsewhere than the server, who could otherwise enter keys of
    its own. A client's key is entered once and never replaced.
    """

    def __init__(self) -> None:
        self._public: dict[int, Ed25519PublicKey] = {}
        # Clients of a simulation share one registry, and messages cannot change: each is verified once per process.
        self._verified: WeakValueDictionary[int, SignedMessage] = WeakValueDictionary()

    def enrol(self, client: int, public: bytes) -> None:
        """Enter a client's public key; a ValueError where another key is entered for the client already."""
        if self._public.setdefault(client, Ed25519PublicKey.from_public_bytes(public)).public_bytes_raw() != public:
            raise ValueError(f"client {client} is enrolled with another key; a key is entered once and never replaced")

    def check(self, message: SignedMessage, session: bytes, round_: int, step: Step) -> None:
        """Verify a message against the session, round and step that the receiver is in.

        Raises:
            RejectedMessageError: where the sender is unknown, the signature is not the sender's, or the message belongs
                to another round or step.
        """
        client = message.sender
        if self._verified.get(id(message)) is not message:
            self._verify(message, step)
        if (message.session, message.round) != (session, round_):
            raise RejectedMessageError(client, step, "it belongs to another round (replayed)")
        if message.step != step:
            raise RejectedMessageError(client, step, f"it is meant for another step ({message.step})")

    def _verify(self, message: SignedMessage, step: Step) -> None:
        client = message.sender
        if client not in self._public:
            raise RejectedMessageError(client, step, f"nobody is enrolled as client {client}")
        try:
            self._public[client].verify(message.signature, message.signed_bytes)
        except InvalidSignature:
            raise RejectedMessageError(client, step, f"the signature is not that of client {client}") from None
        self._verified[id(message)] = message


class Transport:
    """Carries messages from sender to receiver. Tests inject faults by overriding `carry`."""

    def carry(self, message: SignedMessage) -> SignedMessage | None:
        """The message that arrives; None where it is lost or its sender has died."""
        return message


@dataclass(frozen=True)
class DeliveryFailure:
    """A message that failed to arrive intact once; `repaired` where a later attempt succeeded."""

    round: int
    client: int
    step: Step
    reason: str
    repaired: bool

    def __str__(self) -> str:
        end = "it arrived when asked for again" if self.repaired else "it never arrived intact"
        return f"Round {self.round}, {self.step} message of client {self.client}: {self.reason}; {end}."


class MessageDelivery:
    """Delivers messages: sends, verifies and retries, at most `attempts` (1 or more) times in all."""

    def __init__(self, registry: KeyRegistry, transport: Transport, attempts: int = 2) -> None:
        if attempts < 1:
            raise ValueError(f"a message is sent at least once, not {attempts} times")
        self.registry, self.transport, self.attempts = registry, transport, attempts
        self.failures: list[DeliveryFailure] = []

    def deliver(self, message: SignedMessage, session: bytes, round_: int) -> SignedMessage | None:
        """The message that reaches a receiver in this session and round; None where no attempt brought it intact."""
        reasons: list[str] = []
        arrived = None
        while arrived is None and len(reasons) < self.attempts:
            try:
                arrived = self._attempt(message, session, round_)
            except RejectedMessageError as error:
                reasons.append(error.reason)
        about = round_, message.sender, message.step
        self.failures += [DeliveryFailure(*about, reason, repaired=arrived is not None) for reason in reasons]
        return arrived

    def take_failures(self) -> list[DeliveryFailure]:
        """The failures since the last call, which are then forgotten."""
        taken, self.failures = self.failures, []
        return taken

    def _attempt(self, message: SignedMessage, session: bytes, round_: int) -> SignedMessage:
        arrived = self.transport.carry(message)
        client, step = message.sender, message.step
        if arrived is None:
            raise RejectedMessageError(client, step, "it did not arrive")
        self.registry.check(arrived, session, round_, step)
        if (arrived.sender, arrived.recipient) != (client, message.recipient):
            reason = f"it is from {arrived.sender} to {arrived.recipient}, not from {client} to {message.recipient}"
            raise RejectedMessageError(client, step, reason)
        return arrived
