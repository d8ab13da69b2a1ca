"""Rows of a dataset that are significantly best.

The row with the best mean was picked because it looks best, so that comparing only it with the others finds differences
far too often where there are none (9 % of the time with 8 equal rows and 3 seeds, 17 % with 16 rows and 10 seeds). All
pairs are compared instead. Two rows differ where two tests are significant: their own, so that equal rows seldom differ
however much others vary, and one corrected for the number of pairs (Holm). For results over seeds, the latter pools the
variance of all rows: a few seeds say too little about a single pair to correct for all pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations

from app.metrics.membership import NotAvailable
from app.metrics.paired_tests import OVER_SEEDS, PairedDifference, holm
from app.results.comparison.table import Standing

LEVEL = 0.04
"""Largest p-value of a difference: below 0.05, since a few seeds need not be normal, and t-tests are then not exact."""

Pair = tuple[str, str]

ComparePair = Callable[[str, str], PairedDifference | NotAvailable]
"""Compares two rows by name; differences are first minus second."""


def standings(
    means: Mapping[str, float],
    lower_is_better: bool,
    compare: ComparePair,
    pooled: Mapping[Pair, float] | None = None,
) -> dict[str, Standing]:
    """Standing of every row of one dataset in one measure.

    A row that can be compared with no other, as one with too few seeds, is unknown, and nothing is best beside it; the
    others are compared with the best among them.

    Args:
        means: mean of every row that has a number, by name.
        lower_is_better: as for leakage; False for accuracy.
        compare: compares two rows.
        pooled: p-values of pairs, in the order of the means, with chance measured on all rows; they are used for pairs
            that are compared over seeds.
    """
    results = {pair: compare(*pair) for pair in combinations(means, 2)}
    tested = {pair: each for pair, each in results.items() if isinstance(each, PairedDifference)}
    rivals = {name for pair in tested for name in pair}
    if not rivals:
        return dict.fromkeys(means, "unknown")
    differ = _differing(tested, pooled or {})
    best = (min if lower_is_better else max)((name for name in means if name in rivals), key=lambda name: means[name])
    others = {name: _against(differ, name, best) for name in means if name != best}
    return {name: others[name] if name != best else _of_best(list(others.values())) for name in means}


def _differing(tested: Mapping[Pair, PairedDifference], pooled: Mapping[Pair, float]) -> dict[Pair, bool]:
    """Whether two rows differ, by their own test and by the one corrected for all pairs."""
    together = [
        pooled.get(pair, each.p_value) if each.test == OVER_SEEDS else each.p_value for pair, each in tested.items()
    ]
    return {
        pair: each.difference != 0 and max(each.p_value, corrected) < LEVEL
        for (pair, each), corrected in zip(tested.items(), holm(together), strict=True)
    }


def _against(differ: Mapping[Pair, bool], name: str, best: str) -> Standing:
    """Standing of a row whose mean is not the best."""
    differs = differ.get((name, best), differ.get((best, name)))
    if differs is None:
        return "unknown"
    return "worse" if differs else "indistinguishable"


def _of_best(others: list[Standing]) -> Standing:
    """Standing of the row with the best mean, from those of all others."""
    if all(standing == "worse" for standing in others):
        return "best"
    return "indistinguishable" if "indistinguishable" in others else "unknown"
