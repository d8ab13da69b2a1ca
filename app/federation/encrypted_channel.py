"""Updates under Paillier encryption: the server adds what it cannot read, the clients decrypt the sum.

The clients share one private key, which stays in the first process; the server and all other processes have the public
key. Weights and the submodels' cells are public, as the plan is.
"""

from __future__ import annotations

import secrets
import time
import warnings
from abc import abstractmethod
from collections import Counter
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from app.crypto.contributors import Contributors
from app.crypto.fixed_point import FixedPoint, Outside
from app.crypto.messages import HEADER_BYTES, SERVER, Envelope, Identity, Post, Registry, Wire
from app.crypto.paillier.arrangement import Arrangement
from app.crypto.paillier.decryption import decrypt
from app.crypto.paillier.encryption import EncryptionPool, Exponent
from app.crypto.paillier.keys import KeyLength, PrivateKey, PublicKey, generate
from app.crypto.paillier.packing import CorruptedError, Packing
from app.crypto.paillier.sums import EncryptedSum, from_wire, to_wire
from app.federation.channel import Aggregate, Channel, Message, Reduce, UncoveredCells, Update
from app.federation.coding import encoded, tell_incidents, weight_code
from app.federation.integer_code import IntegerCode
from app.federation.plan import NOBODY, Plan
from app.federation.processes import from_first, gather
from app.federation.sent import sent_indices

if TYPE_CHECKING:
    from app.federation.module import FederatedModule


@dataclass(frozen=True)
class Encryption:
    """How updates are encrypted.

    Attributes:
        key_length: bits of the modulus.
        exponent: where the noise of a ciphertext comes from.
        point: precision of a client's change.
        outside: what becomes of changes that the range does not hold.
        max_weight: largest weight of a client where weights depend on losses.
        workers: processes that encrypt and threads that decrypt.
        attempts: how often a damaged message is asked for before the client is left out.
        progress: whether to show progress bars.
        name: what the user calls the defense, for messages that name an option.
    """

    key_length: KeyLength
    exponent: Exponent
    point: FixedPoint
    outside: Outside
    max_weight: float
    workers: int
    attempts: int
    progress: bool
    name: str


@dataclass
class EncryptionWork:
    """What encryption took in one round, over all clients and processes.

    Attributes:
        encrypt: CPU seconds.
        add: seconds of the server.
        decrypt: CPU seconds of decrypting the sum once.
        sent: ciphertexts that clients sent.
        summed: ciphertexts of the sum.
        values: values that clients sent.
        clipped: values that were cut to the range.
    """

    encrypt: float = 0.0
    add: float = 0.0
    decrypt: float = 0.0
    sent: int = 0
    summed: int = 0
    values: int = 0
    clipped: int = 0


OVERHEAD = HEADER_BYTES + 64 + 8
"""Bytes of a message beside its ciphertexts: header, signature, mark of the key."""


class EncryptedChannel(Channel):
    """Codes updates as integers, gives them their places in ciphertexts, and makes the mean of the sums.

    Attributes:
        work: what the present round has taken.
    """

    form = "ciphertext"

    def __init__(self, federation: FederatedModule, settings: Encryption) -> None:
        """Carry the updates of a federation.

        Args:
            federation: prepared.
            settings: how to encrypt.
        """
        self._federation, self._settings = federation, settings
        self.work = EncryptionWork()

    def open(self, plan: Plan, theta: Tensor) -> None:
        """Find out who contributes where, and how wide slots must be."""
        self._start()
        settings = self._settings
        contributors = Contributors.of(theta.numel(), sent_indices(self._federation, plan))
        weights = weight_code(self._federation, settings.max_weight)
        self._code = IntegerCode(contributors, settings.point, weights, theta, settings.outside)
        self._packing = Packing.fit(settings.key_length, self._code.largest_sum)
        self._arrangement = Arrangement.of(self._code.block_of, self._packing.slots)
        self._arrived: dict[int, int] = {}
        self._down: dict[int, int] = {}
        self.work = EncryptionWork()
        self._open(plan)

    def send(self, update: Update) -> Message | None:
        """Encrypt and add one update."""
        values = encoded(self._code, update, self._federation.space, self._settings.name)
        numbers, dense = self._arrangement.spread(self._code.positions(update.client), values)
        size = self._carry(update.client, numbers, dense)
        if size is None:
            return None
        self._arrived[update.client] = self._code.weight(update)
        self.work.sent += len(numbers)
        return Message(update.client, update.round, update.index, None, self.form, size)

    def close(self, uncovered: UncoveredCells, reduce: Reduce) -> Aggregate:
        """Decrypt the sum and divide it."""
        self._arrived = {client: weight for part in gather(self._arrived) for client, weight in part.items()}
        self.work.values, self.work.clipped = self._code.coded, self._code.clipped
        sums = self._sums()
        self.work = _total(gather(self.work))
        if sums is None:
            self._arrived = {}
            sums = np.zeros(self._code.length, dtype=np.int64)
        return self._code.decode(sums, self._arrived, uncovered)

    def bytes_down(self, client: int, received: Tensor) -> int:
        """The client gets its cells encrypted and decrypts them itself, the very first model included."""
        submodel = self._code.contributors.submodel_of[client]
        if submodel not in self._down:
            self._down[submodel] = len(self._arrangement.ciphertexts(self._code.positions(client)))
        return self._down[submodel] * self._public.ciphertext_bytes

    @property
    def packing(self) -> Packing:
        """How values are packed in the present round."""
        return self._packing

    @property
    def _public(self) -> PublicKey:
        raise NotImplementedError

    def _start(self) -> None:
        """Before the first round: make keys."""

    def _open(self, plan: Plan) -> None:
        """Start a round of the way in which values travel."""

    @abstractmethod
    def _carry(self, client: int, numbers: np.ndarray, dense: np.ndarray) -> int | None:
        """Add a client's values to the sums; returns the bytes, None where they did not arrive."""

    @abstractmethod
    def _sums(self) -> np.ndarray | None:
        """The sums of the round over all processes; None where they cannot be trusted."""


