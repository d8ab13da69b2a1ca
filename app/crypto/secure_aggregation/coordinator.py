"""The server's side of one round of secure aggregation: it learns the sum and who took part."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from app.crypto.messages import SERVER, Envelope, RejectedError, Step
from app.crypto.secure_aggregation.agreement import KeyPair, PublicKeys
from app.crypto.secure_aggregation.layout import Layout
from app.crypto.secure_aggregation.masks import PairKeys, pairwise, remove_own
from app.crypto.secure_aggregation.secret_sharing import Secret, Share, join, read
from app.crypto.secure_aggregation.streams import from_words
from app.crypto.secure_aggregation.threshold import AbortedError, require

Shares = dict[tuple[int, Secret], dict[int, Share]]
"""Shares by owner, secret and point."""


class Coordinator:
    """Collects keys, passes shares on, adds masked vectors up and takes the masks away.

    Signatures are checked before, where messages arrive. Where several processes take part, each may hold a part that
    only accepts vectors; the parts are merged into one that has seen keys and shares.

    Args:
        session: name of this run of the protocol, 16 bytes.
        round_: number of the round.
        layout: what is public about the vectors of the round.

    Attributes:
        roster: keys of the clients that advertised theirs.
        sum: (length) words, the masked vectors added up so far.
        arrived: clients whose masked vectors are in the sum, ascending.
    """

    def __init__(self, session: bytes, round_: int, layout: Layout) -> None:
        self.session, self.round, self.layout = session, round_, layout
        self.roster: dict[int, PublicKeys] = {}
        self.sum = np.zeros(layout.length, dtype=layout.word)
        self.arrived: list[int] = []
        self._shared: dict[int, set[int]] = {}
        self._excluded: set[int] = set()
        self._settled: list[int] | None = None

    def register(self, envelopes: Iterable[Envelope]) -> dict[int, PublicKeys]:
        """Collect the keys of the round.

        Returns:
            The roster, by client in ascending order; clients refuse to share secrets where it is too small.

        Raises:
            RejectedError: where a message is not one of this step, or its keys cannot be used.
        """
        found: dict[int, PublicKeys] = {}
        for envelope in envelopes:
            self._expect(envelope, "keys")
            found[envelope.sender] = _usable(envelope)
        self.roster = dict(sorted(found.items()))
        self._settled = None
        return self.roster

    def relay(self, envelopes: Iterable[Envelope]) -> dict[int, list[Envelope]]:
        """Sort encrypted shares by recipient; may be called several times.

        Raises:
            RejectedError: where a message is not one of this step, or from or to somebody outside the roster.
        """
        mail: dict[int, list[Envelope]] = {client: [] for client in self.roster}
        self._settled = None
        for envelope in envelopes:
            self._expect(envelope, "shares")
            if envelope.sender not in self.roster or envelope.recipient not in self.roster:
                raise RejectedError(envelope.sender, "shares", "sender or recipient is not in the roster")
            self._shared.setdefault(envelope.sender, set()).add(envelope.recipient)
            mail[envelope.recipient].append(envelope)
        return mail

    def exclude(self, clients: Iterable[int]) -> None:
        """Leave out clients whose shares did not open at a recipient."""
        self._excluded.update(clients)
        self._settled = None

    @property
    def settled(self) -> list[int]:
        """Clients that go on, ascending: their shares reached everybody in the roster, and nobody rejected them.

        Nobody goes on where they are fewer than the threshold.
        """
        if self._settled is None:  # asked for with every message, and takes the square of the number of clients
            others = {client: self.roster.keys() - {client} for client in self.roster if client not in self._excluded}
            complete = [client for client, needed in others.items() if needed <= self._shared.get(client, set())]
            self._settled = complete if len(complete) >= self.layout.threshold else []
        return self._settled

    @property
    def dropped(self) -> list[int]:
        """Clients that settled but whose masked vectors did not arrive, ascending."""
        return sorted(set(self.settled) - set(self.arrived))

    def accept(self, envelope: Envelope) -> None:
        """Add a masked vector to the sum.

        Raises:
            RejectedError: where it is not the first masked vector of a client that settled, or has the wrong length.
        """
        self._expect(envelope, "masked")
        client = envelope.sender
        if client not in (self.settled if self.roster else self.layout.positions):
            raise RejectedError(client, "masked", f"client {client} is not among those that settled")
        if client in self.arrived:
            raise RejectedError(client, "masked", "its masked vector arrived before")
        size, width = self.layout.size(client), self.layout.word.itemsize
        if len(envelope.body) != size * width:
            reason = f"it has {len(envelope.body)} bytes, not the {size * width} of {size} positions"
            raise RejectedError(client, "masked", reason)
        self.sum[self.layout.place(client)] += np.frombuffer(envelope.body, dtype=self.layout.word)
        self.arrived = sorted([*self.arrived, client])

    def merge(self, sum_: np.ndarray, arrived: Iterable[int]) -> None:
        """Add the part of another process.

        Args:
            sum_: its sum.
            arrived: the clients in it.

        Raises:
            ValueError: where a client is in both parts or did not settle, or the words are of another kind.
        """
        clients = list(arrived)
        known = self.settled if self.roster else list(self.layout.positions)
        if set(clients) & set(self.arrived) or not set(clients) <= set(known):
            raise ValueError(f"clients {clients} cannot be added to {self.arrived}; those that settled are {known}")
        if sum_.dtype != self.sum.dtype or sum_.shape != self.sum.shape:
            raise ValueError(f"{sum_.shape} {sum_.dtype} cannot be added to {self.sum.shape} {self.sum.dtype}")
        self.sum += sum_
        self.arrived = sorted(self.arrived + clients)

    def unmask(self, reveals: Iterable[Envelope], bindings: Callable[[int, int], bytes] | None = None) -> np.ndarray:
        """Take away the own masks of those that arrived, and what is left of the masks of those that did not.

        Args:
            reveals: what clients revealed, from at least the threshold.
            bindings: digest of what the server sent to two clients alike, for masks bound to it; None for others.

        Returns:
            (length) int64 sums of the values that arrived.

        Raises:
            AbortedError: where fewer clients than the threshold arrived or answered; it names who is missing.
            RejectedError: where an answer is not one of this step.
        """
        threshold, arrived = self.layout.threshold, self.arrived
        require(len(arrived), threshold, "sent masked vectors", self.layout.positions.keys() - set(arrived))
        shares, answered = self._collect(reveals)
        require(len(answered), threshold, "revealed shares", set(arrived) - answered)
        total = self.sum.copy()
        remove_own(total, self.layout, ((client, _joined(shares, client, Secret.OWN_MASK)) for client in arrived))
        for client in self.dropped:
            keys = self._keys_of(client, _joined(shares, client, Secret.MASKING_KEY), bindings)
            # Survivors carry the opposite of what the client would have added: adding it makes both vanish.
            total[self.layout.place(client)] += pairwise(self.layout, keys, arrived)
        return from_words(total, self.layout.word)

    def _collect(self, reveals: Iterable[Envelope]) -> tuple[Shares, set[int]]:
        """The revealed shares, and who revealed them."""
        points, threshold = self.layout.points, self.layout.threshold
        shares: Shares = {}
        answered = set()
        for envelope in reveals:
            self._expect(envelope, "reveal")
            if envelope.sender not in self.arrived:
                raise RejectedError(envelope.sender, "reveal", "its masked vector did not arrive")
            for held in read(envelope.sender, "reveal", envelope.body):
                if (held.share.point, held.share.threshold) != (points[envelope.sender], threshold):
                    raise RejectedError(envelope.sender, "reveal", "it holds shares of somebody else")
                shares.setdefault((held.owner, held.secret), {})[held.share.point] = held.share
            answered.add(envelope.sender)
        return shares, answered

    def _keys_of(self, client: int, secret: bytes, bindings: Callable[[int, int], bytes] | None) -> PairKeys:
        """The keys of a client that dropped out, from its private key."""
        pair = KeyPair(client, secret)
        if pair.public != self.roster[client].masking:
            raise AbortedError(f"the shares of client {client} do not give the masking key that it advertised")
        bound = None if bindings is None else lambda peer: bindings(client, peer)
        return PairKeys(pair, self.session, self.round, lambda peer: self.roster[peer].masking, bound)

    def _expect(self, envelope: Envelope, step: Step) -> None:
        """Reject what belongs elsewhere."""
        client = envelope.sender
        if (envelope.session, envelope.round) != (self.session, self.round):
            raise RejectedError(client, step, "it belongs to another round (replayed)")
        if envelope.step != step or (envelope.recipient == SERVER) != (step != "shares"):
            raise RejectedError(client, step, f"it is meant for another step ({envelope.step}) or recipient")
        if client not in self.layout.positions:
            raise RejectedError(client, step, f"client {client} is not in this round")


def _usable(envelope: Envelope) -> PublicKeys:
    """The keys in a message, tried out: a key that gives everybody the same secret is no key."""
    try:
        keys = PublicKeys.from_bytes(envelope.body)
        trial = KeyPair(SERVER)
        trial.agree(keys.encryption, b"")
        trial.agree(keys.masking, b"")
    except ValueError:
        raise RejectedError(envelope.sender, "keys", "its keys are not usable public keys") from None
    return keys


def _joined(shares: Shares, client: int, secret: Secret) -> bytes:
    """A client's secret from what was revealed of it."""
    try:
        return join(shares.get((client, secret), {}))
    except ValueError as error:
        raise AbortedError(f"the secret of client {client} cannot be put together: {error}") from None
