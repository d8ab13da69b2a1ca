"""A clipping norm that follows a quantile of the clients' norms (Andrew et al. 2021, algorithm 1)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from app.common.errors import UserError


@dataclass(frozen=True)
class AdaptiveClipping:
    """How the norm moves. Each client sends one bit beside its change: whether its norm is within the clipping norm."""

    quantile: float  # share of clients whose change is to be left as it is, gamma, in (0, 1)
    rate: float  # learning rate of the norm's logarithm, eta_C, above 0
    count_noise: float  # standard deviation of the noise on the number of such clients, sigma_b, above 0

    def change_noise(self, noise: float) -> float:
        """Noise multiplier of the changes with which changes and bits together cost as much as `noise` alone (z_delta).

        Bits are counted as -1/2 and 1/2, so one client moves their sum by 1/2 (theorem 1).

        Raises:
            UserError: where the bits alone cost as much or more.
        """
        if noise == 0:
            return 0.0
        left = noise**-2 - (2 * self.count_noise) ** -2
        if left <= 0:
            raise UserError.of(
                f"the noise {self.count_noise:.3g} on the number of unclipped clients costs as much as all noise "
                f"{noise:.3g} may",
                "nothing of the budget is left for the changes",
                f"set --defenses.NAME.count_noise above {noise / 2:.3g}",
            )
        return float(left**-0.5)

    def next_norm(self, norm: float, within: int, clients: int, expected: float, draw: float) -> float:
        """The clipping norm after a round.

        Args:
            norm: of the round.
            within: how many clients' changes were not longer.
            clients: that took part.
            expected: number of clients that take part on average, by which noisy counts are divided.
            draw: noise on the count, of standard deviation `count_noise`.
        """
        share = 0.5 + (within - clients / 2 + draw) / expected
        return norm * math.exp(-self.rate * (share - self.quantile))
