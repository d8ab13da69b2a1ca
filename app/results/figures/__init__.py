"""Pictures of the report, one file for each kind; all rows look the same in all of them."""

from __future__ import annotations

from collections.abc import Iterator

from app.results.comparison.table import ComparisonTable
from app.results.figures.clients import clients
from app.results.figures.cost import cost
from app.results.figures.coverage import contributors
from app.results.figures.pareto import pareto
from app.results.figures.partition import heatmap
from app.results.figures.reconstructions import reconstructions
from app.results.figures.roc import roc
from app.results.figures.rounds import rounds
from app.results.figures.scene import FigureData
from app.results.figures.style import Picture
from app.results.figures.tsne import tsne
from app.results.run.store import Store

KINDS = (pareto, roc, rounds, clients, reconstructions, tsne, cost, heatmap, contributors)
"""In the order of the report."""


def pictures_of(store: Store, table: ComparisonTable) -> Iterator[Picture]:
    """All pictures that the runs have something for, kind by kind and dataset by dataset.

    Args:
        store: the runs.
        table: their table.
    """
    scene = FigureData(store, table)
    for kind in KINDS:
        yield from kind(scene)
