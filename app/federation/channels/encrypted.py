"""Updates under encryption: coded as integers, many of them in a ciphertext, summed and divided.

What real and simulated encryption have in common. Weights and the submodels' coordinates are public, as the plan is.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from app.crypto.contributors import Contributors
from app.crypto.fixed_point import FixedPoint, Outside
from app.crypto.messages import HEADER_BYTES
from app.crypto.paillier.encryption import Exponent
from app.crypto.paillier.keys import KeyLength, PublicKey
from app.crypto.paillier.packing import Packing, SlotLayout
from app.federation.channels.base import Aggregate, Channel, Form, Message, Reduce, UncoveredCells, Update
from app.federation.channels.integer_code import encoded, weight_code
from app.federation.execution.distributed import gather
from app.federation.plan import Plan
from app.federation.private_coordinates import received_coordinates, uploaded_indices

if TYPE_CHECKING:
    from app.federation.module import FederatedModule


@dataclass(frozen=True)
class Encryption:
    """How updates are encrypted."""

    key_length: KeyLength  # bits of the modulus
    exponent: Exponent  # how the random factor of a ciphertext is drawn
    point: FixedPoint  # precision of a client's change
    outside: Outside  # what is done with changes outside the range
    max_weight: float  # largest weight of a client where weights depend on losses
    workers: int  # processes that encrypt for the clients of this process
    threads: int  # threads that decrypt, while all other processes wait
    attempts: int  # how often a damaged message is requested before the client is left out
    progress: bool  # whether to show progress bars
    name: str  # the user's name of the defense, for messages that name an option
    colluding: bool = False  # whether a client gives the server the private key, which opens every upload


@dataclass
class EncryptionWork:
    """Cost of encryption in one round, over all clients and processes."""

    encrypt: float = 0.0  # CPU seconds of the clients
    add: float = 0.0  # seconds of the server
    decrypt: float = 0.0  # CPU seconds of decrypting the sum once
    sent: int = 0  # ciphertexts that clients uploaded
    summed: int = 0  # ciphertexts of the sum
    values: int = 0  # values that clients uploaded
    clipped: int = 0  # values that were clipped to the range


OVERHEAD = HEADER_BYTES + 64 + 8
"""Bytes of a message beside its ciphertexts: header, signature, mark of the key."""


class EncryptedChannel(Channel):
    """Encodes updates as integers, packs them into ciphertexts, and computes the mean from the decrypted sums.

    Attributes:
        work: cost of the current round.
    """

    carries = "changes"

    def __init__(self, federation: FederatedModule, settings: Encryption) -> None:
        self._federation, self._settings = federation, settings
        self.form: Form = "opened" if settings.colluding else "ciphertext"
        self.work = EncryptionWork()

    def open(self, plan: Plan, theta: Tensor) -> None:
        self._start()
        settings = self._settings
        contributors = Contributors.of(theta.numel(), uploaded_indices(self._federation, plan))
        weights = weight_code(self._federation, settings.max_weight)
        self._code = self._federation.coding(contributors, settings.point, weights, theta, settings.outside)
        self._packing = Packing.fit(settings.key_length, self._code.largest_sum)
        self._slots = SlotLayout.of(self._code.block_of, self._packing.slots)
        self._arrived: dict[int, int] = {}
        self._down: dict[Hashable, int] = {}
        self._plan = plan
        self.work = EncryptionWork()
        self._open(plan)

    def send(self, update: Update) -> Message | None:
        values = encoded(self._code, update, self._federation.space, self._settings.name)
        numbers, dense = self._slots.spread(self._code.positions(update.client), values)
        size = self._carry(update.client, numbers, dense)
        if size is None:
            return None
        self._arrived[update.client] = self._code.weight(update)
        self.work.sent += len(numbers)
        opens = partial(self._code.opened, update, values)
        payload = opens()[0] if self._settings.colluding else None
        return Message(update.client, update.round, update.index, payload, self.form, size, opens)

    def close(self, uncovered: UncoveredCells, reduce: Reduce) -> Aggregate:
        self._arrived = {client: weight for part in gather(self._arrived) for client, weight in part.items()}
        self.work.values, self.work.clipped = self._code.coded, self._code.clipped
        sums = None if self._bare() else self._sums()
        self.work = _total(gather(self.work))
        if sums is None:
            self._arrived = {}
            sums = np.zeros(self._code.length, dtype=np.int64)
        return self._code.decode(sums, self._arrived, uncovered)

    def _bare(self) -> int:
        """How many sums have less noise than they need after drop-outs; then no client decrypts any."""
        bare = self._code.unprotected(self._arrived)
        if bare and self._federation.global_rank == 0:
            warnings.warn(
                f"round {self._plan.round + 1}: after drop-outs, {bare} of {self._code.length} sums have less noise "
                "than they need; the round is given up and no client's update is used.",
                stacklevel=2,
            )
        return bare

    def bytes_down(self, client: int, received: Tensor) -> int:
        """The client receives its coordinates encrypted and decrypts them itself, including the initial model."""
        key = self._plan.key(client)
        if key not in self._down:
            coordinates = received_coordinates(self._federation, self._plan, client)
            self._down[key] = len(self._slots.ciphertexts(self._code.needed(coordinates)))
        return self._down[key] * self._public.ciphertext_bytes

    @property
    def packing(self) -> Packing:
        return self._packing

    @property
    @abstractmethod
    def _public(self) -> PublicKey:
        """The public key of the round's ciphertexts."""

    def _start(self) -> None:
        """Make the keys, before the first round."""

    def _open(self, plan: Plan) -> None:
        """Reset the sums of a round."""

    @abstractmethod
    def _carry(self, client: int, numbers: np.ndarray, dense: np.ndarray) -> int | None:
        """Add a client's values to the sums; returns the bytes sent, None where they did not arrive."""

    @abstractmethod
    def _sums(self) -> np.ndarray | None:
        """The sums of the round over all processes; None where they cannot be trusted."""


def _total(parts: list[EncryptionWork]) -> EncryptionWork:
    return EncryptionWork(*(sum(getattr(part, one.name) for part in parts) for one in fields(EncryptionWork)))
