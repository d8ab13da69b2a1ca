"""Updates under secure aggregation: masks hide every single update and cancel in the sum (Bonawitz et al. 2017).

Five steps a round: clients exchange signed keys, share the secrets that could undo their masks, send masked updates,
sign the list of updates that arrived, and after that reveal just what is needed to remove the masks that are left over.
Clients may drop out after any step. Masks of two clients cover the coordinates that both of them train, so unequal
submodels cancel coordinate by coordinate. In large rounds a client masks and shares with its neighbours in a random
graph only (Bell et al. 2020), which all clients derive from public randomness that was fixed before the first round.
"""

from __future__ import annotations

import hmac
import math
import secrets
import warnings
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from app.crypto.commitment import BlockDigests
from app.crypto.contributors import Contributors
from app.crypto.fixed_point import FixedPoint, Outside
from app.crypto.messages import (
    KeyRegistry,
    MessageDelivery,
    RejectedMessageError,
    SignedMessage,
    SigningKey,
    Transport,
    new_session,
)
from app.crypto.secure_aggregation.beacon import RandomnessBeacon, commitment
from app.crypto.secure_aggregation.client import AggregationClient
from app.crypto.secure_aggregation.graph import NeighbourGraph
from app.crypto.secure_aggregation.layout import VectorLayout
from app.crypto.secure_aggregation.parameters import GraphSettings
from app.crypto.secure_aggregation.rules import ClientRules
from app.crypto.secure_aggregation.secret_sharing import AbortedRoundError, require_threshold
from app.crypto.secure_aggregation.server import AggregationServer
from app.federation.channels.base import Aggregate, Channel, Message, Reduce, UncoveredCells, Update
from app.federation.channels.integer_code import encoded, warn_of_failures, weight_code
from app.federation.channels.received import Received, ReceivedModels
from app.federation.channels.release_guard import ReleaseGuard
from app.federation.execution.distributed import from_first, gather
from app.federation.parameters import plain_array
from app.federation.plan import NO_CLIENT, Plan
from app.federation.private_coordinates import uploaded_indices

if TYPE_CHECKING:
    from app.federation.module import FederatedModule


@dataclass(frozen=True)
class Masking:
    """How updates are masked."""

    point: FixedPoint  # precision of a client's change
    outside: Outside  # what is done with changes outside the range
    max_weight: float  # largest weight of a client where weights depend on losses
    threshold: float  # share of a round's clients that must stay to the end, in (0.5, 1]
    graph: GraphSettings  # who masks with whom
    model_bound: bool  # whether masks cancel only among clients that received the same values
    least: int  # fewest clients behind a sum that clients agree to unmask; 1 unmasks any
    attempts: int  # how often a damaged message is requested before the client is left out
    name: str  # the user's name of the defense, for messages that name an option

    def needed(self, clients: int) -> int:
        """How many of a round's clients must stay to the end, at least 2."""
        return max(2, math.ceil(self.threshold * clients))


