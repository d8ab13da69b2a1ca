"""Privacy accounting: epsilon of a history of noisy steps, and the noise for a budget."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import opacus
from opacus.accountants import PRVAccountant, RDPAccountant
from opacus.accountants.analysis.prv import Domain
from opacus.accountants.analysis.rdp import compute_rdp, get_privacy_spent
from scipy.optimize import brentq
from scipy.special import log_ndtr

from app.common.errors import UserError
from app.privacy.pld import library_version, pld_epsilon

AccountantName = Literal["rdp", "prv", "pld"]
"""Rényi differential privacy (fast), privacy-loss random variables (tighter, slower), or privacy-loss distributions (as
tight, an upper bound, with dp-accounting)."""

Composition = AccountantName | Literal["rdp-whole"]
"""Also Rényi differential privacy at whole orders, for mechanisms whose bounds hold for these only."""

ORDERS: tuple[float, ...] = (
    *(1 + step / 100 for step in range(1, 10)),
    *(1 + step / 10 for step in range(1, 110)),
    *map(float, range(12, 64)),
    *(64.0, 80.0, 96.0, 128.0, 160.0, 192.0, 256.0, 320.0, 384.0, 512.0, 768.0, 1024.0),
)
"""Rényi orders that are tried: Opacus's own, and wider on both sides for very large and very small budgets."""

_WHOLE_ORDERS = tuple(order for order in ORDERS if order.is_integer())

_STRIDES = (32, 8, 2, 1)
"""Between the orders that are looked at, one look after the other."""

_GRID_ORDERS = tuple(map(float, RDPAccountant.DEFAULT_ALPHAS))

_MOST_NOISE = 2.0**20

_PRV_LIMIT = 100.0
"""Budgets above it are not refined by PRV: its grid would fill the memory, and such an epsilon promises nothing."""


@dataclass(frozen=True)
class Steps:
    """Equal steps of the Gaussian mechanism on Poisson samples."""

    noise: float  # standard deviation of the noise over the clipping norm (multiplier), at least 0
    rate: float  # probability in (0, 1] with which each record enters a step
    count: int  # number of steps, at least 0

    def __post_init__(self) -> None:
        if not (self.noise >= 0 and 0 < self.rate <= 1 and self.count >= 0):
            raise ValueError(f"impossible steps: {self}")


History = tuple[tuple[float, float, int], ...]
"""Noise, rate and count of distinct steps, in a fixed order: equal budgets have equal histories."""


def epsilon(history: Iterable[Steps], delta: float, accountant: Composition = "rdp") -> float:
    """Epsilon that a history of steps has spent; its order does not matter.

    Args:
        history: all steps that touched the same records.
        delta: in (0, 1).
        accountant: how steps are composed. `prv` and `pld` fall back on the bound of `rdp` where that one is smaller,
            where their own numbers overflow, and where epsilon exceeds 100.

    Returns:
        0 without any step, infinity where a step had no noise.
    """
    return _epsilon(_merged(history), delta, accountant)


def analytic_epsilon(noise: float, delta: float, releases: int = 1) -> float:
    """Exact epsilon of `releases` Gaussian mechanisms without sampling (Balle and Wang 2018, theorem 8).

    The noise is its standard deviation over the sensitivity, at least 0; delta lies in (0, 1).
    """
    return composed_epsilon([Steps(noise, 1.0, releases)], delta)


def composed_epsilon(history: Iterable[Steps], delta: float) -> float:
    """Exact epsilon of Gaussian mechanisms without sampling whose noise may differ; their order does not matter.

    They compose to one mechanism (Dong et al. 2022, corollary 3.3): the squares of sensitivity over noise add up.
    """
    merged = _merged(history)
    if any(rate < 1 for _, rate, _ in merged):
        raise ValueError("mechanisms on samples do not compose in closed form")
    if any(noise == 0 for noise, _, _ in merged):
        return math.inf
    return _gaussian_epsilon(math.sqrt(sum(count / noise**2 for noise, _, count in merged)), delta)


@lru_cache(maxsize=4096)
def _gaussian_epsilon(distance: float, delta: float) -> float:
    """Epsilon of the Gaussian mechanism whose means are `distance` standard deviations apart."""
    if distance == 0:
        return 0.0

    def excess(candidate: float) -> float:
        first = log_ndtr(distance / 2 - candidate / distance)
        second = candidate + log_ndtr(-distance / 2 - candidate / distance)
        return float(first + np.log(-np.expm1(second - first))) - math.log(delta)

    if excess(0.0) <= 0:
        return 0.0
    upper = 1.0
    while excess(upper) > 0:
        upper *= 2
    return float(brentq(excess, 0.0, upper, xtol=1e-12))


def composed_noise_for(target: float, delta: float, count: int, past: Iterable[Steps] = ()) -> float:
    """Smallest noise with which `count` more Gaussian mechanisms without sampling stay within epsilon `target`.

    Infinity where the past alone has spent it; 0 for a target that promises nothing, above 1e9.
    """
    if target > 1e9:
        return 0.0
    farthest = 1.0
    while _gaussian_epsilon(farthest, delta) <= target:
        farthest *= 2
    distance = brentq(lambda one: _gaussian_epsilon(one, delta) - target, 0.0, farthest, xtol=1e-15)
    left = distance**2 - sum(steps.count / steps.noise**2 if steps.noise else math.inf for steps in past)
    return math.sqrt(count / left) * (1 + 1e-9) if left > 0 else math.inf


