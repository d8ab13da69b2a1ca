"""What leaves a client, before anything is trained: its submodel without the cells it keeps to itself."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from app.federation.label_rows import LabelRows
from app.federation.plan import Plan

if TYPE_CHECKING:
    from app.federation.module import FederatedModule


class SentRound:
    """A round of the plan with the cells that clients send: rows of classes a client does not have may stay with it.

    Attributes:
        plan: the round as planned.
    """

    def __init__(self, plan: Plan, rows: LabelRows | None = None, owned: Sequence[Tensor] = ()) -> None:
        """Look at a round.

        Args:
            plan: the round.
            rows: which class a cell of the classifier belongs to; None where all rows are sent.
            owned: (classes) bool for each client, whether it has samples of each class.
        """
        self.plan = plan
        self._rows, self._owned = rows, owned

    @property
    def round(self) -> int:
        """0-based round."""
        return self.plan.round

    @property
    def participants(self) -> tuple[int, ...]:
        """Ids of the clients that take part."""
        return self.plan.participants

    def rate(self, client: int) -> float:
        """Width rate of the client's submodel, in (0, 1]."""
        return self.plan.rate(client)

    def index(self, client: int) -> Tensor:
        """Cells of the submodel that the client may send (int64, ascending); personal cells are still among them."""
        index = self.plan.index(client)
        if self._rows is None:
            return index
        sent = self._rows.sent(index, self._owned[client])
        return index if sent.all() else index[sent]  # clients that send all of a submodel get the same object


def sent_rounds(federation: FederatedModule, rounds: Iterable[int]) -> Iterator[SentRound]:
    """Rounds (0-based) of a prepared federation, one after the other."""
    for round_ in rounds:
        yield sent_round(federation, federation.plan_of(round_))


def sent_round(federation: FederatedModule, plan: Plan) -> SentRound:
    """A round of a prepared federation."""
    if not federation.local.mask_labels:
        return SentRound(plan)
    owned = [federation.data.owned_classes(client) for client in range(federation.data.clients)]
    return SentRound(plan, federation.label_rows, owned)


def sent_indices(federation: FederatedModule, plan: Plan) -> dict[int, np.ndarray]:
    """Cells that every participant sends (int64, ascending); clients with the same submodel share one array."""
    found, masked = sent_round(federation, plan), federation.local.mask_labels
    arrays: dict[Hashable, np.ndarray] = {}
    indices: dict[int, np.ndarray] = {}
    for client in plan.participants:
        # clients of one submodel who have the same classes send the same rows
        owned = tuple(federation.data.owned_classes(client).tolist()) if masked else ()
        key = (plan.key(client), owned)
        if key not in arrays:
            index = found.index(client)
            arrays[key] = index[federation.personal.shared(index)].cpu().numpy()
        indices[client] = arrays[key]
    return indices


def received_cells(federation: FederatedModule, plan: Plan, client: int) -> np.ndarray:
    """Cells of the server's model that a client gets (int64, ascending): all of its submodel that are not personal."""
    index = plan.index(client)
    return index[federation.personal.shared(index)].cpu().numpy()


def sent_cells(federation: FederatedModule) -> Tensor:
    """(cells of the server's vector) bool: False for personal cells, which no client ever sends."""
    return federation.personal.shared(torch.arange(federation.space.size))
