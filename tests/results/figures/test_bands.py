"""Bands of the trade-off: they hold what they should, and nothing beyond."""

import numpy as np
import pytest
from figure_kit import figures, kind_of, panels, table_of
from scipy.spatial import ConvexHull
from store_kit import labels, make_record

from app.results.comparison.table import Value
from app.results.figures.bands import band, hull
from app.results.figures.data import FigureData
from app.results.figures.pareto import pareto
from app.results.run.store import Store


@pytest.mark.parametrize("seed", range(10))
def test_the_hull_is_scipys(seed):
    """The same corners, counter-clockwise, closed."""
    points = np.random.default_rng(seed).normal(size=(40, 2))
    corners, expected = hull(points), points[ConvexHull(points).vertices]
    assert {*map(tuple, corners)} == {*map(tuple, expected)}
    assert corners[0].tolist() == corners[-1].tolist()
    x, y = corners.T
    assert np.sum(x[:-1] * y[1:] - x[1:] * y[:-1]) > 0


def test_a_band_covers_what_its_ellipses_sweep():
    """Inside are the ellipses and what lies between them; outside is what lies beside a narrow end."""
    found = band([((0.0, 2.0), (0.0, 4.0)), ((9.9, 10.1), (1.9, 2.1)), ((9.0, 11.0), (9.0, 11.0))])
    inside = [(1, 2), (0.1, 2), (1, 3.9), (5, 2), (10, 2), (10, 6), (10, 10.9)]
    outside = [(1, 4.2), (5, 5), (9, 1), (5, 8), (12, 10), (-0.1, 2)]
    parts = found.to_polygons()
    assert [any(_contains(part, point) for part in parts) for point in inside] == [True] * len(inside)
    assert [any(_contains(part, point) for part in parts) for point in outside] == [False] * len(outside)


def test_without_a_spread_there_is_no_band():
    """One seed, or the same value for all: a curve without an area."""
    assert len(band([((0.5, 0.5), (1.0, 1.0)), ((0.6, 0.6), (2.0, 2.0))]).vertices) == 0


def test_the_trade_off_has_a_band_around_every_curve():
    """From the lowest to the highest seed, in both directions; rows of a single strength have none."""
    strengths = {"none": (0.9, 0.8), "mem gamma=0.5": (0.8, 0.7), "mem gamma=0.9": (0.6, 0.6)}
    rows = [
        ("fedavg", defense, {"clients_accuracy": spread(accuracy, 0.03), "uploads_auc": spread(auc, 0.02)})
        for defense, (accuracy, auc) in strengths.items()
    ]
    runs = tuple(make_record(labels(defense=row[1])) for row in rows)
    [figure] = figures(pareto, FigureData(Store("x", "", runs, ()), table_of(*rows)))
    [axes] = panels(figure)
    [area] = [patch for patch in axes.patches if kind_of(patch) == "band"]
    low, high = area.get_path().vertices.min(axis=0), area.get_path().vertices.max(axis=0)
    np.testing.assert_allclose([*low, *high], [0.58, 57, 0.72, 83], atol=1e-9)
    assert figure.plot.marks[area.get_gid()].rows == ("fedavg / mem gamma=0.5", "fedavg / mem gamma=0.9")


def spread(mean, reach):
    """An entry of three seeds."""
    return Value(mean, mean - 2 * reach, mean + 2 * reach, {0: mean - reach, 1: mean, 2: mean + reach}, "seeds")


def _contains(polygon, point):
    """Whether a convex polygon, counter-clockwise and closed, holds a point."""
    (ax, ay), (bx, by) = polygon[:-1].T, polygon[1:].T
    return bool(np.all((bx - ax) * (point[1] - ay) - (by - ay) * (point[0] - ax) >= 0))
