"""Federations whose updates travel encrypted or masked, and wires that lose, damage and repeat messages."""

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Any

from federation_kit import Blobs, run, sgd, small_federation
from torch import Tensor

from app.crypto.messages import SignedMessage, Transport
from app.federation.local_training import LocalTraining
from app.federation.submodels import PRESETS, ChannelSubset, FedRolex, FjORD, Prefix
from app.models import MLP
from callbacks.defenses.paillier import Paillier
from callbacks.defenses.secure_aggregation import SecureAggregation

NET = partial(MLP, hidden=(12, 8))
SIZES = (6, 11, 8, 5, 9, 7, 10, 4)
MIXED = [1.0, 0.5, 0.5, 0.25, 0.5, 0.25, 1.0, 0.5]
METHODS = {
    **{code: ChannelSubset.preset(code) for code in PRESETS},
    "FedRolex": FedRolex(),
    "FjORD": FjORD(draw="round"),
    "Prefix": Prefix(),
    "independent": ChannelSubset.preset("USR", coupling="independent"),
}

ENCRYPTED = partial(Paillier, key_length=1024, workers=1)
SIMULATED = partial(ENCRYPTED, simulate=True)
MASKED = partial(SecureAggregation, allow_singletons=True)
CHANNELS = {"paillier": ENCRYPTED, "simulated": SIMULATED, "masked": MASKED}


def trained(*callbacks: Any, rounds: int = 1, sizes: Collection[int] = SIZES, **settings: Any) -> Tensor:
    """The server's vector after some rounds."""
    local = LocalTraining(batch_size=8, optimizer=sgd(0.2))
    federation = small_federation(**{"net": NET, "local": local, "capacities": MIXED, **settings})
    return run(federation, Blobs(tuple(sizes)), rounds=rounds, callbacks=callbacks)


def over(transport: Transport, make: Callable[..., Any], **settings: Any) -> Any:
    """A defense whose messages travel over a transport."""

    class Wired(make.func if isinstance(make, partial) else make):
        def setup(self, trainer, pl_module, stage):
            """Replace the transport of the channel, which is replaced itself."""
            super().setup(trainer, pl_module, stage)
            pl_module.channel._transport = transport

    given = {**make.keywords, **settings} if isinstance(make, partial) else settings
    return Wired(**given)


class Dying(Transport):
    """Some clients are never heard of from a step of one round on."""

    def __init__(self, clients: Collection[int], step: str, round_: int = 1) -> None:
        self.clients, self.step, self.round = set(clients), step, round_

    def carry(self, message: SignedMessage) -> SignedMessage | None:
        """Steps follow each other: keys, shares, masked, survivors, reveal."""
        order = ["keys", "shares", "masked", "ciphertext", "survivors", "reveal"]
        late = message.round == self.round and order.index(message.step) >= order.index(self.step)
        return None if late and message.sender in self.clients else message


class Damaging(Transport):
    """Flips one bit of a client's messages of one step, the first so many times."""

    def __init__(self, client: int, step: str, times: int, round_: int = 1) -> None:
        self.client, self.step, self.times, self.round = client, step, times, round_

    def carry(self, message: SignedMessage) -> SignedMessage | None:
        """Damage the middle of the body."""
        hit = (message.sender, message.step, message.round) == (self.client, self.step, self.round)
        if not hit or self.times == 0:
            return message
        self.times -= 1
        body, middle = bytearray(message.body), len(message.body) // 2
        body[middle] ^= 1
        return replace(message, body=bytes(body))


class Replaying(Transport):
    """Delivers a client's message of the round before instead of the present one, in every attempt."""

    def __init__(self, client: int, step: str) -> None:
        self.client, self.step = client, step
        self.kept: dict[int, SignedMessage] = {}

    def carry(self, message: SignedMessage) -> SignedMessage | None:
        """Keep it, and send the last round's."""
        if (message.sender, message.step) != (self.client, self.step):
            return message
        self.kept[message.round] = message
        return self.kept.get(message.round - 1, message)
