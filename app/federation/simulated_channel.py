"""Paillier's numbers without its cryptography: for studies of utility, and to know what the real thing would take."""

from __future__ import annotations

import numpy as np

from app.crypto.paillier.cost import OperationCost, measure
from app.crypto.paillier.keys import PublicKey, generate
from app.federation.encrypted_channel import OVERHEAD, EncryptedChannel
from app.federation.plan import Plan
from app.federation.processes import from_first, gather


class SimulatedPaillierChannel(EncryptedChannel):
    """The same integers, added without encryption; seconds are counted from a measured sample of ciphertexts."""

    _cost: OperationCost | None = None

    @property
    def _public(self) -> PublicKey:
        return self._known

    def _start(self) -> None:
        if self._cost is None:
            private = generate(self._settings.key_length)
            self._known, self._cost = from_first((private.public, measure(private, self._settings.exponent)))

    def _open(self, plan: Plan) -> None:
        self._total = np.zeros(self._code.length, dtype=np.int64)
        self._touched: set[int] = set()

    def _carry(self, client: int, numbers: np.ndarray, dense: np.ndarray) -> int:
        assert self._cost is not None
        self._total += self._arrangement.collect(numbers, dense)
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
