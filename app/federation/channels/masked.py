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

from app.crypto.contributors import Contributors
from app.crypto.fixed_point import FixedPoint, Outside
from app.crypto.messages import Envelope, Identity, Post, Registry, Wire, new_session
from app.crypto.secure_aggregation.binding import BlockDigests
from app.crypto.secure_aggregation.coordinator import Coordinator
from app.crypto.secure_aggregation.layout import Layout
from app.crypto.secure_aggregation.participant import Participant
from app.crypto.secure_aggregation.streams import word_for
from app.crypto.secure_aggregation.threshold import AbortedError, require
from app.federation.channels.base import Aggregate, Channel, Message, Reduce, UncoveredCells, Update
from app.federation.channels.integer_code import IntegerCode, encoded, tell_incidents, weight_code
from app.federation.execution.distributed import from_first, gather
from app.federation.plan import NOBODY, Plan
from app.federation.private_coordinates import uploaded_indices

if TYPE_CHECKING:
    from app.federation.module import FederatedModule


@dataclass(frozen=True)
class Masking:
    """How updates are masked.

    Attributes:
        point: precision of a client's change.
        outside: what becomes of changes that the range does not hold.
        max_weight: largest weight of a client where weights depend on losses.
        threshold: share of a round's clients that must stay to the end, in (0.5, 1].
        model_bound: whether masks cancel only among clients that received the same values.
        least: fewest clients behind a sum that clients will unmask; 1 unmasks any.
        attempts: how often a damaged message is asked for before the client is left out.
        name: what the user calls the defense, for messages that name an option.
    """

    point: FixedPoint
    outside: Outside
    max_weight: float
    threshold: float
    model_bound: bool
    least: int
    attempts: int
    name: str

    def needed(self, clients: int) -> int:
        """How many of so many clients must stay to the end; never one alone."""
        return max(2, math.ceil(self.threshold * clients))


