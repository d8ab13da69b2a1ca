"""Pictures of the report, one file for each kind; all rows look the same in all of them."""

from __future__ import annotations

from collections.abc import Iterator

from app.results.comparison.table import ComparisonTable
from app.results.report.pictures.clients import clients
from app.results.report.pictures.contributors import contributors
from app.results.report.pictures.cost import cost
from app.results.report.pictures.heatmap import heatmap
from app.results.report.pictures.pareto import pareto
from app.results.report.pictures.reconstructions import reconstructions
from app.results.report.pictures.roc import roc
from app.results.report.pictures.rounds import rounds
from app.results.report.pictures.scene import Scene
from app.results.report.pictures.tsne import tsne
from app.results.report.style import Picture
from app.results.store import Store

KINDS = (pareto, roc, rounds, clients, reconstructions, tsne, cost, heatmap, contributors)
"""In the order of the report."""


def pictures_of(store: Store, table: ComparisonTable) -> Iterator[Picture]:
    """All pictures that the runs have something for, kind by kind and dataset by dataset.

    Args:
        store: the runs.
        table: their table.
    """
    scene = Scene(store, table)
    for kind in KINDS:
        yield from kind(scene)
