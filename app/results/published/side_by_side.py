"""Published results beside ours: every published number with our result, the difference, and caveats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.common.reading import read_json
from app.metrics.intervals import Interval
from app.metrics.membership import NotAvailable
from app.results.comparison.table import ComparisonTable
from app.results.published.ours import OwnResult, own_result
from app.results.published.parse import parse_published
from app.results.published.values import PublishedFigure
from app.results.run.store import COMPARISON, Store

FULL = "full"
"""Scale of a comparison that trains as the paper does."""


@dataclass(frozen=True)
class PublishedRow:
    """A published number, and our result in the same unit or why there is none."""

    figure: PublishedFigure
    ours: OwnResult | NotAvailable

    @property
    def difference(self) -> float | None:
        """Ours minus theirs, in the unit of the number; None where there is no result of ours."""
        return None if isinstance(self.ours, NotAvailable) else self.ours.value - self.figure.value

    @property
    def agrees(self) -> bool | None:
        """Whether a printed value lies within our interval, or a bound holds for us; None where it cannot be tested."""
        if isinstance(self.ours, NotAvailable):
            return None
        if self.figure.relation == "above":
            return self.ours.value > self.figure.value
        if self.figure.relation == "below":
            return self.ours.value < self.figure.value
        interval = self.ours.interval
        return interval.contains(self.figure.value) if isinstance(interval, Interval) else None

    @property
    def shorter(self) -> tuple[int, int] | None:
        """Our rounds and theirs where ours are fewer; None otherwise, or where the paper does not say."""
        if isinstance(self.ours, NotAvailable) or self.figure.rounds is None:
            return None
        return (self.ours.rounds, self.figure.rounds) if self.ours.rounds < self.figure.rounds else None


@dataclass(frozen=True)
class PublishedComparison:
    """All published numbers of a comparison beside ours."""

    rows: tuple[PublishedRow, ...]  # in the order of the comparison's file
    scale: str = ""  # at which ours was run; empty where nothing says so

    @property
    def measured(self) -> tuple[PublishedRow, ...]:
        """Rows with a result of ours."""
        return tuple(row for row in self.rows if isinstance(row.ours, OwnResult))

    @property
    def caveats(self) -> tuple[str, ...]:
        """Differences between our runs and those of the paper, and what the numbers do not show."""
        caveats = (self._scale_caveat(), self._rounds_caveat(), self._seeds_caveat(), self._extremes_caveat())
        return tuple(text for text in caveats if text)

    @property
    def summary(self) -> str:
        """How many published numbers have one of ours beside them, and how many agree."""
        verdicts = [row.agrees for row in self.measured if row.agrees is not None]
        counted = f"{len(self.measured)} of {len(self.rows)} published numbers have a result of ours beside them"
        if not verdicts:
            return counted
        agree = f"{sum(verdicts)} of the {len(verdicts)} that can be tested lie within our interval, or hold as a bound"
        return f"{counted}; {agree}"

    def _scale_caveat(self) -> str:
        if self.scale in ("", FULL) or not self.measured:
            return ""
        return f"ours was run at the scale `{self.scale}`, not as in the paper: differences are no reproduction"

    def _rounds_caveat(self) -> str:
        short = sorted({row.shorter for row in self.measured if row.shorter})
        if not short:
            return ""
        counts = ", ".join(f"{ours} of {theirs}" for ours, theirs in short[:3]) + (" ..." if len(short) > 3 else "")
        return f"ours was trained for fewer rounds than the paper's ({counts})"

    def _seeds_caveat(self) -> str:
        alone = sum(isinstance(row.ours, OwnResult) and row.ours.about == "none" for row in self._means())
        if not alone:
            return ""
        return f"{alone} of our results are of one seed and have no interval: they cannot be tested"

    def _extremes_caveat(self) -> str:
        """The highest of few runs is lower than that of many."""
        extremes = [row.ours for row in self.measured if row.figure.statistic != "mean"]
        counts = {len(ours.seeds) for ours in extremes if isinstance(ours, OwnResult)}
        return f"highest and lowest values are those of {_range(counts)} of our runs" if counts else ""

    def _means(self) -> list[PublishedRow]:
        return [
            row for row in self.measured if row.figure.statistic == "mean" and row.figure.relation in ("is", "about")
        ]


def _range(counts: set[int]) -> str:
    return str(min(counts)) if len(counts) == 1 else f"{min(counts)} to {max(counts)}"


def side_by_side(store: Store, table: ComparisonTable, published: Sequence[PublishedFigure]) -> PublishedComparison:
    """Every published number with our result.

    Args:
        store: the runs.
        table: their table.
        published: what the papers print, see `published_of`.
    """
    rows = tuple(PublishedRow(figure, own_result(store, table, figure)) for figure in published)
    scales = {scale for each in _comparisons(store) if (scale := str(each.get("scale") or ""))}
    return PublishedComparison(rows, scales.pop() if len(scales) == 1 else ", ".join(sorted(scales)))


def published_of(store: Store) -> tuple[PublishedFigure, ...]:
    """Published numbers that the comparison files of the runs list; empty where they list none.

    Raises:
        UserError: where entries cannot be understood.
    """
    return tuple(
        dict.fromkeys(figure for each in _comparisons(store) for figure in parse_published(each.get("published")))
    )


def _comparisons(store: Store) -> list[dict[str, Any]]:
    """Contents of the comparison files beside the runs, one per folder."""
    folders = dict.fromkeys(run.path.parent for run in store.runs)
    return [content for folder in folders if (content := _read(folder / COMPARISON)) is not None]


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content = read_json(path)
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None
