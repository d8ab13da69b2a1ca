"""Noise that clients share: how much of it sums need, what it proves, and on which grid it fits into so many bits.

Both mechanisms are bounded by a Gaussian mechanism: at every order their Renyi divergence is at most `order` times some
rho, which is that of Gaussian noise with the multiplier 1 / sqrt(2 rho). Ledgers hold this multiplier. The bound for
discrete Gaussians holds at all orders above 1, that for Skellam noise at whole orders (accountant `rdp-whole`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

from app.common.errors import UserError
from app.common.wording import counted
from app.privacy.distributed.discrete_noise import WIDEST, DiscreteMechanism
from app.privacy.distributed.rotation import padded_size, rounded_norm

COARSEST = 1.25
"""Largest factor by which rounding may raise the norm of a client's integers, and with it the noise."""

WIDE = 2.0**12
"""Standard deviation of a client's noise beyond which a finer grid would gain next to nothing."""

_LONGEST = 2.0**30
"""Largest norm of a client's integers; it is reached only with little noise."""


@dataclass(frozen=True)
class Sensitivity:
    """How far one client can move the sums of a round."""

    norm: float  # Euclidean, of integers
    size: int  # number of integers

    @property
    def absolute(self) -> float:
        """The same in the 1-norm: the square of an integer is at least its absolute value."""
        return self.norm * min(math.sqrt(self.size), self.norm)


def multiplier(mechanism: DiscreteMechanism, variance: float, shares: int, moved: Sensitivity) -> float:
    """Multiplier of the Gaussian mechanism that bounds sums with the noise of `shares` clients.

    Discrete Gaussians: proposition 14 of Kairouz, Liu and Steinke 2021 with tau of their theorem 1, which is for a sum
    being no discrete Gaussian. Skellam: theorem 3.5 of Agarwal, Kairouz and Liu 2021.

    Args:
        mechanism: the distribution of a client's noise.
        variance: (parameter) of the sum's noise at least, above 0.
        shares: clients with equal parts of it, 1 or more; more clients make further noise, which does no harm.
        moved: the largest change.
    """
    norm, size, absolute = moved.norm, moved.size, moved.absolute
    if mechanism == "skellam":
        further = (2 * norm**2 + max(0.0, 6 * absolute - norm**2)) / (4 * variance**2)
        rho = norm**2 / (2 * variance) + min(further, 3 * absolute / (2 * variance))
    else:
        tau, deviation = _tau(variance / shares, shares), math.sqrt(variance)
        rho = min(
            norm**2 / (2 * variance) + tau * size,
            (norm**2 / variance + 2 * tau * absolute / deviation + tau**2 * size) / 2,
            (norm / deviation + tau * math.sqrt(size)) ** 2 / 2,
        )
    return 1 / math.sqrt(2 * rho)


def _tau(variance: float, shares: int) -> float:
    """How far a sum of discrete Gaussians is from one; infinite where the theorem does not apply."""
    if shares > 1 and variance < 0.25:
        return math.inf
    k = np.arange(1, shares)
    return float(10 * np.exp(-2 * math.pi**2 * variance * k / (k + 1)).sum())


def variance_for(mechanism: DiscreteMechanism, noise: float, shares: int, moved: Sensitivity) -> float:
    """Smallest variance (to one part in a million, never too small) of a sum that is worth the multiplier `noise`."""
    if noise == 0:
        return 0.0

    def enough(variance: float) -> bool:
        return multiplier(mechanism, variance, shares, moved) >= noise

    start = (noise * moved.norm) ** 2
    return start if enough(start) else _boundary(enough, start * 2.0**40, start)


def _boundary(holds: Callable[[float], bool], inside: float, outside: float) -> float:
    """A number for which a condition holds, close to where it ceases to hold between `inside` and `outside`."""
    near, far = math.log(inside), math.log(outside)
    while abs(far - near) > 1e-6:
        middle = (near + far) / 2
        near, far = (middle, far) if holds(math.exp(middle)) else (near, middle)
    return math.exp(near)


@dataclass(frozen=True)
class Block:
    """Sums with the same contributors."""

    size: int  # of the rotation, a power of 2
    contributors: int  # clients that are to contribute, at least 1
    least: int  # clients that must have contributed for the sums to be read, 1 to contributors
    shares: int  # clients whose noise must be enough, 1 to `least`: those of them that keep their noise to themselves