class MaskedChannel(Channel):
    """Plays both sides of the protocol; every process has the secrets of the clients that it trains.

    Attributes:
        given_up: whether the present round was given up.
        dropped: clients of the present round that fell away after their masks had been agreed on.
        protocol_bytes: bytes of the present round beside the masked updates, over all clients.
        clipped_share: share of the round's values that were cut to the range.
    """

    form = "masked"
    carries = "changes"

    def __init__(self, federation: FederatedModule, settings: Masking, wire: Wire | None = None) -> None:
        """Carry the updates of a federation.

        Args:
            federation: prepared.
            settings: how to mask.
            wire: what messages travel over; tests damage it.
        """
        self._federation, self._settings, self._wire = federation, settings, wire or Wire()
        self.dropped = self.protocol_bytes = 0
        self.given_up = False
        self.clipped_share = 0.0
        self._identities: dict[int, Identity] = {}
        self._participants: dict[int, Participant] = {}

    def end(self) -> None:
        """Forget the clients' secrets."""
        self._participants, self._identities = {}, {}

    # ---- before local training -------------------------------------------------------------------------------------

    def open(self, plan: Plan, theta: Tensor) -> None:
        """Exchange keys and shares among the clients of the round."""
        settings = self._settings
        self._contributors = Contributors.of(theta.numel(), uploaded_indices(self._federation, plan))
        weights = weight_code(self._federation, settings.max_weight)
        self._code = IntegerCode(self._contributors, settings.point, weights, theta, settings.outside)
        self._theta, self._round = theta, plan.round + 1
        self._arrived: dict[int, int] = {}
        self._participants, self._failure = {}, ""
        self.dropped = self.protocol_bytes = 0
        self.given_up = False
        try:
            self._enrol(plan)
            self._agree()
        except AbortedError as error:
            self._failure = str(error)

    def _enrol(self, plan: Plan) -> None:
        """Everybody's keys for signatures are known before the protocol begins."""
        clients, threshold = len(plan.participants), self._settings.needed(len(plan.participants))
        if clients < threshold:
            raise AbortedError(f"{clients} clients take part, and {threshold} are needed")
        positions = {client: self._code.positions(client) for client in plan.participants}
        self._layout = Layout(self._code.length, word_for(self._code.largest_sum), positions, threshold)
        self._session = from_first(new_session())
        mine = plan.share(self._federation.global_rank, self._federation.trainer.world_size)
        identities = {
            client: self._identities.setdefault(client, Identity(client)) for client in mine if client != NOBODY
        }
        registry = Registry()
        for part in gather({client: identity.public for client, identity in identities.items()}):
            for client, public in part.items():
                registry.enrol(client, public)
        self._post = Post(registry, self._wire, self._settings.attempts)
        self._coordinator = Coordinator(self._session, self._round, self._layout)
        self._participants = {
            client: Participant(client, identity, self._session, self._round, self._layout)
            for client, identity in identities.items()
        }

    def _agree(self) -> None:
        """The steps `keys` and `shares`: afterwards it is settled who masks with whom."""
        roster = self._coordinator.register(self._exchange(one.advertise() for one in self._participants.values()))
        self._participants = {client: one for client, one in self._participants.items() if client in roster}
        self._require(roster, "advertised their keys")
        shares = [share for one in self._participants.values() for share in one.share(roster)]
        relayed = self._coordinator.relay(self._exchange(shares))
        refused = [error for client, one in self._participants.items() for error in one.receive(relayed[client])]
        told = [error for part in gather([(error.client, str(error)) for error in refused]) for error in part]
        self._coordinator.exclude(client for client, _ in told)
        for text in dict.fromkeys(text for _, text in told):
            warnings.warn(f"round {self._round}: {text}", stacklevel=2)
        settled = self._coordinator.settled
        self._require(settled, "shared their secrets")
        self._participants = {client: one for client, one in self._participants.items() if client in settled}
        for one in self._participants.values():
            one.settle(settled)

    def _require(self, clients: Collection[int], what: str) -> None:
        """Give the round up on all processes at once, also on one whose clients would not notice."""
        require(len(clients), self._layout.threshold, what, set(self._layout.positions) - set(clients))

    def _exchange(self, messages: Iterable[Envelope]) -> list[Envelope]:
        """Messages of all processes that arrive, with their bytes counted."""
        sent = [self._post.deliver(message, self._session, self._round) for message in messages]
        arrived = [message for part in gather([one for one in sent if one is not None]) for message in part]
        self.protocol_bytes += sum(message.size for message in arrived)
        tell_incidents(self._post.take())
        return arrived

    # ---- during local training -------------------------------------------------------------------------------------

    def send(self, update: Update) -> Message | None:
        """Mask one update and add it to the sum."""
        participant = self._participants.get(update.client)
        if participant is None or self._failure:
            return None
        values = encoded(self._code, update, self._federation.space, self._settings.name)
        sealed = participant.mask(values, self._binding(update))
        arrived = self._post.deliver(sealed, self._session, self._round)
        tell_incidents(self._post.take())
        if arrived is None:
            return None
        self._coordinator.accept(arrived)
        self._arrived[update.client] = self._code.weight(update)
        return Message(update.client, update.round, update.index, None, self.form, arrived.size)

    def _binding(self, update: Update) -> Callable[[int], bytes] | None:
        """What the client hashes: the values that it received."""
        if not self._settings.model_bound:
            return None
        index = self._contributors.index(update.client)
        digests = BlockDigests(self._contributors, index, _plain(update.received))
        return lambda other: digests.binding(update.client, other)

    # ---- after local training --------------------------------------------------------------------------------------

    def close(self, uncovered: UncoveredCells, reduce: Reduce) -> Aggregate:
        """Remove the masks that are left over, or give the round up."""
        counted = gather((self._code.clipped, self._code.coded))
        self.clipped_share = sum(clipped for clipped, _ in counted) / max(1, sum(coded for _, coded in counted))
        try:
            if self._failure:
                raise AbortedError(self._failure)
            self._join()
            sums = self._unmasked()
        except AbortedError as error:
            self._give_up(str(error))
            sums, self._arrived = np.zeros(self._code.length, dtype=np.int64), {}
        return self._code.decode(sums, self._arrived, uncovered)

    def _join(self) -> None:
        """Add up what has arrived on all processes."""
        for rank, (part, clients) in enumerate(gather((self._coordinator.sum, list(self._arrived)))):
            if rank != self._rank:
                self._coordinator.merge(part, clients)
        self._arrived = {client: weight for part in gather(self._arrived) for client, weight in part.items()}

    def _unmasked(self) -> np.ndarray:
        survivors = set(self._arrived)
        gone = set(self._coordinator.settled) - survivors
        self.dropped = len(gone)
        self._require(survivors, "sent masked updates")
        few = self._contributors.few(sorted(survivors), self._settings.least)
        if few:
            who = ", ".join(map(str, few[:5])) + (" ..." if len(few) > 5 else "")
            raise AbortedError(
                f"after {len(gone)} clients dropped out, some weights have fewer than {self._settings.least} "
                f"contributors, and the clients concerned ({who}) do not unmask them"
            )
        mine = [one for client, one in self._participants.items() if client in survivors]
        reveals = self._exchange(one.reveal(survivors, gone) for one in mine)
        return self._coordinator.unmask(reveals, self._known_bindings() if gone else None)

    def _known_bindings(self) -> Callable[[int, int], bytes] | None:
        """What the server can work out of clients that dropped out: it knows what it sent."""
        if not self._settings.model_bound:
            return None
        everything = np.arange(self._contributors.coordinates)
        return BlockDigests(self._contributors, everything, _plain(self._theta)).binding

    def _give_up(self, reason: str) -> None:
        self.given_up = True
        if self._rank == 0:
            warnings.warn(
                f"round {self._round}: secure aggregation is given up: {reason}. Nothing is unmasked and no client's "
                "update is used.",
                stacklevel=2,
            )

    @property
    def _rank(self) -> int:
        return self._federation.global_rank


def _plain(values: Tensor) -> np.ndarray:
    """Values as they were received, in a type that numpy has."""
    return (values.float() if values.element_size() < 4 else values).detach().cpu().numpy()
