"""Trap-weights attack: the same manipulated model for all clients, which no consistency check can notice."""

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
    """Sends the same trap weights to all clients and reads single images from the sum of their updates.

    Takes one round. Neither many clients in the sum nor masks that are bound to the model prevent it.
    """

    name = "trap-weights"
    rounds = 1
    sees = "the sum over all clients"

    def __init__(self, traps: TrapWeights = DEFAULT_TRAPS) -> None:
        """Set up the attack.

        Args:
            traps: trap weights that all clients get.
        """
        super().__init__(None, traps)

    def usual_target(self, rates: Sequence[float]) -> float:
        return rates[0]

    def targets(self, plan: Plan) -> tuple[int, ...]:
        return tuple(sorted(plan.participants))

    def announces(self, knowledge: ServerKnowledge, stage: int) -> Tensor:
        if self.name not in knowledge.models:
            knowledge.models[self.name] = knowledge.with_trap_weights(self.traps, torch.arange(knowledge.space.size))
        return knowledge.models[self.name]

    def sends(self, knowledge: ServerKnowledge, stage: int, client: int, index: Tensor) -> Tensor:
        return self.announces(knowledge, stage)[index.cpu()]

    def isolate(self, knowledge: ServerKnowledge, observations: Sequence[Observation]) -> IsolatedUpdate | NotAvailable:
        (observation,) = observations
        trained = observation.holders(observation.clients) > 0
        return self.isolated(knowledge, 0, observation, trained, observation.change)
