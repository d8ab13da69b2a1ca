"""How a quantity spreads over clients: a mean alone hides who pays."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """Mean, worst (smallest) and population standard deviation over clients; NaN without any value."""

    mean: float
    worst: float
    std: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Spread of the values that are not NaN."""
        present = [value for value in values if not math.isnan(value)]
        if not present:
            return cls(math.nan, math.nan, math.nan)
        mean = math.fsum(present) / len(present)
        variance = math.fsum((value - mean) ** 2 for value in present) / len(present)
        return cls(mean, min(present), math.sqrt(variance))
