"""Paillier: updates are encrypted, the server adds ciphertexts."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

from lightning.pytorch import LightningModule, Trainer

from app.common.errors import Problem
from app.common.ranges import Bits, Count, Positive
from app.crypto.fixed_point import FixedPoint, Outside
from app.crypto.paillier.encryption import Exponent
from app.crypto.paillier.keys import KeyLength, security_bits
from app.crypto.paillier.packing import Packing
from app.federation.channels.base import Aggregate
from app.federation.channels.encrypted import EncryptedChannel, Encryption
from app.federation.channels.integer_code import largest_sum
from app.federation.channels.paillier import PaillierChannel, SimulatedPaillierChannel
from app.federation.execution.executors import available_cores
from app.federation.hooks import FederatedCallback
from app.federation.module import FederatedModule
from app.privacy.settings import raised_problems
from app.privacy.statements import ChannelStatement
from app.privacy.traits import Trait


class Paillier(FederatedCallback):
    """Homomorphic encryption (Paillier 1999) with many values per ciphertext: the server adds what it cannot read.

    Clients share a private key that the server does not have; they decrypt the sum. Encryption hides updates from an
    honest-but-curious server that no client helps, and from nobody else: the private key opens every single upload, and
    a server that hands clients one upload as the sum is not noticed. The released model is as open to attack as ever.

    Example::

        rampart fit --defenses.paillier Paillier --defenses.paillier.key_length 2048
        rampart fit --defenses.paillier Paillier --defenses.paillier.simulate true

    Args:
        key_length: bits of the modulus; 1024 is for comparison with older work and no longer safe.
        bits: of one value with its sign, in [8, 32]; fewer make fewer ciphertexts.
        range: largest change of a parameter in one round; the precision is range / 2^(bits - 1).
        outside: stop where a change is larger, or cut it to the range.
        exponent: where a ciphertext's randomness comes from: `short` and `half` exponents of a fixed element, or
            `full`, which is the conservative choice and many times slower.
        simulate: leave the cryptography out: the same numbers, and costs extrapolated from a measured sample.
        max_weight: largest weight of a client under --model.server QFFL, whose weights are encrypted, too.
        workers: processes that encrypt and threads that decrypt; without a number, one per core.
        attempts: how often a damaged message is sent before the client is left out of the round.
        colluding: attack the run as a server to whom one client gives the private key: it reads every upload.
    """

    def __init__(
        self,
        key_length: KeyLength = 2048,
        bits: Bits = 20,
        range: Positive = 2.0,
        outside: Outside = "refuse",
        exponent: Exponent = "short",
        simulate: bool = False,
        max_weight: Positive = 16.0,
        workers: Count | None = None,
        attempts: Count = 2,
        colluding: bool = False,
    ) -> None:
        self.key_length, self.exponent, self.simulate = key_length, exponent, simulate
        self.point, self.outside = FixedPoint(bits, range), outside
        self.max_weight, self.workers, self.attempts, self.colluding = max_weight, workers, attempts, colluding
        self._channel: EncryptedChannel | None = None
        self._numbers: dict[str, float] = {}
        self._costs: dict[str, float] = {}

    def traits(self) -> frozenset[Trait]:
        return frozenset({"channel", "unreadable-mean"})

    def problems(self, federation: FederatedModule) -> Iterable[Problem]:
        largest = largest_sum(federation, self.point, self.max_weight)
        yield from raised_problems(lambda: Packing.fit(self.key_length, largest))

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        assert isinstance(pl_module, FederatedModule)
        pl_module.prepare()
        cores = available_cores()
        settings = Encryption(
            key_length=self.key_length,
            exponent=self.exponent,
            point=self.point,
            outside=self.outside,
            max_weight=self.max_weight,
            workers=self.workers or max(1, cores // trainer.num_devices),
            threads=self.workers or cores,
            attempts=self.attempts,
            progress=trainer.is_global_zero and trainer.progress_bar_callback is not None,
            name=self.given_name,
            colluding=self.colluding,
        )
        make = SimulatedPaillierChannel if self.simulate else PaillierChannel
        self._channel = pl_module.channel = make(pl_module, settings)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        if security_bits(self.key_length) < 112:
            warnings.warn(
                f"Paillier: a key of {self.key_length} bits can be broken; it is for comparison with older work. Set "
                f"--defenses.{self.given_name}.key_length 2048 for anything else.",
                stacklevel=2,
            )
        if self.simulate:
            warnings.warn(
                "Paillier is simulated: nothing is encrypted, and its seconds are extrapolated from a measured sample.",
                stacklevel=2,
            )

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if self._channel is not None:
            self._channel.end()

    def on_server_update(self, trainer: Trainer, federation: FederatedModule, aggregate: Aggregate) -> None:
        assert self._channel is not None
        work, name = self._channel.work, "paillier_simulated" if self.simulate else "paillier"
        self._costs = {
            f"{name}/encrypt_seconds": work.encrypt,
            f"{name}/add_seconds": work.add,
            f"{name}/decrypt_seconds": work.decrypt,
            f"{name}/ciphertexts": float(work.sent),
            f"{name}/ciphertexts_of_the_sum": float(work.summed),
            "client_seconds/cryptography": work.encrypt + work.decrypt * aggregate.updates,  # each decrypts the sum
        }
        self._numbers = {
            "paillier/values_per_ciphertext": float(self._channel.packing.slots),
            "paillier/clipped": work.clipped / max(1, work.values),
        }

    def measurements(self) -> dict[str, float]:
        return self._numbers

    def costs(self) -> dict[str, float]:
        """CPU seconds of all clients' encryption, of the server's additions and of one decryption of the sum."""
        return self._costs

    def channel_statement(self, federation: FederatedModule) -> ChannelStatement:
        notes = [
            "all clients hold one private key: with the help of a single client, the server opens every single upload",
            "a server that hands clients one upload as the sum, with the count of contributors adjusted, is not "
            "noticed; the next model then shows that upload to all clients, and to everybody where it is released",
            "every client can read every sum, and the server can change sums unnoticed",
            "the released model is as open to attack as without encryption",
            "which weights a client trains, and its number of samples where they are weights, are public",
        ]
        if self.exponent != "full":
            notes.append(f"noise from {self.exponent} exponents of a fixed element, not in constant time")
        if security_bits(self.key_length) < 112:
            notes.append(f"{self.key_length} bits are about {security_bits(self.key_length)} bits of security: too few")
        return ChannelStatement(
            mechanism=f"Paillier, {self.key_length} bits",
            hides="nothing: one client gives the server the private key, and every single upload is read"
            if self.colluding
            else "a server that follows the protocol sees neither updates nor sums nor models before the final one is "
            "released",
            trusts="all clients: none gives the shared private key, or an upload it opens, to the server or to anybody "
            "on the way; and the server: it adds up what it received",
            step=self.point.step,
            simulated=self.simulate,
            notes=tuple(notes),
        )