class PaillierChannel(EncryptedChannel):
    """The real thing: ciphertexts in signed messages, the private key in the first process only."""

    def __init__(self, federation: FederatedModule, settings: Encryption, wire: Wire | None = None) -> None:
        """Carry the updates of a federation.

        Args:
            federation: prepared.
            settings: how to encrypt.
            wire: what messages travel over; tests damage it.
        """
        super().__init__(federation, settings)
        self._wire = wire or Wire()
        self._private: PrivateKey | None = None
        self._pool: EncryptionPool | None = None
        self._known: PublicKey | None = None
        self._identities: dict[int, Identity] = {}

    @property
    def _public(self) -> PublicKey:
        assert self._known is not None
        return self._known

    def end(self) -> None:
        """End the workers and forget the key."""
        if self._pool is not None:
            self._pool.close()
        self._pool = self._private = self._known = None

    def _start(self) -> None:
        if self._known is not None:
            return
        settings = self._settings
        if self._federation.global_rank == 0:
            self._private = generate(settings.key_length)
        self._known = from_first(self._private.public if self._private is not None else None)
        self._pool = EncryptionPool(self._public, settings.exponent, settings.workers, settings.progress)

    def _open(self, plan: Plan) -> None:
        self._session = from_first(secrets.token_bytes(16))
        self._round = plan.round + 1
        mine = plan.share(self._federation.global_rank, self._federation.trainer.world_size)
        registry = Registry()
        for client in mine:
            if client != NOBODY:
                registry.enrol(client, self._identities.setdefault(client, Identity(client)).public)
        self._post = Post(registry, self._wire, self._settings.attempts)
        self._sum = EncryptedSum(self._public)
        self._expected: Counter[int] = Counter()

    def _carry(self, client: int, numbers: np.ndarray, dense: np.ndarray) -> int | None:
        sealed = self._sealed(client, dense)
        started = time.perf_counter()
        arrived = self._post.deliver(sealed, self._session, self._round)
        refusal = "" if arrived is None else self._accept(arrived.body, numbers)
        self.work.add += time.perf_counter() - started
        tell_incidents(self._post.take())
        if refusal:
            warnings.warn(f"round {self._round}: the update of client {client} is left out: {refusal}.", stacklevel=2)
        return None if arrived is None or refusal else arrived.size

    def _sealed(self, client: int, dense: np.ndarray) -> Envelope:
        """The client encrypts and signs."""
        assert self._pool is not None
        made = self._pool.encrypt(self._packing.pack(dense))
        self.work.encrypt += made.seconds
        body = bytes.fromhex(self._public.fingerprint) + to_wire(self._public, made.ciphertexts)
        return self._identities[client].seal(self._session, self._round, "ciphertext", SERVER, body)

    def _accept(self, body: bytes, numbers: np.ndarray) -> str:
        """The server adds a client's ciphertexts; returns why it does not, empty where it does."""
        mark = bytes.fromhex(self._public.fingerprint)
        if body[: len(mark)] != mark:
            return "it is encrypted under another key"
        try:
            self._sum.add(numbers, from_wire(self._public, body[len(mark) :]))
        except ValueError as error:
            return str(error)
        self._expected.update(numbers.tolist())
        return ""

    def _sums(self) -> np.ndarray | None:
        """The first process adds up all processes' parts and decrypts; the others get the result."""
        parts = gather((self._sum.positions, to_wire(self._public, self._sum.ciphertexts), self._expected))
        if self._private is None:
            return from_first(None)
        started = time.perf_counter()
        total, expected = EncryptedSum(self._public), Counter[int]()
        for positions, wire, counted in parts:
            total.merge(positions, from_wire(self._public, wire))
            expected.update(counted)
        self.work.add += time.perf_counter() - started
        return from_first(self._decrypted(self._private, total, expected))

    def _decrypted(self, private: PrivateKey, total: EncryptedSum, expected: Counter[int]) -> np.ndarray | None:
        """The clients decrypt the sum and see whether it is one."""
        numbers = np.array(total.positions, dtype=np.int64)
        try:
            found = decrypt(private, total.ciphertexts, self._settings.workers, self._settings.progress)
            opened = self._packing.unpack(found.plaintexts, len(numbers) * self._packing.slots)
            wrong = int((opened.contributors != [expected[number] for number in numbers.tolist()]).sum())
        except CorruptedError as error:
            wrong = len(error.positions)
        except ValueError:  # not even ciphertexts under this key
            wrong = len(numbers)
        if wrong:
            warnings.warn(
                f"round {self._round}: {wrong} of {len(numbers)} encrypted sums are damaged, or belong to another key; "
                "the round is given up and the server's model stays as it is.",
                stacklevel=2,
            )
            return None
        self.work.decrypt, self.work.summed = found.seconds, len(found.plaintexts)
        return self._arrangement.collect(numbers, opened.values)


def _total(parts: list[EncryptionWork]) -> EncryptionWork:
    return EncryptionWork(*(sum(getattr(part, one.name) for part in parts) for one in fields(EncryptionWork)))
