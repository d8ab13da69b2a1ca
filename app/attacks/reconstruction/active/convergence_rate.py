"""The Convergence-Rate attack: richer clients have converged, so what still moves is the attacked cohort's doing.

Haldankar et al. 2024, section 5.1: on the coordinates that poorer clients do not train, the sum of a round is the
attacked cohort's change plus the changes of the richer clients, which are next to nothing once these have converged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from app.attacks.reconstruction.active.base import DEFAULT_TRAPS, ActiveAttack, ServerKnowledge
from app.attacks.reconstruction.active.observations import IsolatedUpdate, Observation
from app.attacks.reconstruction.active.trap_weights import TrapWeights
from app.errors import Problem
from app.metrics.membership import NotAvailable


class ConvergenceRate(ActiveAttack):
    """Reads a cohort's update off the coordinates that poorer clients do not train, once richer clients hardly move.

    Takes one round, after honest ones. The error is what the richer clients still change.
    """

    name = "convergence-rate"
    rounds = 1
    sees = "the sums over the attacked cohort and richer clients, in one round"

    def __init__(
        self, target: float | None = None, tolerance: float | None = None, traps: TrapWeights = DEFAULT_TRAPS
    ) -> None:
        """Set up the attack.

        Args:
            target: width rate of the attacked clients; without one, the second widest cohort.
            tolerance: act as soon as the mean of a round moves those coordinates by less than this share of their
                length; without one, act in the round that is asked for, or else in the last one.
            traps: trap weights that the attacked clients get.
        """
        super().__init__(target, traps)
        self.tolerance = tolerance

    def problems(self) -> Iterator[Problem]:
        """Of the traps, and a tolerance that is none."""
        yield from super().problems()
        if self.tolerance is not None and not self.tolerance > 0:
            yield Problem(f"tolerance is {self.tolerance}", "no round would ever be calm enough", "set it above 0")

    def usual_target(self, rates: Sequence[float]) -> float:
        """The second widest cohort, as in the paper; the only one where all are equal."""
        return rates[min(1, len(rates) - 1)]

    @property
    def waits(self) -> bool:
        """With a tolerance, for the richer clients to converge."""
        return self.tolerance is not None

    def ready(self, honest: Observation, theta: Tensor) -> bool:
        """Whether the federation has converged, as far as the sums tell."""
        assert self.tolerance is not None
        coordinates = self._readable(honest)
        if not coordinates.any():
            return False
        moved, length = (
            (honest.mean - theta.double().cpu())[coordinates].norm(),
            theta.double().cpu()[coordinates].norm(),
        )
        return bool(moved < self.tolerance * length)

    def sends(self, knowledge: ServerKnowledge, stage: int, client: int, index: Tensor) -> Tensor:
        """Trap weights for the attacked cohort, the honest model for all others."""
        if client in self.targets(knowledge.plan(stage)):
            return knowledge.with_trap_weights(self.traps, index)
        return knowledge.theta[index.cpu()]

    def isolate(self, knowledge: ServerKnowledge, seen: Sequence[Observation]) -> IsolatedUpdate | NotAvailable:
        """The sum of the round on the coordinates that the attacked clients and richer ones train."""
        coordinates = self._readable(seen[0])
        if not coordinates.any():
            return NotAvailable("every weight of the attacked clients is also trained by poorer ones")
        return self.isolated(knowledge, 0, seen[0], coordinates, seen[0].change)

    def _readable(self, seen: Observation) -> Tensor:
        """(coordinates) bool: trained by all attacked clients, and by nobody poorer."""
        attacked = self.present(seen)
        if not attacked:
            return torch.zeros(len(seen.change), dtype=torch.bool)
        poorer = [client for client in seen.clients if seen.plan.rate(client) < seen.plan.rate(attacked[0])]
        return (seen.holders(attacked) == len(attacked)) & (seen.holders(poorer) == 0)
