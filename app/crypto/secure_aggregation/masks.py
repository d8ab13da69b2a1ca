"""Pairwise masks and self masks: how a client adds them, and how the server removes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from app.crypto.messages import RejectedMessageError
from app.crypto.secure_aggregation.agreement import KeyPair, domain_label
from app.crypto.secure_aggregation.layout import VectorLayout
from app.crypto.secure_aggregation.streams import add_streams


@dataclass(frozen=True)
class PairwiseKeys:
    """Keys of the pairwise masks of one client in one round."""

    pair: KeyPair  # the client's masking key
    session: bytes
    round: int
    public: Callable[[int], bytes]  # masking key of another client, by its number
    # digest of the values that both clients should have received; masks cancel only where both digests agree. None for
    # masks that cancel whatever was received
    binding: Callable[[int], bytes] | None

    def key(self, peer: int) -> bytes:
        """The key that this client and a peer derive, each on its own."""
        bound = () if self.binding is None else (self.binding(peer),)
        low, high = sorted((self.pair.client, peer))
        purpose = domain_label("mask", self.session, self.round, low, high, *bound)
        try:
            return self.pair.agree(self.public(peer), purpose)
        except ValueError:
            raise RejectedMessageError(peer, "keys", "its masking key is not a usable public key") from None


def pairwise_mask(layout: VectorLayout, keys: PairwiseKeys, peers: Iterable[int]) -> np.ndarray:
    """Sum of the masks that a client adds for its peers, in the client's own vector.

    The client with the lower number adds, the other one subtracts: over both, a mask vanishes.
    """
    client = keys.pair.client
    total = np.zeros(layout.size(client), dtype=layout.word)
    groups: dict[int, list[int]] = {}
    for peer in peers:
        groups.setdefault(id(layout.positions[peer]), []).append(peer)
    for group in groups.values():
        where = layout.overlap(client, group[0])
        # Peers with the same submodel are added up first: scattering costs more than making a stream.
        part = total[where] if isinstance(where, slice) else np.zeros(where.size, dtype=layout.word)
        if part.size:
            add_streams(part, [(keys.key(peer), peer < client) for peer in group])
        if not isinstance(where, slice):
            total[where] += part
    return total


def remove_self_masks(total: np.ndarray, layout: VectorLayout, seeds: Iterable[tuple[int, bytes]]) -> None:
    """Subtract clients' self masks, given their seeds, from a sum (length) of words, in place."""
    groups: dict[int, tuple[int, list[bytes]]] = {}
    for client, seed in seeds:
        groups.setdefault(id(layout.positions[client]), (client, []))[1].append(seed)
    for client, group in groups.values():
        part = np.zeros(layout.size(client), dtype=layout.word)
        add_streams(part, [(seed, False) for seed in group])
        total[layout.place(client)] -= part
