"""dp-accounting (Google) as an oracle beside our accountants, which rest on Opacus."""

from collections.abc import Iterable

import dp_accounting
from dp_accounting import NeighboringRelation, pld, rdp

from app.privacy.accounting import ORDERS, Steps


def event_of(steps: Steps) -> dp_accounting.DpEvent:
    """Equal steps of the Gaussian mechanism, on Poisson samples where the rate is below 1."""
    gaussian = dp_accounting.GaussianDpEvent(steps.noise)
    once = gaussian if steps.rate == 1 else dp_accounting.PoissonSampledDpEvent(steps.rate, gaussian)
    return dp_accounting.SelfComposedDpEvent(once, steps.count)


def rdp_oracle(history: Iterable[Steps], delta: float) -> float:
    """Epsilon by Rényi differential privacy, at half of our orders from 2."""
    accountant = rdp.RdpAccountant([order for order in ORDERS if order >= 2][::2])
    for steps in history:
        accountant.compose(event_of(steps))
    return float(accountant.get_epsilon(delta))


def pld_oracle(history: Iterable[Steps], delta: float) -> float:
    """Epsilon by privacy-loss distributions: an upper bound of the truth, and hardly above it."""
    known = list(history)
    # the grid's error adds up over steps
    accountant = pld.PLDAccountant(value_discretization_interval=5e-3 if sum(s.count for s in known) < 1000 else 5e-4)
    for steps in known:
        accountant.compose(event_of(steps))
    return float(accountant.get_epsilon(delta))


def fixed_size_oracle(noise: float, sample: int, population: int, count: int, delta: float) -> float:
    """Epsilon where equally many are drawn without replacement in every step, for data that differ in one record."""
    accountant = rdp.RdpAccountant(list(range(2, 64)), NeighboringRelation.REPLACE_ONE)
    # noise over the clipping norm; replacing one record moves a sum by twice the norm
    gaussian = dp_accounting.GaussianDpEvent(noise / 2)
    drawn = dp_accounting.SampledWithoutReplacementDpEvent(population, sample, gaussian)
    accountant.compose(dp_accounting.SelfComposedDpEvent(drawn, count))
    return float(accountant.get_epsilon(delta))
