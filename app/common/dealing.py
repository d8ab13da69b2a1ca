"""Dealing work of unequal cost to processes, machines or threads that work at the same time."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def deal(costs: Sequence[float], parts: int) -> list[list[int]]:
    """Positions of the costs in every part, those of high cost first: each goes to the part with the least so far.

    The costliest part costs at most 4/3 - 1 / (3 parts) times that of the best possible division (Graham 1969, longest
    processing time first). Every position is in exactly one part, and equal costs give equal parts everywhere.
    """
    dealt: list[list[int]] = [[] for _ in range(parts)]
    loads = [(0.0, part) for part in range(parts)]
    for position in sorted(range(len(costs)), key=lambda position: (-costs[position], position)):
        load, part = loads[0]
        dealt[part].append(position)
        heapq.heapreplace(loads, (load + costs[position], part))
    return dealt
