"""Figures of the report, one module for each kind; a row of the table has the same style in all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from app.results.comparison.table import ComparisonTable
from app.results.figures.clients import clients
from app.results.figures.cost import cost
from app.results.figures.coverage import contributors
from app.results.figures.data import FigureData
from app.results.figures.pareto import pareto
from app.results.figures.partition import heatmap
from app.results.figures.reconstructions import reconstructions
from app.results.figures.roc import roc
from app.results.figures.rounds import rounds
from app.results.figures.style import ReportFigure
from app.results.figures.tsne import tsne
from app.results.run.store import Store

KINDS: tuple[Callable[[FigureData, str], ReportFigure | None], ...] = (
    *(pareto, roc, rounds, clients, reconstructions, tsne, cost, heatmap, contributors),
)
"""In the order of the report; each draws one dataset, or nothing where the runs have no data for it."""


def figures_of(store: Store, table: ComparisonTable) -> Iterator[ReportFigure]:
    """All figures that the runs have data for, kind by kind and dataset by dataset.

    Args:
        store: the runs.
        table: their table.
    """
    data = FigureData(store, table)
    for kind in KINDS:
        for dataset in data.datasets:
            if figure := kind(data, dataset):
                yield figure
