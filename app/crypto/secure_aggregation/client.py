"""A client's side of one round of secure aggregation."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from app.crypto.messages import SERVER, RejectedMessageError, SecretHolder, SignedMessage, SigningKey, Step
from app.crypto.secure_aggregation.agreement import KeyPair, PublicKeys, aead_decrypt, aead_encrypt, domain_label
from app.crypto.secure_aggregation.layout import VectorLayout
from app.crypto.secure_aggregation.masks import PairwiseKeys, pairwise_mask
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
    `reveal_shares`. The roster is trusted: where the server may swap keys, the caller checks the signed `keys` messages
    it was made of. The session id (16 bytes) is fresh in every round.
    """

    def __init__(self, client: int, identity: SigningKey, session: bytes, round_: int, layout: VectorLayout) -> None:
        if client not in layout.positions:
            raise ValueError(f"client {client} is not in the layout of round {round_}")
        self.client, self.session, self.round, self.layout = client, session, round_, layout
        self._identity = identity
        self._encryption, self._masking = KeyPair(client), KeyPair(client)
        self._seed = secrets.token_bytes(SECRET_BYTES)
        self._roster: Mapping[int, PublicKeys] = {}
        self._held: dict[int, list[HeldShare]] = {}
        self._peers: tuple[int, ...] = ()
        self._masked = False
        self._revealed: dict[int, SecretKind] = {}

    def advertise_keys(self) -> SignedMessage:
        keys = PublicKeys(self._encryption.public, self._masking.public)
        return self._signed("keys", SERVER, keys.to_bytes())

    def share_secrets(self, roster: Mapping[int, PublicKeys]) -> list[SignedMessage]:
        """Shares of both secrets, one encrypted message for every other client of the roster.

        Raises:
            AbortedRoundError: where they are fewer than the threshold, or shares were made already.
            RejectedMessageError: where a key of the roster cannot be used; it names the client.
        """
        if self._roster:
            raise AbortedRoundError(f"client {self.client} has shared its secrets already; they are shared once")
        require_threshold(len(roster), self.layout.threshold, "advertised their keys")
        if self.client not in roster or not roster.keys() <= self.layout.positions.keys():
            raise AbortedRoundError(f"the roster that client {self.client} got is not one of this round's clients")
        self._roster = dict(roster)
        points, threshold = self.layout.points, self.layout.threshold
        keys = split(self._masking.secret(), len(points), threshold)
        seeds = split(self._seed, len(points), threshold)
        bodies = {}
        for other in sorted(roster):
            mine = (SecretKind.MASKING_KEY, keys[points[other] - 1]), (SecretKind.SELF_MASK, seeds[points[other] - 1])
            bodies[other] = [HeldShare(self.client, secret, share) for secret, share in mine]
        self._held[self.client] = bodies.pop(self.client)
        return [self._sealed(other, pack(shares)) for other, shares in bodies.items()]

    def receive_shares(self, messages: Iterable[SignedMessage]) -> list[RejectedMessageError]:
        """Decrypt the shares that others sent to this client and keep them.

        Returns:
            Errors of those that do not decrypt or are not this client's shares; each names the sender, who must then be
            left out of the round by all clients.
        """
        rejected = []
        for message in messages:
            if message.recipient != self.client or message.step != "shares":
                continue
            try:
                self._held[message.sender] = self._opened(message)
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
        if missing := [peer for peer in ordered if peer not in self._held]:
            raise AbortedRoundError(f"client {self.client} holds no shares of clients {listed(missing)}")
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
        words += pairwise_mask(self.layout, keys, (peer for peer in self._peers if peer != self.client))
        return self._signed("masked", SERVER, words.tobytes())

    def reveal_shares(self, survivors: Iterable[int], dropped: Iterable[int]) -> SignedMessage:
        """The shares that the server needs: of the self mask of survivors, of the masking key of those who dropped out.

        Raises:
            AbortedRoundError: where the answer could uncover one client's values.
        """
        alive, gone = set(survivors), set(dropped)
        self._refuse(alive, gone)
        wanted = dict.fromkeys(alive, SecretKind.SELF_MASK) | dict.fromkeys(gone, SecretKind.MASKING_KEY)
        turned = [owner for owner, secret in wanted.items() if self._revealed.get(owner, secret) != secret]
        if turned:
            raise AbortedRoundError(
                f"the server asked before for the other secret of clients {listed(turned)}; never both"
            )
        self._revealed |= wanted
        shares = [held for owner in sorted(wanted) for held in self._held[owner] if held.secret == wanted[owner]]
        return self._signed("reveal", SERVER, pack(shares))

    def _refuse(self, alive: set[int], gone: set[int]) -> None:
        """Raise where a request for shares cannot be an honest one."""
        if both := alive & gone:
            raise AbortedRoundError(f"the server asks for both secrets of clients {listed(both)}")
        require_threshold(len(alive), self.layout.threshold, "survived", gone)
        if self.client not in alive or not self._masked:
            raise AbortedRoundError(f"client {self.client} sent no masked values or is not counted as a survivor")
        if strangers := (alive | gone) - set(self._peers):
            raise AbortedRoundError(f"clients {listed(strangers)} are not among the masking clients")

    def _channel(self, other: int, sender: int, recipient: int) -> tuple[bytes, bytes]:
        """Key and associated data of the encrypted shares between this client and another one, in one direction."""
        about = domain_label("shares", self.session, self.round, sender, recipient)
        try:
            return self._encryption.agree(self._roster[other].encryption, about), about
        except ValueError:
            raise RejectedMessageError(other, "keys", "its encryption key is not a usable public key") from None

    def _sealed(self, recipient: int, body: bytes) -> SignedMessage:
        key, about = self._channel(recipient, self.client, recipient)
        return self._signed("shares", recipient, aead_encrypt(key, body, about))

    def _opened(self, message: SignedMessage) -> list[HeldShare]:
        sender = message.sender
        if sender not in self._roster or sender in self._held:
            raise RejectedMessageError(sender, "shares", "it is not in the roster, or its shares came before")
        key, about = self._channel(sender, sender, self.client)
        body = aead_decrypt(key, message.body, about)
        if body is None:
            raise RejectedMessageError(
                sender, "shares", f"it does not open with the key that client {self.client} expects"
            )
        shares = read(sender, "shares", body)
        point, threshold = self.layout.points[self.client], self.layout.threshold
        expected = [(sender, secret, point, threshold) for secret in SecretKind]
        if [(held.owner, held.secret, held.share.point, held.share.threshold) for held in shares] != expected:
            raise RejectedMessageError(sender, "shares", f"it does not hold the two shares of client {self.client}")
        return shares

    def _signed(self, step: Step, recipient: int, body: bytes) -> SignedMessage:
        return self._identity.sign(self.session, self.round, step, recipient, body)