class MaskedChannel(Channel):
    """Plays both sides of the protocol; every process holds the round's secrets of the clients that it trains.

    All clients are enrolled before the first round, with identity keys that stay the same throughout the run. The
    registry of these keys stands for a public-key infrastructure that the server cannot change.

    Attributes:
        given_up: whether the current round was aborted.
        dropped: clients of the current round that dropped out after the masks had been agreed on.
        protocol_bytes: bytes of the current round beside the masked updates, over all clients.
        clipped_share: share of the round's values that were clipped to the range, in [0, 1].
    """

    form = "masked"
    carries = "changes"

    def __init__(
        self,
        federation: FederatedModule,
        settings: Masking,
        guard: ReleaseGuard | None = None,
        transport: Transport | None = None,
    ) -> None:
        self._federation, self._settings, self._transport = federation, settings, transport or Transport()
        self._guard = guard or ReleaseGuard()
        self.dropped = self.protocol_bytes = 0
        self.given_up = False
        self.clipped_share = 0.0
        self.end()

    def end(self) -> None:
        self._clients: dict[int, AggregationClient] = {}
        self._identities: dict[int, SigningKey] = {}
        self._registry, self._beacon = KeyRegistry(), RandomnessBeacon()

    def open(self, plan: Plan, theta: Tensor) -> None:
        settings = self._settings
        self._contributors = Contributors.of(theta.numel(), uploaded_indices(self._federation, plan))
        weights = weight_code(self._federation, settings.max_weight)
        self._code = self._federation.coding(self._contributors, settings.point, weights, theta, settings.outside)
        self._received = ReceivedModels(self._contributors, self._federation.space)
        self._theta, self._round = theta, plan.round + 1
        self._guard.open(plan)
        self._arrived: dict[int, int] = {}
        self._clients, self._failure = {}, ""
        self.dropped = self.protocol_bytes = 0
        self.given_up = False
        try:
            self._begin(plan)
            self._agree()
        except (AbortedRoundError, RejectedMessageError) as error:
            self._failure = str(error)

    def _enrol(self) -> None:
        """Make the identity keys and the public randomness of all clients, the same on every process."""
        secret = from_first(secrets.token_bytes(32))
        clients = range(len(self._federation.client_pool.sizes))
        parts = {client: hmac.digest(secret, b"rampart beacon %d" % client, "sha256") for client in clients}
        for client in clients:
            own = hmac.digest(secret, b"rampart identity %d" % client, "sha256")
            identity = self._identities[client] = SigningKey(client, own)
            self._registry.enrol(client, identity.public)
            self._beacon.commit(client, commitment(parts[client]))
        for client in clients:
            self._beacon.open(client, parts[client])

    def _begin(self, plan: Plan) -> None:
        """Make the round's server and clients."""
        if not self._identities:
            self._enrol()
        clients, threshold = len(plan.participants), self._settings.needed(len(plan.participants))
        if clients < threshold:
            raise AbortedRoundError(f"{clients} of the {threshold} clients that are needed take part")
        positions = {client: self._code.positions(client) for client in plan.participants}
        graph = NeighbourGraph.of(self._contributors, self._settings.graph, self._beacon.value(self._round))
        self._layout = VectorLayout(self._code.length, self._code.word, positions, threshold, graph)
        self._session = from_first(new_session())
        self._delivery = MessageDelivery(self._registry, self._transport, self._settings.attempts)
        self._server = AggregationServer(self._session, self._round, self._layout, self._registry)
        rules = ClientRules(self._registry, self._contributors, self._settings.least, graph)
        mine = plan.share(self._federation.global_rank, self._federation.trainer.world_size)
        self._clients = {
            client: AggregationClient(client, self._identities[client], self._session, self._round, self._layout, rules)
            for client in mine
            if client != NO_CLIENT
        }

    def _agree(self) -> None:
        """The steps `keys` and `shares`, after which it is fixed which clients mask with each other."""
        advertised = self._server.collect_keys(self._exchange(one.advertise_keys() for one in self._clients.values()))
        roster = self._server.roster
        self._clients = {client: one for client, one in self._clients.items() if client in roster}
        self._require(roster, "advertised their keys")
        keys = partial(self._server.keys_for, advertised=advertised)
        shares = self._exchange(self._answers(lambda one: one.share_secrets(keys(one.client))))
        relayed = self._server.relay_shares(shares)
        refused = [error for client, one in self._clients.items() for error in one.receive_shares(relayed[client])]
        refusals = [error for part in gather([(error.client, str(error)) for error in refused]) for error in part]
        self._server.exclude(client for client, _ in refusals)
        for text in dict.fromkeys(text for _, text in refusals):
            warnings.warn(f"round {self._round}: {text}", stacklevel=2)
        peers = self._server.masking_clients
        self._require(peers, "shared their secrets")
        self._clients = {client: one for client, one in self._clients.items() if client in peers}
        for one in self._clients.values():
            one.set_peers(peers)

    def _answers(self, ask: Callable[[AggregationClient], SignedMessage]) -> list[SignedMessage]:
        """What this process's clients answer; the refusal of any client aborts the round on all processes."""
        answers: list[SignedMessage] = []
        refusals: list[str] = []
        for one in self._clients.values():
            try:
                answers.append(ask(one))
            except (AbortedRoundError, RejectedMessageError) as error:
                refusals.append(str(error))
        for refusal in (text for part in gather(refusals) for text in part):
            raise AbortedRoundError(refusal)
        return answers

    def _require(self, clients: Collection[int], what: str) -> None:
        """Abort the round on all processes at once, also on one whose own clients are complete."""
        require_threshold(len(clients), self._layout.threshold, what, set(self._layout.positions) - set(clients))

    def _exchange(self, messages: Iterable[SignedMessage]) -> list[SignedMessage]:
        """Deliver the messages of all processes and count their bytes."""
        sent = [self._delivery.deliver(message, self._session, self._round) for message in messages]
        arrived = [message for part in gather([one for one in sent if one is not None]) for message in part]
        self.protocol_bytes += sum(message.size for message in arrived)
        warn_of_failures(self._delivery.take_failures())
        return arrived

    def send(self, update: Update) -> Message | None:
        client = self._clients.get(update.client)
        if client is None or self._failure:
            return None
        values = encoded(self._code, update, self._federation.space, self._settings.name)
        received = self._received.of(update)
        if self._guard.refuses(update.client, received, values, self._server.masking_clients):
            return None
        sealed = client.mask(values, self._binding(update.client, received))
        arrived = self._delivery.deliver(sealed, self._session, self._round)
        warn_of_failures(self._delivery.take_failures())
        if arrived is None:
            return None
        self._server.add_masked(arrived)
        self._arrived[update.client] = self._code.weight(update)
        opens = partial(self._code.opened, update, values)
        return Message(update.client, update.round, update.index, None, self.form, arrived.size, opens)

    def _binding(self, client: int, received: Received) -> Callable[[int], bytes] | None:
        """The hash that binds a client's masks to the values it received."""
        return (lambda other: received.blocks.binding(client, other)) if self._settings.model_bound else None

    def close(self, uncovered: UncoveredCells, reduce: Reduce) -> Aggregate:
        counted = gather((self._code.clipped, self._code.coded))
        self.clipped_share = sum(clipped for clipped, _ in counted) / max(1, sum(coded for _, coded in counted))
        try:
            if self._failure:
                raise AbortedRoundError(self._failure)
            self._join()
            sums = self._unmasked()
        except (AbortedRoundError, RejectedMessageError) as error:
            self._give_up(str(error))
            sums, self._arrived = np.zeros(self._code.length, dtype=np.int64), {}
        return self._code.decode(sums, self._arrived, uncovered)

    def _join(self) -> None:
        """Add up what has arrived on all processes."""
        for rank, (part, clients) in enumerate(gather((self._server.sum, list(self._arrived)))):
            if rank != self._federation.global_rank:
                self._server.merge(part, clients)
        self._arrived = {client: weight for part in gather(self._arrived) for client, weight in part.items()}
        self._guard.gather()

    def _unmasked(self) -> np.ndarray:
        survivors = set(self._arrived)
        gone = set(self._server.masking_clients) - survivors
        self.dropped = len(gone)
        self._require(survivors, "sent masked updates")
        self._clients = {client: one for client, one in self._clients.items() if client in survivors}
        if bare := self._code.unprotected(survivors):
            raise AbortedRoundError(
                f"after drop-outs, {bare} of {self._code.length} sums have less noise than they need"
            )
        self._guard.check(survivors)
        signed = self._exchange(self._answers(lambda one: one.sign_survivors(survivors)))
        self._guard.remember(survivors, released=False)
        reveals = self._exchange(self._answers(lambda one: one.reveal_shares(signed)))
        sums = self._server.unmask(reveals, self._known_bindings() if gone else None)
        if impossible := self._code.impossible(sums, self._arrived):
            raise AbortedRoundError(
                f"{impossible} of {len(sums)} sums are larger than their contributors' values can be"
            )
        self._guard.remember(survivors, released=True)
        return sums

    def _known_bindings(self) -> Callable[[int, int], bytes] | None:
        """The bindings of clients that dropped out, which the server derives from the model it sent."""
        if not self._settings.model_bound:
            return None
        everything = np.arange(self._contributors.coordinates)
        return BlockDigests(self._contributors, everything, plain_array(self._theta)).binding

    def _give_up(self, reason: str) -> None:
        self.given_up = True
        if self._federation.global_rank == 0:
            warnings.warn(
                f"round {self._round}: secure aggregation is given up: {reason}. Nothing is unmasked and no client's "
                "update is used.",
                stacklevel=2,
            )
