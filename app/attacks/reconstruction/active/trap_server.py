"""One manipulated model for everybody: nothing inconsistent that masks or commitments could notice."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from app.attacks.reconstruction.active.base import DEFAULT_TRAPS, ActiveAttack, ServerKnowledge
from app.attacks.reconstruction.active.observations import IsolatedUpdate, Observation
from app.attacks.reconstruction.active.trap_weights import TrapWeights
from app.federation.plan import Plan
from app.metrics.membership import NotAvailable


class TrapServer(ActiveAttack):
    """Sends the same trap weights to all clients, and reads single images out of the sum of all their updates.

    Takes one round. Neither many contributors nor masks that are bound to the model stop it.
    """

    name = "trap-weights"
    rounds = 1
    sees = "the sum over all clients"

    def __init__(self, traps: TrapWeights = DEFAULT_TRAPS) -> None:
        """Set up the attack.

        Args:
            traps: trap weights that everybody gets.
        """
        super().__init__(None, traps)

    def usual_target(self, rates: Sequence[float]) -> float:
        """Nobody in particular."""
        return rates[0]

    def targets(self, plan: Plan) -> tuple[int, ...]:
        """Everybody."""
        return tuple(sorted(plan.participants))

    def announces(self, knowledge: ServerKnowledge, stage: int) -> Tensor:
        """The manipulated model: what it sends is what it says."""
        if self.name not in knowledge.models:
            knowledge.models[self.name] = knowledge.with_trap_weights(self.traps, torch.arange(knowledge.space.size))
        return knowledge.models[self.name]

    def sends(self, knowledge: ServerKnowledge, stage: int, client: int, index: Tensor) -> Tensor:
        """The client's coordinates of the manipulated model."""
        return self.announces(knowledge, stage)[index.cpu()]

    def isolate(self, knowledge: ServerKnowledge, seen: Sequence[Observation]) -> IsolatedUpdate | NotAvailable:
        """The sum of the round, as it is."""
        return self.isolated(knowledge, 0, seen[0], seen[0].holders(seen[0].clients) > 0, seen[0].change)
