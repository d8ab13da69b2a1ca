"""Noise of NbAFL (Wei et al. 2020), and of the code that MemDefense compares itself with under that name.

Both calibrate to a sensitivity of 2C/m, which would be that of an average over m samples. A model trained by several
steps of gradient descent can move further when one sample is replaced, so the epsilons they aim at are nominal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from app.errors import UserError


@dataclass(frozen=True)
class Setting:
    """What the noise depends on.

    Attributes:
        epsilon: budget of the whole run, above 0.
        delta: in (0, 1).
        clip: largest Euclidean norm C of a client's weights.
        sensitivity: largest change of the clipped weights: nominally 2C/m, at worst 2C.
        rounds: T, rounds of the run.
        exposures: L, how often a client's upload is seen, 1 to T.
        clients: N.
        participants: K, clients of a round, 1 to N.
    """

    epsilon: float
    delta: float
    clip: float
    sensitivity: float
    rounds: int
    exposures: int
    clients: int
    participants: int

    @property
    def factor(self) -> float:
        """The constant c of the Gaussian mechanism, proved for an epsilon of at most 1."""
        return math.sqrt(2 * math.log(1.25 / self.delta))


def uplink_noise(setting: Setting) -> float:
    """Standard deviation per cell of what a client adds: c L (2C/m) / epsilon."""
    return setting.factor * setting.exposures * setting.sensitivity / setting.epsilon


def downlink_noise(setting: Setting) -> float:
    """Standard deviation per cell of what the server adds to the mean; 0 where the clients' noise is enough.

    With all clients: c (2C/m) sqrt(T^2 - L^2 N) / (N epsilon) for T > L sqrt(N). With K of N clients, T is divided by
    b = -(T/epsilon) ln(1 - N/K + (N/K) exp(-epsilon/T)), and N gives way to K.

    Raises:
        UserError: where the formula has no value, because too few clients take part for the budget.
    """
    scale = _amplified(setting)
    missing = (setting.rounds / scale) ** 2 - setting.exposures**2 * setting.participants
    if missing <= 0:
        return 0.0
    spread = setting.factor * setting.sensitivity / (setting.participants * setting.epsilon)
    return spread * math.sqrt(missing)


def _amplified(setting: Setting) -> float:
    """The constant b; 1 where all clients take part."""
    if setting.participants == setting.clients:
        return 1.0
    share = setting.clients / setting.participants
    inside = 1 - share + share * math.exp(-setting.epsilon / setting.rounds)
    if inside <= 0:
        least = math.ceil(setting.clients * -math.expm1(-setting.epsilon / setting.rounds))
        raise UserError.of(
            f"NbAFL's theorem has no down-link noise for {setting.participants} of {setting.clients} clients per round "
            f"and epsilon {setting.epsilon:g} over {setting.rounds} rounds",
            "its constant b is the logarithm of a negative number",
            f"let more than {least} clients take part (--model.participation), or lower the budget",
        )
    return -(setting.rounds / setting.epsilon) * math.log(inside)


def weight_clip_noise(setting: Setting) -> float:
    """Standard deviation per cell by the rule of the compared code: (2C/m) sqrt(2 q T ln(1/delta)) / epsilon.

    It is the user-level scheme of Wei et al. 2021, on the up-link only; q is the share of clients per round.
    """
    share = setting.participants / setting.clients
    return setting.sensitivity * math.sqrt(2 * share * setting.rounds * math.log(1 / setting.delta)) / setting.epsilon