def noise_for(
    target: float, delta: float, plan: Sequence[Steps], accountant: Composition = "rdp", past: Sequence[Steps] = ()
) -> float:
    """Smallest noise multiplier (to 0.1 %, never too small) with which planned steps stay within epsilon `target`.

    Args:
        target: of the past and the planned steps together.
        delta: in (0, 1).
        plan: steps to come; their own noise is not looked at.
        accountant: how steps are composed.
        past: steps that have been taken, with the noise that they had.

    Raises:
        UserError: where no noise is enough.
    """

    def excess(noise: float) -> float:
        spent = epsilon([*past, *(replace(steps, noise=noise) for steps in plan)], delta, accountant)
        return math.log(spent / target) if 0 < spent < math.inf else spent - target

    if target > 0 and (math.isinf(target) or excess(0.0) <= 0):  # no limit, or nothing is planned
        return 0.0
    enough = _enough_noise(excess) if target > 0 else math.inf
    if enough > _MOST_NOISE:
        raise beyond_budget(target, delta, accountant, epsilon(past, delta, accountant))
    noise = math.exp(brentq(lambda x: excess(math.exp(x)), math.log(enough / 2), math.log(enough), xtol=2e-4))
    while excess(noise) > 0:
        noise *= 1 + 2e-4
    return noise


def beyond_budget(target: float, delta: float, accountant: str, spent: float = 0.0) -> UserError:
    """The error of a plan that no noise keeps within its budget, of which `spent` is gone."""
    gone = f", and {spent:.4g} is spent" if spent else ""
    return UserError.of(
        f"no noise keeps epsilon within {target:g} at delta {delta:g} ({accountant} accountant){gone}",
        "the plan of the run cannot be carried out within its privacy budget",
        "allow a larger epsilon or delta, or plan fewer rounds: --trainer.max_epochs",
    )


def _enough_noise(excess: Callable[[float], float]) -> float:
    """A power of 2 that is enough although half of it is not; above the most if there is none."""
    enough = 1.0
    while excess(enough) > 0 and enough <= _MOST_NOISE:
        enough *= 2
    while excess(enough / 2) <= 0:
        enough /= 2
    return enough


def version(accountant: AccountantName = "rdp") -> str:
    """The library behind an accountant, with its version."""
    return library_version() if accountant == "pld" else f"opacus {opacus.__version__}"


def _merged(history: Iterable[Steps]) -> History:
    counts: Counter[tuple[float, float]] = Counter()
    for steps in history:
        counts[(steps.noise, steps.rate)] += steps.count
    return tuple((noise, rate, count) for (noise, rate), count in sorted(counts.items()) if count)


@lru_cache(maxsize=4096)
def _epsilon(history: History, delta: float, accountant: Composition) -> float:
    if not history:
        return 0.0
    if any(noise == 0 for noise, _, _ in history):
        return math.inf
    bound = _rdp_epsilon(history, delta, _WHOLE_ORDERS if accountant == "rdp-whole" else ORDERS)
    if accountant not in ("prv", "pld") or bound >= _PRV_LIMIT:
        return bound
    return min(bound, (_prv_epsilon if accountant == "prv" else pld_epsilon)(history, delta))


def _rdp_epsilon(history: History, delta: float, orders: Sequence[float]) -> float:
    return max(0.0, _least(history, delta, orders))


def _least(history: History, delta: float, orders: Sequence[float]) -> float:
    """The least bound over the orders: it falls and then rises, so ever closer looks at ever fewer of them find it."""
    first, last = 0, len(orders) - 1
    for stride in _STRIDES:
        places = [*range(first, last, stride), last]
        best, order = _best_order(history, delta, [orders[place] for place in places])
        place = orders.index(order)
        first, last = max(0, place - stride), min(len(orders) - 1, place + stride)
    return best


def _best_order(history: History, delta: float, orders: Sequence[float]) -> tuple[float, float]:
    total = np.sum([[_rdp(noise, rate, each) * count for each in orders] for noise, rate, count in history], axis=0)
    with _no_advice():
        best, order = get_privacy_spent(orders=list(orders), rdp=list(total), delta=delta)
    return float(best), float(order)


@lru_cache(maxsize=1 << 16)
def _rdp(noise: float, rate: float, order: float) -> float:
    """Rényi divergence of one step at one order; infinite where its series does not converge in floating point."""
    try:
        return float(compute_rdp(q=rate, noise_multiplier=noise, steps=1, orders=order))
    except (ValueError, OverflowError):
        return math.inf


class _PRVAccountant(PRVAccountant):
    """Opacus's, but the budgets that say how wide its grid must be are looked for at a few of its Rényi orders only."""

    def _get_domain(
        self, prvs: Any, num_self_compositions: Sequence[int], eps_error: float, delta_error: float
    ) -> Domain:
        """As Opacus's `compute_safe_domain_size` has it: for all steps, and for every kind of step alone."""
        count = sum(num_self_compositions)
        widths = [_least(tuple(self.history), delta_error / 4, _GRID_ORDERS)]
        widths += [_least(((*kind, 1),), delta_error / (8 * count), _GRID_ORDERS) for *kind, _ in self.history]
        width, mesh = max(*widths, eps_error) + 3, eps_error / np.sqrt(count * np.log(12 / delta_error) / 2)
        return Domain.create_aligned(-width, width, mesh)


def _prv_epsilon(history: History, delta: float) -> float:
    accountant = _PRVAccountant()
    accountant.history = list(history)
    try:
        with np.errstate(all="ignore"), _no_advice():  # there, orders only choose the width of the grid
            spent = float(accountant.get_epsilon(delta))
    except (ValueError, RuntimeError, OverflowError):
        return math.inf
    return max(0.0, spent) if math.isfinite(spent) else math.inf


@contextmanager
def _no_advice() -> Iterator[None]:
    """Hide Opacus's advice to try more orders: at the ends of the wide list it does not apply."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Optimal order is the")
        yield
