"""Updates under secure aggregation: masks hide every single update and cancel in the sum (Bonawitz et al. 2017).

Four steps a round: clients exchange keys, share the secrets that could undo their masks, send masked updates, and after
that reveal just what is needed to remove the masks that are left over. Clients may drop out after any step. Masks of
two clients cover the coordinates that both of them train, so unequal submodels cancel coordinate by coordinate.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from app.crypto.commitment import BlockDigests
from app.crypto.contributors import Contributors
from app.crypto.fixed_point import FixedPoint, Outside
from app.crypto.messages import KeyRegistry, MessageDelivery, SignedMessage, SigningKey, Transport, new_session
from app.crypto.secure_aggregation.client import AggregationClient
from app.crypto.secure_aggregation.layout import VectorLayout
from app.crypto.secure_aggregation.secret_sharing import AbortedRoundError, require_threshold
from app.crypto.secure_aggregation.server import AggregationServer
from app.crypto.secure_aggregation.streams import word_for
from app.federation.channels.base import Aggregate, Channel, Message, Reduce, UncoveredCells, Update
from app.federation.channels.integer_code import IntegerCode, encoded, warn_of_failures, weight_code
from app.federation.channels.release_guard import ReleaseGuard
from app.federation.execution.distributed import from_first, gather
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
    model_bound: bool  # whether masks cancel only among clients that received the same values
    least: int  # fewest clients behind a sum that clients agree to unmask; 1 unmasks any
    attempts: int  # how often a damaged message is requested before the client is left out
    name: str  # the user's name of the defense, for messages that name an option

    def needed(self, clients: int) -> int:
        """How many of a round's clients must stay to the end, at least 2."""
        return max(2, math.ceil(self.threshold * clients))


class MaskedChannel(Channel):
    """Plays both sides of the protocol; every process holds the secrets of the clients that it trains.

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
        self._identities: dict[int, SigningKey] = {}
        self._clients: dict[int, AggregationClient] = {}

    def end(self) -> None:
        self._clients, self._identities = {}, {}

    def open(self, plan: Plan, theta: Tensor) -> None:
        settings = self._settings
        self._contributors = Contributors.of(theta.numel(), uploaded_indices(self._federation, plan))
        weights = weight_code(self._federation, settings.max_weight)
        self._code = IntegerCode(self._contributors, settings.point, weights, theta, settings.outside)
        self._theta, self._round = theta, plan.round + 1
        self._guard.open(plan)
        self._arrived: dict[int, int] = {}
        self._clients, self._failure = {}, ""
        self.dropped = self.protocol_bytes = 0
        self.given_up = False
        try:
            self._enrol(plan)
            self._agree()
        except AbortedRoundError as error:
            self._failure = str(error)

    def _enrol(self, plan: Plan) -> None:
        """Register every client's signature key before the protocol begins."""
        clients, threshold = len(plan.participants), self._settings.needed(len(plan.participants))
        if clients < threshold:
            raise AbortedRoundError(f"{clients} clients take part, and {threshold} are needed")
        positions = {client: self._code.positions(client) for client in plan.participants}
        self._layout = VectorLayout(self._code.length, word_for(self._code.largest_sum), positions, threshold)
        self._session = from_first(new_session())
        mine = plan.share(self._federation.global_rank, self._federation.trainer.world_size)
        identities = {
            client: self._identities.setdefault(client, SigningKey(client)) for client in mine if client != NO_CLIENT
        }
        registry = KeyRegistry()
        for part in gather({client: identity.public for client, identity in identities.items()}):
            for client, public in part.items():
                registry.enrol(client, public)
        self._delivery = MessageDelivery(registry, self._transport, self._settings.attempts)
        self._server = AggregationServer(self._session, self._round, self._layout)
        self._clients = {
            client: AggregationClient(client, identity, self._session, self._round, self._layout)
            for client, identity in identities.items()
        }

    def _agree(self) -> None:
        """The steps `keys` and `shares`, after which it is fixed which clients mask with each other."""
        roster = self._server.collect_keys(self._exchange(one.advertise_keys() for one in self._clients.values()))
        self._clients = {client: one for client, one in self._clients.items() if client in roster}
        self._require(roster, "advertised their keys")
        shares = [share for one in self._clients.values() for share in one.share_secrets(roster)]
        relayed = self._server.relay_shares(self._exchange(shares))
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
        if self._guard.refuses(update, values, self._federation.space, self._server.masking_clients):
            return None
        sealed = client.mask(values, self._binding(update))
        arrived = self._delivery.deliver(sealed, self._session, self._round)
        warn_of_failures(self._delivery.take_failures())
        if arrived is None:
            return None
        self._server.add_masked(arrived)
        self._arrived[update.client] = self._code.weight(update)
        return Message(update.client, update.round, update.index, None, self.form, arrived.size)

    def _binding(self, update: Update) -> Callable[[int], bytes] | None:
        """The hash that binds a client's masks to the values it received."""
        if not self._settings.model_bound:
            return None
        index = self._contributors.index(update.client)
        digests = BlockDigests(self._contributors, index, _plain(update.received))
        return lambda other: digests.binding(update.client, other)

    def close(self, uncovered: UncoveredCells, reduce: Reduce) -> Aggregate:
        counted = gather((self._code.clipped, self._code.coded))
        self.clipped_share = sum(clipped for clipped, _ in counted) / max(1, sum(coded for _, coded in counted))
        try:
            if self._failure:
                raise AbortedRoundError(self._failure)
            self._join()
            sums = self._unmasked()
        except AbortedRoundError as error:
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
        few = self._contributors.few(sorted(survivors), self._settings.least)
        if few:
            who = ", ".join(map(str, few[:5])) + (" ..." if len(few) > 5 else "")
            raise AbortedRoundError(
                f"after {len(gone)} clients dropped out, some weights have fewer than {self._settings.least} "
                f"contributors, and the clients concerned ({who}) do not unmask them"
            )
        self._guard.check(survivors)
        self._guard.remember(survivors, released=False)
        mine = [one for client, one in self._clients.items() if client in survivors]
        reveals = self._exchange(one.reveal_shares(survivors, gone) for one in mine)
        sums = self._server.unmask(reveals, self._known_bindings() if gone else None)
        self._guard.remember(survivors, released=True)
        return sums

    def _known_bindings(self) -> Callable[[int, int], bytes] | None:
        """The bindings of clients that dropped out, which the server derives from the model it sent."""
        if not self._settings.model_bound:
            return None
        everything = np.arange(self._contributors.coordinates)
        return BlockDigests(self._contributors, everything, _plain(self._theta)).binding

    def _give_up(self, reason: str) -> None:
        self.given_up = True
        if self._federation.global_rank == 0:
            warnings.warn(
                f"round {self._round}: secure aggregation is given up: {reason}. Nothing is unmasked and no client's "
                "update is used.",
                stacklevel=2,
            )


def _plain(values: Tensor) -> np.ndarray:
    """The values in a type that NumPy has."""
    return (values.float() if values.element_size() < 4 else values).detach().cpu().numpy()
