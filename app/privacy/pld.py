"""Epsilon by privacy-loss distributions, through Google's dp-accounting, which is installed on demand."""

from __future__ import annotations

import math
from collections.abc import Iterable
from importlib.metadata import version
from types import ModuleType

from app.common.errors import UserError

_FINE, _COARSE, _MANY = 5e-4, 1e-3, 1000
"""Width of the grid of privacy losses, finer for many steps, since its error adds up over them."""


def library() -> ModuleType:
    """The module dp_accounting.

    Raises:
        UserError: where it is not installed.
    """
    try:
        import dp_accounting
        import dp_accounting.pld  # not imported by the package itself
    except ImportError as error:
        raise UserError.of(
            "the accountant pld needs dp-accounting, which is not installed",
            "epsilon cannot be computed",
            'pip install "rampart-fl[pld]", or choose --defenses.NAME.accountant prv, which is as tight',
        ) from error
    module: ModuleType = dp_accounting
    return module


def library_version() -> str:
    """The library with its version."""
    return f"dp-accounting {version('dp-accounting')}"


def pld_epsilon(history: Iterable[tuple[float, float, int]], delta: float) -> float:
    """Upper bound of epsilon for steps of (noise, rate, count), pessimistic on its grid; infinite where it fails."""
    module, steps = library(), list(history)
    count = sum(each for _, _, each in steps)
    accountant = module.pld.PLDAccountant(value_discretization_interval=_COARSE if count < _MANY else _FINE)
    try:
        for noise, rate, each in steps:
            gaussian = module.GaussianDpEvent(noise)
            once = gaussian if rate == 1 else module.PoissonSampledDpEvent(rate, gaussian)
            accountant.compose(module.SelfComposedDpEvent(once, each))
        spent = float(accountant.get_epsilon(delta))
    except (ValueError, OverflowError, MemoryError):
        return math.inf
    return max(0.0, spent) if math.isfinite(spent) else math.inf
