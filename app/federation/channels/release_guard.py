"""What clients of secure aggregation remember over the rounds, and refuse because of it."""

from __future__ import annotations

import warnings
from collections.abc import Collection
from typing import Any

import numpy as np
import torch

from app.crypto.secure_aggregation.secret_sharing import AbortedRoundError
from app.crypto.trained_models import TrainedModels
from app.federation.channels.received import Received
from app.federation.execution.distributed import gather
from app.federation.plan import Plan
from app.federation.plan_audit.release_ledger import ReleaseLedger
from app.federation.reports import listed


class ReleaseGuard:
    """Keeps clients from training twice on a model, and watches whom all released sums together isolate.

    It plays every client's part: all of what it knows is known to each client that takes part in a sum.

    Args:
        strict: whether clients do not unmask a sum that would isolate one of them together with earlier sums.
        refuse_repeated: whether clients refuse to train twice on a model; else only sums are watched.

    Attributes:
        ledger: the sums that were released; set before the first round.
        refused: clients of the current round that refused to train on a model again.
    """

    def __init__(self, strict: bool = False, refuse_repeated: bool = True) -> None:
        self.strict, self.refuse_repeated = strict, refuse_repeated
        self.ledger: ReleaseLedger | None = None
        self.refused: tuple[int, ...] = ()
        self._models = TrainedModels()

    def open(self, plan: Plan) -> None:
        self._plan, self.refused = plan, ()
        self._received: dict[int, list[bytes]] = {}  # digests of what a client received
        self._moved: dict[int, list[bytes]] = {}  # those of them that its update would change
        self._refusing: list[int] = []

    def refuses(self, client: int, received: Received, values: np.ndarray, peers: Collection[int]) -> bool:
        """Whether a client keeps its update to itself, because it has trained on this model or a tensor of it before.

        `values` are the integers it would send: what it does not change reveals nothing, and may honestly stay.
        """
        if not self.refuse_repeated:
            return False
        digests, places = received.tensors, received.places
        if self._models.refuses(client, digests.values(), peers):
            self._refusing.append(client)
            return True
        self._received[client] = list(digests.values())
        moved = values != 0
        self._moved[client] = [digest for name, digest in digests.items() if moved[places[name]].any()]
        return False

    def gather(self) -> None:
        """Exchange what clients of all processes know, once all updates were sent."""
        parts = gather((self._received, self._moved, self._refusing))
        self._received = {client: digests for part, _, _ in parts for client, digests in part.items()}
        self._moved = {client: digests for _, part, _ in parts for client, digests in part.items()}
        self.refused = tuple(sorted(client for _, _, part in parts for client in part))

    def check(self, survivors: Collection[int]) -> None:
        """Raise `AbortedRoundError` where clients do not unmask the sum over the survivors; else enter it."""
        again = [one for one in survivors if self._models.refuses(one, self._received.get(one, ()), survivors)]
        if again:
            raise AbortedRoundError(
                f"{listed(sorted(again))} have trained on this model before, in a round that was given up late, and "
                "train on it again only together with the same clients"
            )
        if self.ledger is None:
            return
        isolated = self.ledger.isolates(self._plan, survivors)
        if isolated and self.strict:
            raise AbortedRoundError(
                f"together with the sums of earlier rounds, this one would isolate {listed(isolated)} if the model "
                "stood still, and they do not unmask it"
            )
        planned = self.ledger.planned.clients if self.ledger.planned else ()
        if unplanned := [client for client in isolated if client not in planned]:
            warnings.warn(
                f"round {self._plan.round + 1}: after clients dropped out, combinations of sums isolate "
                f"{listed(unplanned)} if the model stood still",
                stacklevel=2,
            )
        self.ledger.release(self._plan, survivors)

    def remember(self, survivors: Collection[int], released: bool) -> None:
        """Keep what the survivors trained on, once they have revealed their shares."""
        self._models.remember({client: self._moved.get(client, []) for client in survivors}, released)

    def state_dict(self) -> dict[str, Any]:
        models = {client: torch.from_numpy(rows.copy()) for client, rows in self._models.state_dict().items()}
        return {"models": models, "releases": self.ledger.state_dict() if self.ledger is not None else []}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._models.load_state_dict({client: rows.numpy() for client, rows in state["models"].items()})
        if self.ledger is not None:
            self.ledger.load_state_dict(state["releases"])
