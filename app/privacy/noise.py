"""Gaussian noise, repeatable or secret, and the noise scales of NbAFL (Wei et al. 2020)."""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass

import torch
from torch import Tensor

from app.errors import UserError
from app.seeding import derive_key


class NoiseSource:
    """Seeds of noise: from the run's seed, so that runs can be repeated, or from the operating system (`secret`).

    Whoever knows the seed of a run can compute its noise and subtract it: use secret noise to protect real data. Both
    are floating-point noise, which does not resist attacks on the low-order bits of the numbers.
    """

    def __init__(self, secret: bool = False) -> None:
        self.secret = secret

    def seed(self, run_seed: int, purpose: str, *numbers: int) -> int:
        """Seed of one release: the same for the same purpose and numbers, or secret."""
        return secrets.randbits(63) if self.secret else derive_key(run_seed, purpose, *numbers)

    @property
    def description(self) -> str:
        origin = "seeded by the operating system" if self.secret else "seeded by the run, so that it can be repeated"
        return f"floating-point noise (secure mode off), {origin}"


def gaussian_like(values: Tensor, deviation: float, seed: int) -> Tensor:
    """Independent Gaussian noise for every value, of the given standard deviation (0 gives zeros) and seed."""
    if deviation == 0:
        return torch.zeros_like(values)
    generator = torch.Generator(device=values.device).manual_seed(seed)
    return torch.randn(values.shape, generator=generator, dtype=values.dtype, device=values.device) * deviation


def clip_factor(values: Tensor, norm: float) -> float:
    """Factor that scales values to a Euclidean norm of at most `norm`: 1 where they are short enough."""
    length = float(values.double().norm())
    return 1.0 if length <= norm else norm / length


@dataclass(frozen=True)
class NbAFLSetting:
    """Parameters of NbAFL's noise.

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


def uplink_noise(setting: NbAFLSetting) -> float:
    """Standard deviation per coordinate of what a client adds: c L (2C/m) / epsilon."""
    return setting.factor * setting.exposures * setting.sensitivity / setting.epsilon


def downlink_noise(setting: NbAFLSetting) -> float:
    """Standard deviation per coordinate of what the server adds to the mean; 0 where the clients' noise is enough.

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


def _amplified(setting: NbAFLSetting) -> float:
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


def weight_clip_noise(setting: NbAFLSetting) -> float:
    """Standard deviation per coordinate by the rule of the compared code: (2C/m) sqrt(2 q T ln(1/delta)) / epsilon.

    It is the user-level scheme of Wei et al. 2021, on the up-link only; q is the share of clients per round.
    """
    share = setting.participants / setting.clients
    return setting.sensitivity * math.sqrt(2 * share * setting.rounds * math.log(1 / setting.delta)) / setting.epsilon
