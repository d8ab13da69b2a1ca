"""Which rows of a dataset are best beyond chance.

The row with the best mean was picked because it looks best, so that comparing only it with the others finds differences
far too often where there are none (9 % of the time with 8 equal rows and 3 seeds, 17 % with 16 rows and 10 seeds). All
pairs are compared instead, with Holm's correction for all of them: then equal rows are told apart by mistake at most
5 % of the time, however many rows there are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations

from app.metrics.comparison import Comparison
from app.metrics.membership import NotAvailable
from app.metrics.repetitions import with_holm
from app.results.comparison.table import Standing

ComparePair = Callable[[str, str], Comparison | NotAvailable]
"""Compares two rows by name; differences are first minus second."""


def standings(means: Mapping[str, float], lower_is_better: bool, compare: ComparePair) -> dict[str, Standing]:
    """Standing of every row of one dataset in one measure.

    A row that can be compared with no other, as one with too few seeds, is unknown, and nothing is best beside it; the
    others are compared with the best among them.

    Args:
        means: mean of every row that has a number, by name.
        lower_is_better: as for leakage; False for accuracy.
        compare: compares two rows.
    """
    found = {pair: compare(*pair) for pair in combinations(means, 2)}
    tested = with_holm({"\n".join(pair): each for pair, each in found.items() if isinstance(each, Comparison)})
    rivals = {name for pair in tested for name in pair.split("\n")}
    if not rivals:
        return dict.fromkeys(means, "unknown")
    best = (min if lower_is_better else max)((name for name in means if name in rivals), key=lambda name: means[name])
    others = {name: _against(tested, name, best) for name in means if name != best}
    return {name: others[name] if name != best else _of_best(list(others.values())) for name in means}


def _against(tested: Mapping[str, Comparison], name: str, best: str) -> Standing:
    """Standing of a row that has not the best mean."""
    found = tested.get(f"{name}\n{best}") or tested.get(f"{best}\n{name}")
    if found is None:
        return "unknown"
    return "indistinguishable" if found.verdict == "indistinguishable" else "worse"


def _of_best(others: list[Standing]) -> Standing:
    """Standing of the row with the best mean, from those of all others."""
    if all(standing == "worse" for standing in others):
        return "best"
    return "indistinguishable" if "indistinguishable" in others else "unknown"
