"""Updates under encryption: coded as integers, many of them in a ciphertext, summed and divided.

What real and simulated encryption have in common. Weights and the submodels' coordinates are public, as the plan is.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from app.crypto.contributors import Contributors
from app.crypto.fixed_point import FixedPoint, Outside
from app.crypto.messages import HEADER_BYTES
from app.crypto.paillier.encryption import Exponent
from app.crypto.paillier.keys import KeyLength, PublicKey
from app.crypto.paillier.packing import Packing, SlotLayout
from app.federation.channels.base import Aggregate, Channel, Message, Reduce, UncoveredCells, Update
from app.federation.channels.integer_code import IntegerCode, encoded, weight_code
from app.federation.execution.distributed import gather
from app.federation.plan import Plan
from app.federation.private_coordinates import received_coordinates, uploaded_indices

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
        workers: processes that encrypt for the clients of this process.
        threads: that decrypt, while all other processes wait.
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
    threads: int
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
    carries = "changes"

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
        contributors = Contributors.of(theta.numel(), uploaded_indices(self._federation, plan))
        weights = weight_code(self._federation, settings.max_weight)
        self._code = IntegerCode(contributors, settings.point, weights, theta, settings.outside)
        self._packing = Packing.fit(settings.key_length, self._code.largest_sum)
        self._slots = SlotLayout.of(self._code.block_of, self._packing.slots)
        self._arrived: dict[int, int] = {}
        self._down: dict[Hashable, int] = {}
        self._plan = plan
        self.work = EncryptionWork()
        self._open(plan)

    def send(self, update: Update) -> Message | None:
        """Encrypt and add one update."""
        values = encoded(self._code, update, self._federation.space, self._settings.name)
        numbers, dense = self._slots.spread(self._code.positions(update.client), values)
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
        """The client gets its coordinates encrypted and decrypts them itself, the very first model included."""
        key = self._plan.key(client)
        if key not in self._down:
            coordinates = received_coordinates(self._federation, self._plan, client)
            self._down[key] = len(self._slots.ciphertexts(coordinates))
        return self._down[key] * self._public.ciphertext_bytes

    @property
    def packing(self) -> Packing:
        """How values are packed in the present round."""
        return self._packing

    @property
    @abstractmethod
    def _public(self) -> PublicKey:
        """The key that everybody knows."""

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


def _total(parts: list[EncryptionWork]) -> EncryptionWork:
    return EncryptionWork(*(sum(getattr(part, one.name) for part in parts) for one in fields(EncryptionWork)))
