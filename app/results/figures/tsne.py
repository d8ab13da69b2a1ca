"""What the released model's last layer reads of members and of others, in two dimensions (MemDefense, Figure 3)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_limits

from app.errors import UserError
from app.metrics.leakage import Leakage
from app.metrics.membership import Array
from app.results.attacks.representation_files import RepresentedSamples, read_representations
from app.results.comparison.table import Row
from app.results.figures import layout
from app.results.figures.leakage import strongest
from app.results.figures.scene import FigureData, RowStyle
from app.results.figures.style import COLOURS, Picture, report_style
from app.results.run.store import RunRecord

MOST_ROWS = 4
FEWEST_SAMPLES = 12

MEMBER: dict[str, Any] = {"color": COLOURS[0], "marker": "o"}
OTHER: dict[str, Any] = {"color": COLOURS[1], "marker": "^"}
"""How members and non-members look."""

Shown = tuple[RowStyle, str, RepresentedSamples]
"""Look of a row, its leakage in words, and what it has kept."""


def tsne(scene: FigureData) -> Iterator[Picture]:
    """One picture per dataset: the baseline and at most three other rows, those of its method first.

    So a defense stands beside the same federation without it.
    """
    for dataset in scene.datasets:
        first, *others = scene.ordered(dataset)
        others.sort(key=lambda row: row.method != first.method)
        found = [shown for row in (first, *others) for shown in _first(scene, row)]
        if found:
            yield _picture(scene, dataset, found[:MOST_ROWS])


def _first(scene: FigureData, row: Row) -> list[Shown]:
    """The first seed with representations, if any."""
    for run in scene.runs(row):
        try:
            found = read_representations(run.path)
        except UserError:
            continue
        if found is not None and found.members.size >= FEWEST_SAMPLES:
            return [(scene.look(row), _auc(scene, row, run), found)]
    return []


def embedded(found: RepresentedSamples) -> Array:
    """(samples, 2) t-SNE with a fixed start, so that the same representations give the same picture."""
    perplexity = min(30.0, found.members.size / 4)
    space = TSNE(2, perplexity=perplexity, init="pca", random_state=0, n_jobs=1)
    with threadpool_limits(1):  # threads that wait for each other are slower on a busy machine, by far
        places: Array = np.asarray(space.fit_transform(found.features.astype(np.float64)), dtype=np.float64)
    return places


def _picture(scene: FigureData, dataset: str, shown: list[Shown]) -> Picture:
    with report_style():
        margins = layout.Margins(left=0.2, right=1.3, top=0.35, bottom=0.15, across=0.25, down=0.45)
        figure, grid = layout.panels(len(shown), [2.6, 2.6], 2.2, margins)
        for (by_class, by_membership), (look, leakage, found) in zip(grid, shown, strict=True):
            places = embedded(found)
            _draw_classes(by_class, places, found)
            _draw_members(by_membership, places, found)
            by_class.set_title(f"{look.label}: by class", fontsize=layout.SMALL + 0.5, loc="left")
            by_membership.set_title(f"by membership{leakage}", fontsize=layout.SMALL + 0.5, loc="left")
        _key(grid[0, 1])
    return Picture(
        key=scene.key("tsne", dataset),
        title=scene.title("What the model makes of members and of others", dataset),
        shows=(
            "Inputs of the last layer of the released model for audited members and non-members, laid out in two "
            "dimensions by t-SNE, on the left coloured by class, on the right by membership; one seed each of the "
            "baseline and up to three other rows, those of its method first."
        ),
        reading=(
            "On the left, separate classes mean a useful model. On the right, members and others that are well mixed "
            "are good. t-SNE keeps neighbours, not distances, and may show clusters that mean nothing: the AUC beside "
            "it (0.5 is chance) is what counts."
        ),
        figure=figure,
    )


def _auc(scene: FigureData, row: Row, run: RunRecord) -> str:
    """Leakage of the same run's released model, where it was attacked."""
    found = [record.leakage for one, record in strongest(scene.cell(row), "global") if one is run]
    return f", AUC {found[0].auc.value:.3f}" if found and isinstance(found[0], Leakage) else ""


def _draw_classes(axes: Axes, places: Array, found: RepresentedSamples) -> None:
    colours = [COLOURS[label % len(COLOURS)] for label in found.labels]
    axes.scatter(places[:, 0], places[:, 1], s=9, c=colours, linewidths=0, alpha=0.85, rasterized=True)
    _bare(axes)


def _draw_members(axes: Axes, places: Array, found: RepresentedSamples) -> None:
    # Members are drawn last and first in turn, so that neither kind covers the other.
    order = np.random.default_rng(0).permutation(found.members.size)
    for part in np.array_split(order, 8):
        for chosen, look in ((found.members[part], MEMBER), (~found.members[part], OTHER)):
            across, up = places[part[chosen]].T
            axes.scatter(across, up, s=11, linewidths=0, alpha=0.75, rasterized=True, **look)
    _bare(axes)


def _bare(axes: Axes) -> None:
    axes.set(xticks=[], yticks=[])
    axes.margins(0.04)
    axes.set_aspect("auto")


def _key(axes: Axes) -> None:
    handles = [
        Line2D([], [], linestyle="", markersize=5, label=name, **look)
        for name, look in (("member", MEMBER), ("non-member", OTHER))
    ]
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.0, 1.02), fontsize=layout.SMALL, handletextpad=0.2)