@dataclass(frozen=True)
class Grid:
    """The integers of a round."""

    scale: float  # real changes are multiplied by it
    moved: Sensitivity  # what one client can change
    variance: float  # (parameter) of the noise of every sum if as many clients drop out as are allowed; 0: no noise

    def share(self, block: Block) -> float:
        """Variance of one client's noise in a block."""
        return self.variance / block.shares


@dataclass(frozen=True)
class SharedNoise:
    """How the clients of a round make noise together."""

    mechanism: DiscreteMechanism
    noise: float  # multiplier of the Gaussian mechanism that bounds the round, at least 0
    clip: float  # Euclidean norm of a client's change, above 0
    bits: int | None  # sums are taken modulo 2^bits; None for sums of any size
    failure: float  # bound on the probability, in (0, 1), that some sum of the round wraps around
    dropouts: float  # share of a block's contributors, in [0, 1), that may drop out
    colluders: int  # clients of a round that may reveal their noise, at least 0

    def block(self, size: int, contributors: int) -> Block:
        """The block of so many coordinates. One contributor at least is honest: the one that is protected."""
        least = max(1, math.ceil((1 - self.dropouts) * contributors - 1e-9))
        return Block(padded_size(size), contributors, least, max(1, least - self.colluders))

    def grid(self, blocks: tuple[Block, ...], size: int) -> Grid:
        """The finest grid that fits; `size` is the largest number of integers of a client.

        Raises:
            UserError: where rounding on it would raise the noise too much.
        """
        for widest in (WIDE, WIDEST):
            grid = self._finest(blocks, size, widest)
            if grid is not None and grid.moved.norm <= COARSEST * grid.scale * self.clip:
                return grid
        raise self._too_few(blocks)

    def _finest(self, blocks: tuple[Block, ...], size: int, widest: float) -> Grid | None:
        def fits(scale: float) -> bool:
            return self.fits(self.at(scale, blocks, size), blocks, widest)

        coarsest = math.sqrt(size) / 4 / self.clip
        return self.at(_boundary(fits, coarsest, _LONGEST / self.clip), blocks, size) if fits(coarsest) else None

    def at(self, scale: float, blocks: tuple[Block, ...], size: int) -> Grid:
        """The grid of a scale."""
        moved = Sensitivity(rounded_norm(scale * self.clip, size), size)
        most = max(block.shares for block in blocks)
        return Grid(scale, moved, variance_for(self.mechanism, self.noise, most, moved))

    def fits(self, grid: Grid, blocks: tuple[Block, ...], widest: float = WIDEST) -> bool:
        """Whether noise has a standard deviation of at most `widest`, and sums can be told apart modulo 2^bits."""
        if max(grid.share(block) for block in blocks) > widest**2:
            return False
        return self.bits is None or self.wrapping(grid, blocks) <= math.log(self.failure)

    def wrapping(self, grid: Grid, blocks: tuple[Block, ...]) -> float:
        """Logarithm of a bound on the probability that a sum wraps around.

        By Chernoff's bound: rotated by random signs, a coordinate of the summed changes is sub-Gaussian with variance
        (contributors * clip * scale)^2 / size; Skellam noise is what its moment-generating function says, and discrete
        Gaussians stay below it; rounding moves a sum by less than the number of contributors.
        """
        assert self.bits is not None
        return float(logsumexp([self._wrapping(grid, block) for block in blocks]))

    def _wrapping(self, grid: Grid, block: Block) -> float:
        assert self.bits is not None
        room = 2.0 ** (self.bits - 1) - 1 - block.contributors
        signal = (block.contributors * self.clip * grid.scale) ** 2 / block.size
        noise = grid.share(block) * block.contributors
        if room <= 0 or signal + noise == 0:
            return math.inf if room <= 0 else -math.inf
        tilt = min(1.0, room / (signal + noise))
        return math.log(2 * block.size) + signal * tilt**2 / 2 + noise * (math.cosh(tilt) - 1) - tilt * room

    def _too_few(self, blocks: tuple[Block, ...]) -> UserError:
        clients = counted(max(block.contributors for block in blocks), "client")
        room = f"a noise of {WIDEST:g} units per client" if self.bits is None else f"{self.bits} bits"
        return UserError.of(
            f"{room} are too few for sums over {clients} with noise {self.noise:.3g} times clip {self.clip:g}",
            "changes would be rounded so coarsely that the noise would have to be raised by a quarter or more, or sums "
            "would wrap around",
            "raise --defenses.NAME.bits, allow a larger --defenses.NAME.target_epsilon, or fewer clients per round "
            "(--model.participation)",
        )
