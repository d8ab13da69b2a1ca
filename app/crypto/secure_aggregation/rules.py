"""What a client of secure aggregation demands of a round, whatever the server asks of it."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from app.crypto.contributors import Contributors
from app.crypto.messages import KeyRegistry
from app.crypto.secure_aggregation.graph import NeighbourGraph
from app.crypto.secure_aggregation.layout import VectorLayout
from app.crypto.secure_aggregation.secret_sharing import AbortedRoundError


@dataclass(frozen=True, eq=False)
class ClientRules:
    """A client's own conditions. They come with its software and the public plan, never from the server."""

    registry: KeyRegistry  # identity keys of all clients, the same at every client
    contributors: Contributors  # which clients contribute to which coordinates of the round, by the public plan
    least: int  # fewest clients behind a sum that the client helps to unmask; 1 helps with any
    # of the round, which the client made from the randomness beacon and the public plan; None for all with all
    graph: NeighbourGraph | None = None
    _few: dict[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict, init=False, repr=False)

    _cut: set[tuple[int, ...]] = field(default_factory=set, init=False, repr=False)

    def require_majority(self, layout: VectorLayout) -> None:
        """Refuse a threshold with which two disjoint groups of clients, or one client, could uncover secrets."""
        clients = len(layout.positions)
        if layout.threshold < 2 or 2 * layout.threshold <= clients:
            raise AbortedRoundError(
                f"the threshold {layout.threshold} of {clients} clients is refused: at least 2, and more than half, "
                "must be needed to uncover a secret"
            )
        if layout.graph != self.graph:
            raise AbortedRoundError(
                "the server names other neighbours than those that follow from the public randomness of the round"
            )

    def require_contributors(self, survivors: Iterable[int], dropped: Collection[int]) -> None:
        """Refuse to unmask where some coordinate of the sum has fewer than `least` contributors among the survivors."""
        present = tuple(sorted(survivors))
        if present not in self._few:  # clients of a simulation share the rules, and the plan is large
            self._few[present] = self.contributors.few(present, self.least)
            if self.graph is not None and self.graph.crowded(present):
                self._cut.add(present)
        if few := self._few[present]:
            who = ", ".join(map(str, few[:5])) + (" ..." if len(few) > 5 else "")
            raise AbortedRoundError(
                f"after {len(dropped)} clients dropped out, some weights have fewer than {self.least} "
                f"contributors, and the clients concerned ({who}) do not unmask them"
            )
        if present in self._cut:
            raise AbortedRoundError(
                f"of the {len(dropped)} clients that dropped out, so many are neighbours that the sum could come apart "
                "into sums over fewer clients"
            )


def survivors_digest(threshold: int, peers: Collection[int], survivors: Collection[int]) -> bytes:
    """What a client signs before it reveals shares: the threshold, who masked, and whose vectors have arrived."""
    numbers = [threshold, len(peers), *sorted(peers), len(survivors), *sorted(survivors)]
    return hashlib.sha256(struct.pack(f">{len(numbers)}q", *numbers)).digest()
