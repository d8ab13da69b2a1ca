"""What secure aggregation takes on this machine, measured on a small round."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from app.crypto.messages import HEADER_BYTES, Envelope, Identity, new_session
from app.crypto.secure_aggregation.coordinator import Coordinator
from app.crypto.secure_aggregation.layout import Layout
from app.crypto.secure_aggregation.participant import Participant
from app.crypto.secure_aggregation.streams import add_stream

_WORDS = 1 << 20


@dataclass(frozen=True)
class MaskingCost:
    """CPU seconds on one core, and bytes.

    Attributes:
        pair: seconds per ordered pair of clients, for keys, shares and their recovery.
        word: seconds to make one word of a mask and add it.
        pair_bytes: bytes per ordered pair of clients, beside the masked updates.
        client_bytes: bytes per client beside that: its keys, and header and signature of its update.
    """

    pair: float
    word: float
    pair_bytes: float
    client_bytes: float


def measure(word: np.dtype, clients: int = 12) -> MaskingCost:
    """Run the protocol once with a single value per client, and make one long mask.

    Args:
        word: integers that sums are taken in.
        clients: of the small round, at least 3.
    """
    started = time.process_time()
    keys, others = _small_round(word, clients)
    seconds = time.process_time() - started
    words = np.zeros(_WORDS, dtype=word)
    add_stream(words, bytes(32))  # the first one warms up
    started = time.process_time()
    add_stream(words, bytes(32))
    per_word = (time.process_time() - started) / _WORDS
    pairs = clients * (clients - 1)
    size = sum(message.size for message in keys) / clients + HEADER_BYTES + 64
    return MaskingCost(seconds / pairs, per_word, sum(message.size for message in others) / pairs, size)


def _small_round(word: np.dtype, clients: int) -> tuple[list[Envelope], list[Envelope]]:
    """All steps with everybody present; returns the messages with keys, and those with shares."""
    session, positions = new_session(), np.zeros(1, dtype=np.int64)
    layout = Layout(1, word, dict.fromkeys(range(clients), positions), -(-2 * clients // 3))
    everybody = [Participant(client, Identity(client), session, 1, layout) for client in range(clients)]
    server = Coordinator(session, 1, layout)
    keys = [one.advertise() for one in everybody]
    roster = server.register(keys)
    shares = [share for one in everybody for share in one.share(roster)]
    relayed = server.relay(shares)
    for client, one in enumerate(everybody):
        one.receive(relayed[client])
        one.settle(server.settled)
        server.accept(one.mask(np.ones(1, dtype=np.int64), None))
    reveals = [one.reveal(range(clients), ()) for one in everybody]
    if server.unmask(reveals, None).tolist() != [clients]:
        raise AssertionError("masks did not cancel")
    return keys, [*shares, *reveals]
