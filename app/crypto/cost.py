"""Cost of Paillier encryption and of secure aggregation on this machine, measured on small samples."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from app.crypto.contributors import Contributors
from app.crypto.messages import HEADER_BYTES, KeyRegistry, SignedMessage, SigningKey, new_session
from app.crypto.paillier.encryption import Encryptor, Exponent, decrypt
from app.crypto.paillier.keys import PrivateKey
from app.crypto.paillier.sums import EncryptedSum
from app.crypto.secure_aggregation.client import AggregationClient
from app.crypto.secure_aggregation.graph import NeighbourGraph
from app.crypto.secure_aggregation.layout import VectorLayout
from app.crypto.secure_aggregation.parameters import GraphSettings
from app.crypto.secure_aggregation.rules import ClientRules
from app.crypto.secure_aggregation.server import AggregationServer
from app.crypto.secure_aggregation.streams import add_stream


@dataclass(frozen=True)
class OperationCost:
    """CPU seconds on one core of this machine."""

    encrypt: float  # seconds per ciphertext
    add: float  # seconds per ciphertext, of adding it to a sum
    decrypt: float  # seconds per ciphertext


def measure_paillier(private: PrivateKey, exponent: Exponent, sample: int = 48) -> OperationCost:
    """Measure on `sample` random plaintexts in this process, after a warm-up."""
    encryptor, total = Encryptor(private.public, exponent), EncryptedSum(private.public)
    plaintexts = [secrets.randbelow(private.public.n) for _ in range(sample)]
    ciphertexts = encryptor.encrypt(plaintexts)
    places = range(sample)
    total.add(places, ciphertexts)  # a first ciphertext is stored, not multiplied
    decrypt(private, ciphertexts[:1], workers=1, progress=False)
    return OperationCost(
        encrypt=_seconds(lambda: encryptor.encrypt(plaintexts)) / sample,
        add=_seconds(lambda: total.add(places, ciphertexts)) / sample,
        decrypt=decrypt(private, ciphertexts, workers=1, progress=False).seconds / sample,
    )


def _seconds(work: Callable[[], object], clock: Callable[[], float] = time.thread_time) -> float:
    started = clock()
    work()
    return clock() - started


_WORDS = 1 << 20
_ALL = GraphSettings("all")


@dataclass(frozen=True)
class MaskingCost:
    """CPU seconds on one core, and bytes."""

    pair: float  # seconds per ordered pair of clients, for keys, shares and their recovery
    word: float  # seconds to make one word of a mask and add it
    pair_bytes: float  # bytes of shares per ordered pair of clients, encrypted and revealed
    # bytes per client beside that and the masked update: keys, list of survivors, its own share, headers and signatures
    client_bytes: float


def measure_masking(word: np.dtype, clients: int = 12) -> MaskingCost:
    """Run the protocol once with one value per client (3 or more clients), and make one long mask of such words."""
    started = time.process_time()
    messages = masked_round(word, clients)
    seconds = time.process_time() - started
    words = np.zeros(_WORDS, dtype=word)
    add_stream(words, bytes(32))  # the first one warms up
    per_word = _seconds(lambda: add_stream(words, bytes(32)), time.process_time) / _WORDS
    _, shares, _, reveal = messages
    shared = len(shares.body) / (clients - 1) + len(reveal.body) / clients
    size = sum(message.size for message in messages) + HEADER_BYTES + 64
    return MaskingCost(seconds / (clients * (clients - 1)), per_word, shared, size - (clients - 1) * shared)


def masked_round(
    word: np.dtype, clients: int, length: int = 1, graph: GraphSettings = _ALL
) -> tuple[SignedMessage, ...]:
    """All steps with every client present; returns the messages of one of them, but for its masked vector."""
    session, positions = new_session(), dict.fromkeys(range(clients), np.arange(length))
    held = Contributors.of(length, positions)
    neighbours = NeighbourGraph.of(held, graph, session)
    layout = VectorLayout(length, word, positions, -(-2 * clients // 3), neighbours)
    identities = [SigningKey(client) for client in range(clients)]
    rules = ClientRules(KeyRegistry(), held, 2, neighbours)
    for identity in identities:
        rules.registry.enrol(identity.client, identity.public)
    everybody = [AggregationClient(one.client, one, session, 1, layout, rules) for one in identities]
    server = AggregationServer(session, 1, layout, rules.registry)
    keys = server.collect_keys(one.advertise_keys() for one in everybody)
    shares = [one.share_secrets(server.keys_for(one.client, keys)) for one in everybody]
    relayed = server.relay_shares(shares)
    for client, one in enumerate(everybody):
        one.receive_shares(relayed[client])
        one.set_peers(server.masking_clients)
        server.add_masked(one.mask(np.ones(length, dtype=np.int64), None))
    survivors = [one.sign_survivors(range(clients)) for one in everybody]
    reveals = [one.reveal_shares(survivors) for one in everybody]
    if (server.unmask(reveals, None) != clients).any():
        raise AssertionError("masks did not cancel")
    return keys[0], shares[0], survivors[0], reveals[0]
