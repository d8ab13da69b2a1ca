"""Convergence-Rate attack (Haldankar et al. 2024, section 5.1).

On the coordinates that narrower clients do not train, the sum of a round is the attacked cohort's change plus the
changes of the wider clients, which are close to 0 once these have converged.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from app.attacks.reconstruction.active.base import DEFAULT_TRAPS, ActiveAttack, ServerKnowledge
from app.attacks.reconstruction.active.observations import IsolatedUpdate, Observation
from app.attacks.reconstruction.active.trap_weights import TrapWeights
from app.common.ranges import Positive, Share
from app.metrics.membership import NotAvailable


class ConvergenceRate(ActiveAttack):
    """Isolates a cohort's update on the coordinates that narrower clients do not train, once wider ones have converged.

    Takes one round, after honest ones. The error is what the wider clients still change.
    """

    name = "convergence-rate"
    rounds = 1
    sees = "the sums over the attacked cohort and richer clients, in one round"

    def __init__(
        self, target: Share | None = None, tolerance: Positive | None = None, traps: TrapWeights = DEFAULT_TRAPS
    ) -> None:
        """Set up the attack.

        Args:
            target: width rate of the attacked clients; without one, the second widest cohort.
            tolerance: begin as soon as the mean of a round moves those coordinates by less than this share of their
                norm; without one, begin in the round that is configured, or else in the last one.
            traps: trap weights that the attacked clients get.
        """
        super().__init__(target, traps)
        self.tolerance = tolerance

    def usual_target(self, rates: Sequence[float]) -> float:
        """The second widest cohort, as in the paper; the only one where all widths are equal."""
        return rates[min(1, len(rates) - 1)]

    @property
    def waits(self) -> bool:
        return self.tolerance is not None

    def ready(self, honest: Observation, theta: Tensor) -> bool:
        assert self.tolerance is not None
        coordinates = self._readable(honest)
        if not coordinates.any():
            return False
        before = theta.double().cpu()
        moved, norm = (honest.mean - before)[coordinates].norm(), before[coordinates].norm()
        return bool(moved < self.tolerance * norm)

    def sends(self, knowledge: ServerKnowledge, stage: int, client: int, index: Tensor) -> Tensor:
        if client in self.targets(knowledge.plan(stage)):
            return knowledge.with_trap_weights(self.traps, index)
        return knowledge.theta[index.cpu()]

    def isolate(self, knowledge: ServerKnowledge, observations: Sequence[Observation]) -> IsolatedUpdate | NotAvailable:
        (observation,) = observations
        coordinates = self._readable(observation)
        if not coordinates.any():
            return NotAvailable("every weight of the attacked clients is also trained by poorer ones")
        return self.isolated(knowledge, 0, observation, coordinates, observation.change)

    def _readable(self, observation: Observation) -> Tensor:
        """(coordinates) bool: trained by all attacked clients, and by no narrower one."""
        attacked, rate = self.present(observation), observation.plan.rate
        if not attacked:
            return torch.zeros(len(observation.change), dtype=torch.bool)
        narrower = [client for client in observation.clients if rate(client) < rate(attacked[0])]
        return (observation.holders(attacked) == len(attacked)) & (observation.holders(narrower) == 0)
