"""The server's side of one round of secure aggregation: it learns the sum and which clients are in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

import numpy as np

from app.crypto.messages import SERVER, KeyRegistry, RejectedMessageError, SignedMessage, Step
from app.crypto.secure_aggregation.agreement import KeyPair, PublicKeys, seed_digest
from app.crypto.secure_aggregation.layout import VectorLayout
from app.crypto.secure_aggregation.masks import PairwiseKeys, pairwise_mask, remove_self_masks
from app.crypto.secure_aggregation.secret_sharing import (
    AbortedRoundError,
    SecretKind,
    Share,
    join,
    read,
    require_threshold,
)
from app.crypto.secure_aggregation.streams import from_words

Shares = dict[tuple[int, SecretKind], dict[int, Share]]
"""Shares by owner, secret and point."""


class AggregationServer:
    """Collects keys, relays shares, adds masked vectors up and removes the masks (Bonawitz et al. 2017, figure 4).

    Messages are verified with the registry of the clients' identity keys. Where several processes take part, each may
    hold a part that only accepts vectors; the parts are merged into one that has seen keys and shares.

    Attributes:
        roster: keys of the clients that advertised theirs.
        sum: (length) words, the masked vectors added up so far.
        arrived: clients whose masked vectors are in the sum, ascending.
    """

    def __init__(self, session: bytes, round_: int, layout: VectorLayout, registry: KeyRegistry) -> None:
        self.session, self.round, self.layout, self._registry = session, round_, layout, registry
        self.roster: dict[int, PublicKeys] = {}
        self.sum = np.zeros(layout.length, dtype=layout.word)
        self.arrived: list[int] = []
        self._shared: set[int] = set()
        self._excluded: set[int] = set()

    def collect_keys(self, messages: Iterable[SignedMessage]) -> list[SignedMessage]:
        """The signed messages that make the roster, by client in ascending order, to be passed on to all clients.

        Raises:
            RejectedMessageError: where a message is not one of this step, or its keys cannot be used.
        """
        keys: dict[int, PublicKeys] = {}
        trial = KeyPair(SERVER)
        advertised = sorted(messages, key=lambda message: message.sender)
        for message in advertised:
            self._expect(message, "keys")
            keys[message.sender] = _usable(message, trial)
        self.roster = keys
        return advertised

    def keys_for(self, client: int, advertised: Iterable[SignedMessage]) -> list[SignedMessage]:
        """Those of the signed messages that a client needs: of itself, its neighbours and those that mask with it."""
        own = self.layout.holders(client).keys() | set(self.layout.partners(client))
        return [message for message in advertised if message.sender in own]

    def relay_shares(self, messages: Iterable[SignedMessage]) -> dict[int, dict[int, bytes]]:
        """Encrypted shares by recipient and sender; may be called several times.

        A message of a wrong length comes apart into what no recipient can decrypt.

        Raises:
            RejectedMessageError: where a message is not one of this step, or from a client outside the roster.
        """
        mail: dict[int, dict[int, bytes]] = {client: {} for client in self.roster}
        for message in messages:
            self._expect(message, "shares")
            sender, body = message.sender, message.body
            if sender not in self.roster:
                raise RejectedMessageError(sender, "shares", "it is not in the roster")
            others = [client for client in self.layout.holders(sender) if client in self.roster and client != sender]
            size = len(body) // max(1, len(others))
            for place, recipient in enumerate(others):
                mail[recipient][sender] = body[place * size : (place + 1) * size]
            self._shared.add(sender)
        return mail

    def exclude(self, clients: Iterable[int]) -> None:
        """Leave out clients whose shares did not decrypt at a recipient."""
        self._excluded.update(clients)

    @property
    def masking_clients(self) -> list[int]:
        """Clients that go on to mask, ascending: their shares arrived, and no recipient rejected them.

        Empty where they are fewer than the threshold.
        """
        complete = [client for client in self.roster if client in self._shared and client not in self._excluded]
        return complete if len(complete) >= self.layout.threshold else []

    @property
    def dropped(self) -> list[int]:
        """Masking clients whose masked vectors did not arrive, ascending."""
        return sorted(set(self.masking_clients) - set(self.arrived))

    def add_masked(self, message: SignedMessage) -> None:
        """Add a masked vector to the sum.

        Raises:
            RejectedMessageError: where it is not the first masked vector of a masking client, or has the wrong length.
        """
        self._expect(message, "masked")
        client = message.sender
        if client not in (self.masking_clients if self.roster else self.layout.positions):
            raise RejectedMessageError(client, "masked", f"client {client} is not among the masking clients")
        if client in self.arrived:
            raise RejectedMessageError(client, "masked", "its masked vector arrived before")
        size, width = self.layout.size(client), self.layout.word.itemsize
        if len(message.body) != size * width:
            reason = f"it has {len(message.body)} bytes, not the {size * width} of {size} positions"
            raise RejectedMessageError(client, "masked", reason)
        self.sum[self.layout.place(client)] += np.frombuffer(message.body, dtype=self.layout.word)
        self.arrived = sorted([*self.arrived, client])

    def merge(self, sum_: np.ndarray, arrived: Iterable[int]) -> None:
        """Add the sum of another process with the clients in it; a ValueError where the two do not fit together."""
        clients = list(arrived)
        known = self.masking_clients if self.roster else list(self.layout.positions)
        if set(clients) & set(self.arrived) or not set(clients) <= set(known):
            raise ValueError(f"clients {clients} cannot be added to {self.arrived}; the masking clients are {known}")
        if sum_.dtype != self.sum.dtype or sum_.shape != self.sum.shape:
            raise ValueError(f"{sum_.shape} {sum_.dtype} cannot be added to {self.sum.shape} {self.sum.dtype}")
        self.sum += sum_
        self.arrived = sorted(self.arrived + clients)

    def unmask(
        self, reveals: Iterable[SignedMessage], bindings: Callable[[int, int], bytes] | None = None
    ) -> np.ndarray:
        """Remove the self masks of clients that arrived, and the pairwise masks left over by those that dropped out.

        Args:
            reveals: messages with shares, from at least the threshold of clients.
            bindings: digest of the values sent to two clients alike, for masks bound to them; None for others.

        Returns:
            (length) int64 sums of the values that arrived.

        Raises:
            AbortedRoundError: where fewer clients than the threshold arrived or answered, with the missing ones, or a
                secret does not come out as its owner published it.
            RejectedMessageError: where an answer is not one of this step.
        """
        threshold, arrived = self.layout.threshold, self.arrived
        require_threshold(len(arrived), threshold, "sent masked vectors", self.layout.positions.keys() - set(arrived))
        shares, answered = self._collect(reveals)
        require_threshold(len(answered), threshold, "revealed shares", set(arrived) - answered)
        total = self.sum.copy()
        seeds = ((client, self._recovered(shares, client, SecretKind.SELF_MASK)) for client in arrived)
        remove_self_masks(total, self.layout, seeds)
        for client in self.dropped:
            keys = self._keys_of(client, self._recovered(shares, client, SecretKind.MASKING_KEY), bindings)
            # Survivors carry the opposite of what the client would have added: adding it makes both vanish.
            partners = self.layout.partners(client)
            peers = (peer for peer in arrived if peer in partners)
            total[self.layout.place(client)] += pairwise_mask(self.layout, keys, peers)
        return from_words(total, self.layout.word)

    def _collect(self, reveals: Iterable[SignedMessage]) -> tuple[Shares, set[int]]:
        """The revealed shares, and the clients that revealed them."""
        shares: Shares = {}
        answered = set()
        for message in reveals:
            self._expect(message, "reveal")
            sender = message.sender
            if sender not in self.arrived:
                raise RejectedMessageError(sender, "reveal", "its masked vector did not arrive")
            for held in read(sender, "reveal", message.body):
                point = self.layout.holders(held.owner).get(sender) if held.owner in self.roster else None
                if (held.share.point, held.share.threshold) != (point, self.layout.needed):
                    raise RejectedMessageError(sender, "reveal", "it holds shares of another client")
                shares.setdefault((held.owner, held.secret), {})[held.share.point] = held.share
            answered.add(sender)
        return shares, answered

    def _recovered(self, shares: Shares, owner: int, secret: SecretKind) -> bytes:
        """A client's secret, checked against what the client published.

        One wrong share among more than needed does no harm: neighbouring points, around the circle, are tried in turn.
        """
        held, threshold = shares.get((owner, secret), {}), self.layout.needed
        points, title = sorted(held), secret.name.lower().replace("_", " ")
        if len(points) < threshold:
            reason = f"{len(points)} shares of at least {threshold}"
            raise AbortedRoundError(f"the {title} of client {owner} cannot be put together: {reason}")
        for start in range(len(points)):
            chosen = (points[start:] + points[:start])[:threshold]
            with suppress(ValueError):
                found = join({point: held[point] for point in chosen})
                if self._is_published(owner, secret, found):
                    return found
        raise AbortedRoundError(
            f"the {len(points)} shares of client {owner} do not give the {title} that it published; a client handed "
            "out or revealed a wrong share"
        )

    def _is_published(self, owner: int, secret: SecretKind, value: bytes) -> bool:
        keys = self.roster[owner]
        if secret == SecretKind.SELF_MASK:
            return seed_digest(value) == keys.seed_digest
        return KeyPair(owner, value).public == keys.masking

    def _keys_of(self, client: int, secret: bytes, bindings: Callable[[int, int], bytes] | None) -> PairwiseKeys:
        """The keys of a client that dropped out, from its private key."""
        bound = None if bindings is None else lambda peer: bindings(client, peer)
        return PairwiseKeys(
            KeyPair(client, secret), self.session, self.round, lambda peer: self.roster[peer].masking, bound
        )

    def _expect(self, message: SignedMessage, step: Step) -> None:
        client = message.sender
        self._registry.check(message, self.session, self.round, step)
        if message.recipient != SERVER:
            raise RejectedMessageError(client, step, "it is meant for another recipient")
        if client not in self.layout.positions:
            raise RejectedMessageError(client, step, f"client {client} is not in this round")


def _usable(message: SignedMessage, trial: KeyPair) -> PublicKeys:
    """The keys in a message, after a trial agreement: a key of low order gives everybody the same secret."""
    try:
        keys = PublicKeys.from_bytes(message.body)
        trial.agree(keys.encryption, b"")
        trial.agree(keys.masking, b"")
    except ValueError:
        raise RejectedMessageError(message.sender, "keys", "its keys are not usable public keys") from None
    return keys
