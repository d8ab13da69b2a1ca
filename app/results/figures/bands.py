"""Bands around curves whose points are uncertain in both directions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from matplotlib.path import Path

from app.metrics.membership import Array

CORNERS = 32
"""Corners of the polygon that stands for an ellipse."""

FEWEST = 3
"""Corners of a hull without an area, the first one twice."""

Ends = tuple[float, float]
"""Smallest and largest value."""


def band(points: Sequence[tuple[Ends, Ends]]) -> Path:
    """The area that an ellipse sweeps from point to point as it changes its size.

    Its parts have the same direction, so that what several of them cover is filled once.

    Args:
        points: one or more, each as the ends of its ellipse across and up.
    """
    ellipses = [_ellipse(*point) for point in points]
    parts = [np.concatenate(pair) for pair in pairwise(ellipses)] or ellipses
    hulls = [hull(part) for part in parts]
    return Path.make_compound_path(*(Path(each, closed=True) for each in hulls if len(each) > FEWEST))


def hull(points: Array) -> Array:
    """Corners of the convex hull of (n, 2) points, counter-clockwise, the first one again at the end."""
    ordered = np.unique(points, axis=0)
    lower, upper = (_chain(each) for each in (ordered, ordered[::-1]))
    corners: Array = np.array([*lower[:-1], *upper[:-1], lower[0]])
    return corners


def _chain(ordered: Array) -> list[Array]:
    """The points, from the first to the last, between which there is no turn to the right."""
    chain: list[Array] = []
    for point in ordered:
        while len(chain) > 1 and _turn(chain[-2], chain[-1], point) <= 0:
            chain.pop()
        chain.append(point)
    return chain


def _turn(one: Array, two: Array, three: Array) -> float:
    """Positive for a turn to the left."""
    (ax, ay), (bx, by) = two - one, three - one
    return float(ax * by - ay * bx)


def _ellipse(across: Ends, up: Ends) -> Array:
    angles = np.linspace(0, 2 * np.pi, CORNERS, endpoint=False)
    directions = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    ends = np.array([across, up], dtype=np.float64)
    places: Array = ends.mean(axis=1) + directions * (ends[:, 1] - ends[:, 0]) / 2
    return places
