"""Updates under Paillier encryption, real or simulated: the server adds ciphertexts that it cannot read."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from app.crypto.cost import OperationCost, measure_paillier
from app.crypto.messages import SERVER, KeyRegistry, MessageDelivery, SignedMessage, SigningKey, Transport, new_session
from app.crypto.paillier.encryption import EncryptionPool, decrypt
from app.crypto.paillier.keys import PrivateKey, PublicKey, generate
from app.crypto.paillier.packing import CorruptedError
from app.crypto.paillier.sums import EncryptedSum, from_bytes, to_bytes
from app.federation.channels.encrypted import OVERHEAD, EncryptedChannel, Encryption
from app.federation.channels.integer_code import warn_of_failures
from app.federation.execution.distributed import from_first, gather
from app.federation.plan import NO_CLIENT, Plan

if TYPE_CHECKING:
    from app.federation.module import FederatedModule


class PaillierChannel(EncryptedChannel):
    """Real Paillier encryption in signed messages; plays the clients' part and the server's.

    `transport` is what messages travel over; tests damage it.
    """

    def __init__(self, federation: FederatedModule, settings: Encryption, transport: Transport | None = None) -> None:
        super().__init__(federation, settings)
        self._transport = transport or Transport()
        self._private: PrivateKey | None = None
        self._pool: EncryptionPool | None = None
        self._known: PublicKey | None = None
        self._identities: dict[int, SigningKey] = {}

    @property
    def _public(self) -> PublicKey:
        assert self._known is not None
        return self._known

    def end(self) -> None:
        if self._pool is not None:
            self._pool.close()
        self._pool = self._private = self._known = None
        self._identities = {}

    def _start(self) -> None:
        if self._known is not None:
            return
        settings = self._settings
        if self._federation.global_rank == 0:
            self._private = generate(settings.key_length)
        self._known = from_first(self._private.public if self._private is not None else None)
        self._pool = EncryptionPool(self._public, settings.exponent, settings.workers, settings.progress)

    def _open(self, plan: Plan) -> None:
        self._session = from_first(new_session())
        self._round = plan.round + 1
        mine = plan.share(self._federation.global_rank, self._federation.trainer.world_size)
        registry = KeyRegistry()
        for client in mine:
            if client != NO_CLIENT:
                registry.enrol(client, self._identities.setdefault(client, SigningKey(client)).public)
        self._delivery = MessageDelivery(registry, self._transport, self._settings.attempts)
        self._sum = EncryptedSum(self._public)
        self._expected: Counter[int] = Counter()

    def _carry(self, client: int, numbers: np.ndarray, dense: np.ndarray) -> int | None:
        sealed = self._sealed(client, dense)
        started = time.perf_counter()
        arrived = self._delivery.deliver(sealed, self._session, self._round)
        refusal = "" if arrived is None else self._accept(arrived.body, numbers)
        self.work.add += time.perf_counter() - started
        warn_of_failures(self._delivery.take_failures())
        if refusal:
            warnings.warn(f"round {self._round}: the update of client {client} is left out: {refusal}.", stacklevel=2)
        return None if arrived is None or refusal else arrived.size

    def _sealed(self, client: int, dense: np.ndarray) -> SignedMessage:
        assert self._pool is not None
        made = self._pool.encrypt(self._packing.pack(dense))
        self.work.encrypt += made.seconds
        body = bytes.fromhex(self._public.fingerprint) + to_bytes(self._public, made.ciphertexts)
        return self._identities[client].sign(self._session, self._round, "ciphertext", SERVER, body)

    def _accept(self, body: bytes, numbers: np.ndarray) -> str:
        """Add a client's ciphertexts to the sum; returns why they are refused, empty where they are not."""
        mark = bytes.fromhex(self._public.fingerprint)
        if body[: len(mark)] != mark:
            return "it is encrypted under another key"
        try:
            self._sum.add(numbers, from_bytes(self._public, body[len(mark) :]))
        except ValueError as error:
            return str(error)
        self._expected.update(numbers.tolist())
        return ""

    def _sums(self) -> np.ndarray | None:
        """The first process adds up all processes' parts and decrypts; the others receive the result."""
        parts = gather((self._sum.positions, to_bytes(self._public, self._sum.ciphertexts), self._expected))
        if self._private is None:
            return from_first(None)
        started = time.perf_counter()
        total, expected = EncryptedSum(self._public), Counter[int]()
        for positions, data, counted in parts:
            total.add(positions, from_bytes(self._public, data))
            expected.update(counted)
        self.work.add += time.perf_counter() - started
        return from_first(self._decrypted(self._private, total, expected))

    def _decrypted(self, private: PrivateKey, total: EncryptedSum, expected: Counter[int]) -> np.ndarray | None:
        """Decrypt the sum and check that every ciphertext has the expected number of contributors."""
        numbers = np.array(total.positions, dtype=np.int64)
        try:
            decrypted = decrypt(private, total.ciphertexts, self._settings.threads, self._settings.progress)
            opened = self._packing.unpack(decrypted.plaintexts, len(numbers) * self._packing.slots)
            wrong = int((opened.contributors != [expected[number] for number in numbers.tolist()]).sum())
        except CorruptedError as error:
            wrong = len(error.positions)
        except ValueError:  # not even ciphertexts under this key
            wrong = len(numbers)
        if wrong:
            warnings.warn(
                f"round {self._round}: {wrong} of {len(numbers)} encrypted sums are damaged, or belong to another key; "
                "the round is given up and no client's update is used.",
                stacklevel=2,
            )
            return None
        self.work.decrypt, self.work.summed = decrypted.seconds, len(decrypted.plaintexts)
        return self._slots.collect(numbers, opened.values)


class SimulatedPaillierChannel(EncryptedChannel):
    """The same integers, added without encryption; seconds are extrapolated from a measured sample of ciphertexts."""

    _cost: OperationCost | None = None

    @property
    def _public(self) -> PublicKey:
        return self._known

    def _start(self) -> None:
        if self._cost is None:
            private = generate(self._settings.key_length)
            self._known, self._cost = from_first((private.public, measure_paillier(private, self._settings.exponent)))

    def _open(self, plan: Plan) -> None:
        self._total = np.zeros(self._code.length, dtype=np.int64)
        self._touched: set[int] = set()

    def _carry(self, client: int, numbers: np.ndarray, dense: np.ndarray) -> int:
        assert self._cost is not None
        self._total += self._slots.collect(numbers, dense)
        self._touched.update(numbers.tolist())
        self.work.encrypt += len(numbers) * self._cost.encrypt
        self.work.add += len(numbers) * self._cost.add
        return OVERHEAD + len(numbers) * self._public.ciphertext_bytes

    def _sums(self) -> np.ndarray:
        assert self._cost is not None
        touched = set[int]().union(*gather(self._touched))
        if self._federation.global_rank == 0:  # work of all processes is added up, and there is one decryption
            self.work.summed, self.work.decrypt = len(touched), len(touched) * self._cost.decrypt
        return np.asarray(np.sum(gather(self._total), axis=0, dtype=np.int64))
