"""A client's side of one round of secure aggregation."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from app.crypto.messages import SERVER, RejectedMessageError, SecretHolder, SignedMessage, SigningKey, Step
from app.crypto.secure_aggregation.agreement import (
    KeyPair,
    PublicKeys,
    aead_decrypt,
    aead_encrypt,
    domain_label,
    seed_digest,
)
from app.crypto.secure_aggregation.layout import VectorLayout
from app.crypto.secure_aggregation.masks import PairwiseKeys, pairwise_mask
from app.crypto.secure_aggregation.rules import ClientRules, survivors_digest
from app.crypto.secure_aggregation.secret_sharing import (
    SECRET_BYTES,
    AbortedRoundError,
    HeldShare,
    SecretKind,
    listed,
    pack,
    read,
    require_threshold,
    split,
)
from app.crypto.secure_aggregation.streams import add_stream, to_words


class AggregationClient(SecretHolder):
    """One client's secrets in one round: two key pairs and the seed of its self mask (Bonawitz et al. 2017, figure 4).

    The steps are called in this order: `advertise_keys`, `share_secrets`, `receive_shares`, `set_peers`, `mask`,
    `sign_survivors`, `reveal_shares`. The server is not trusted: what it passes on from other clients is verified with
    the registry of their identity keys. The session id (16 bytes) is fresh in every round.

    Raises:
        AbortedRoundError: where the layout's threshold is below 2 or not above half of the clients, or its graph is not
            the one that the client's rules give.
    """

    def __init__(
        self,
        client: int,
        identity: SigningKey,
        session: bytes,
        round_: int,
        layout: VectorLayout,
        rules: ClientRules,
    ) -> None:
        if client not in layout.positions:
            raise ValueError(f"client {client} is not in the layout of round {round_}")
        rules.require_majority(layout)
        self.client, self.session, self.round, self.layout = client, session, round_, layout
        self._identity, self._rules = identity, rules
        self._encryption, self._masking = KeyPair(client), KeyPair(client)
        self._seed = secrets.token_bytes(SECRET_BYTES)
        self._keys = PublicKeys(self._encryption.public, self._masking.public, seed_digest(self._seed))
        self._roster: Mapping[int, PublicKeys] = {}
        self._held: dict[int, list[HeldShare]] = {}
        self._peers: tuple[int, ...] = ()
        self._masked = False
        self._survivors: frozenset[int] = frozenset()
        self._survivors_digest = b""

    def advertise_keys(self) -> SignedMessage:
        return self._signed("keys", SERVER, self._keys.to_bytes())

    def share_secrets(self, advertised: Iterable[SignedMessage]) -> SignedMessage:
        """Shares of both secrets, encrypted for each other holder that advertised keys, in the order of their numbers.

        The server takes the message apart; what it passes on authenticates itself: encryption keys were signed.
        `advertised` holds the `keys` messages of all clients, or of this one, its neighbours and those that mask with
        it, as their senders signed them.

        Raises:
            AbortedRoundError: where they are fewer than the threshold, or shares were made already.
            RejectedMessageError: where keys are not signed by their client or cannot be used; it names the client.
        """
        if self._roster:
            raise AbortedRoundError(f"client {self.client} has shared its secrets already; they are shared once")
        roster = self._verified(advertised)
        holders, needed = self.layout.holders(self.client), self.layout.needed
        require_threshold(len(roster.keys() & holders.keys()), needed, "advertised their keys")
        if roster.get(self.client) != self._keys or not roster.keys() <= self.layout.positions.keys():
            raise AbortedRoundError(f"the roster that client {self.client} got is not one of this round's clients")
        self._roster = roster
        keys = split(self._masking.secret(), len(holders), needed)
        seeds = split(self._seed, len(holders), needed)
        bodies: dict[int, list[HeldShare]] = {}
        for other, point in holders.items():
            if other not in roster:
                continue
            mine = (SecretKind.MASKING_KEY, keys[point - 1]), (SecretKind.SELF_MASK, seeds[point - 1])
            bodies[other] = [HeldShare(self.client, secret, share) for secret, share in mine]
        self._held[self.client] = bodies.pop(self.client)
        return self._signed("shares", SERVER, b"".join(self._sealed(other, pack(bodies[other])) for other in bodies))

    def receive_shares(self, sealed: Mapping[int, bytes]) -> list[RejectedMessageError]:
        """Decrypt the shares for this client, by sender as the server says, and keep them.

        Returns:
            Errors of those that the sender did not encrypt for this client in this round, or that are not this client's
            shares; each names the sender, who must then be left out of the round by all clients.
        """
        rejected = []
        for sender, text in sealed.items():
            try:
                self._held[sender] = self._opened(sender, text)
            except RejectedMessageError as error:
                rejected.append(error)
        return rejected

    def set_peers(self, peers: Iterable[int]) -> None:
        """Set with whom this client masks: clients whose shares reached all others, the same list at all clients.

        Raises:
            AbortedRoundError: where they are fewer than the threshold, this client is not among them, or a share of one
                of them is missing here.
        """
        ordered = tuple(sorted(set(peers)))
        require_threshold(len(ordered), self.layout.threshold, "shared their secrets")
        if self.client not in ordered:
            raise AbortedRoundError(f"client {self.client} is not among the {len(ordered)} clients that go on")
        owners = self.layout.holders(self.client).keys() & set(ordered)
        require_threshold(len(owners), self.layout.needed, f"hold shares of client {self.client}")
        if missing := owners - self._held.keys():
            raise AbortedRoundError(f"client {self.client} holds no shares of clients {listed(missing)}")
        if unknown := set(self.layout.partners(self.client)) & set(ordered) - self._roster.keys():
            raise AbortedRoundError(f"client {self.client} got no keys of clients {listed(unknown)}")
        if self._peers:
            raise AbortedRoundError(f"client {self.client} has its peers already")
        self._peers = ordered

    def mask(self, values: np.ndarray, binding: Callable[[int], bytes] | None = None) -> SignedMessage:
        """The client's values under its masks, for the server.

        Args:
            values: (own positions) integers.
            binding: digest, for another client, of the values that both should have received: masks then cancel only
                among clients that were given the same. None for ordinary masks.

        Raises:
            AbortedRoundError: where peers are not set yet or values were masked before: masks are used once.
        """
        if not self._peers:
            raise AbortedRoundError(f"client {self.client} does not know yet whom it masks with")
        if self._masked:
            raise AbortedRoundError(f"client {self.client} has masked its values already; a mask is used once")
        if values.shape != (self.layout.size(self.client),):
            raise ValueError(f"{values.shape} values for {self.layout.size(self.client)} positions")
        words = to_words(values, self.layout.word)
        self._masked = True
        add_stream(words, self._seed)
        keys = PairwiseKeys(self._masking, self.session, self.round, lambda peer: self._roster[peer].masking, binding)
        partners = self.layout.partners(self.client)
        peers = (peer for peer in self._peers if peer != self.client and peer in partners)
        words += pairwise_mask(self.layout, keys, peers)
        return self._signed("masked", SERVER, words.tobytes())

    def sign_survivors(self, survivors: Iterable[int]) -> SignedMessage:
        """The client's signature on the list of clients whose masked vectors arrived, as the server reports it.

        A client signs one list only. The server passes the signatures on, so that no two clients reveal shares for
        different lists (the consistency check of Bonawitz et al. 2017).

        Raises:
            AbortedRoundError: where the sum over these clients could uncover one client's values.
        """
        alive = frozenset(survivors)
        self._refuse(alive)
        if self._survivors not in (frozenset(), alive):
            raise AbortedRoundError(f"client {self.client} has signed another list of survivors; it signs one")
        self._survivors = alive
        self._survivors_digest = survivors_digest(self.layout.threshold, self._peers, alive)
        return self._signed("survivors", SERVER, self._survivors_digest)

    def reveal_shares(self, signatures: Iterable[SignedMessage]) -> SignedMessage:
        """Shares of the self mask of survivors and of the masking key of those who dropped out, never both of one.

        `signatures` holds the `survivors` messages of at least the threshold of survivors, this client included. On a
        neighbour graph, too, they are of all clients: neighbours alone could not notice that clients elsewhere, which
        mask some weights with this one, are shown another list.

        Raises:
            AbortedRoundError: where too few of them signed the list that this client signed.
            RejectedMessageError: where a signature is not its sender's, or of another round.
        """
        if not self._survivors:
            raise AbortedRoundError(f"client {self.client} has not signed a list of survivors")
        agreed = set()
        for message in signatures:
            self._rules.registry.check(message, self.session, self.round, "survivors")
            if message.body == self._survivors_digest and message.sender in self._survivors:
                agreed.add(message.sender)
        what = f"signed the list of survivors that client {self.client} got"
        require_threshold(len(agreed), self.layout.threshold, what, self._survivors - agreed)
        wanted = {
            owner: SecretKind.SELF_MASK if owner in self._survivors else SecretKind.MASKING_KEY for owner in self._peers
        }
        kept = self._held
        shares = [held for owner in self._peers for held in kept.get(owner, ()) if held.secret == wanted[owner]]
        return self._signed("reveal", SERVER, pack(shares))

    def _refuse(self, alive: frozenset[int]) -> None:
        """Raise where a list of survivors cannot be an honest one."""
        gone = set(self._peers) - alive
        require_threshold(len(alive), self.layout.threshold, "survived", gone)
        if self.client not in alive or not self._masked:
            raise AbortedRoundError(f"client {self.client} sent no masked values or is not counted as a survivor")
        if strangers := alive - set(self._peers):
            raise AbortedRoundError(f"clients {listed(strangers)} are not among the masking clients")
        self._rules.require_contributors(alive, gone)

    def _verified(self, advertised: Iterable[SignedMessage]) -> dict[int, PublicKeys]:
        """The roster, from messages that carry their senders' signatures."""
        roster: dict[int, PublicKeys] = {}
        for message in advertised:
            client = message.sender
            self._rules.registry.check(message, self.session, self.round, "keys")
            try:
                keys = PublicKeys.from_bytes(message.body)
            except ValueError:
                raise RejectedMessageError(client, "keys", "its keys are not usable public keys") from None
            if roster.setdefault(client, keys) != keys:
                raise RejectedMessageError(client, "keys", "it advertised two sets of keys")
        return roster

    def _channel(self, other: int, sender: int, recipient: int) -> tuple[bytes, bytes]:
        """Key and associated data of the encrypted shares between this client and another one, in one direction."""
        about = domain_label("shares", self.session, self.round, sender, recipient)
        try:
            return self._encryption.agree(self._roster[other].encryption, about), about
        except ValueError:
            raise RejectedMessageError(other, "keys", "its encryption key is not a usable public key") from None

    def _sealed(self, recipient: int, body: bytes) -> bytes:
        key, about = self._channel(recipient, self.client, recipient)
        return aead_encrypt(key, body, about)

    def _opened(self, sender: int, sealed: bytes) -> list[HeldShare]:
        holders = self.layout.holders(sender) if sender in self._roster else {}
        if self.client not in holders or sender in self._held:
            raise RejectedMessageError(sender, "shares", "it is not in the roster, or its shares came before")
        key, about = self._channel(sender, sender, self.client)
        body = aead_decrypt(key, sealed, about)
        if body is None:
            raise RejectedMessageError(
                sender, "shares", f"it does not open with the key that client {self.client} expects"
            )
        shares = read(sender, "shares", body)
        expected = [(sender, secret, holders[self.client], self.layout.needed) for secret in SecretKind]
        if [(held.owner, held.secret, held.share.point, held.share.threshold) for held in shares] != expected:
            raise RejectedMessageError(sender, "shares", f"it does not hold the two shares of client {self.client}")
        return shares

    def _signed(self, step: Step, recipient: int, body: bytes) -> SignedMessage:
        return self._identity.sign(self.session, self.round, step, recipient, body)
