"""The table of a comparison: one row per dataset, method and defense, one column per measure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from app.metrics.membership import NotAvailable

Group = Literal["utility", "leakage", "formal", "cost"]
Standing = Literal["best", "indistinguishable", "worse", "unknown"]
"""Against the best row of the same dataset: it is the best beyond chance, cannot be told from the best, is worse beyond
chance, or there are too few seeds to tell."""


@dataclass(frozen=True)
class Measure:
    """A column.

    Attributes:
        key: short name, unique in the table, such as `server_accuracy`.
        title: head of the column.
        meaning: what it is, in one sentence, with its unit and range.
        group: what it belongs to.
        unit: shown beside the title: `%`, `s`, `MB`, `x` or nothing.
        scale: what values are multiplied with before they are shown, such as 100 for percent.
        digits: decimal places shown.
        lower_is_better: as for leakage; None where neither is better.
    """

    key: str
    title: str
    meaning: str
    group: Group
    unit: str = ""
    scale: float = 1.0
    digits: int = 2
    lower_is_better: bool | None = None


@dataclass(frozen=True)
class Value:
    """One entry, unscaled.

    Attributes:
        mean: over the seeds.
        low: lower end of the 95 % interval; NaN where there is none.
        high: upper end.
        by_seed: value of every seed.
        interval: what the interval tells about: `seeds` (training again), `samples` (other samples of the same run) or
            `none`.
        standing: against the best of the same dataset.
        marks: short remarks that belong right beside the number, such as `adaptive` or `nominal`.
    """

    mean: float
    low: float
    high: float
    by_seed: Mapping[int, float]
    interval: Literal["seeds", "samples", "none"]
    standing: Standing = "unknown"
    marks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """One cell of the matrix over all its seeds.

    Attributes:
        dataset: dataset and partition.
        method: how submodels are chosen and aggregated.
        defense: the stack of defenses, or `none`.
        seeds: seeds of its runs, ascending.
        runs: names of the runs, in the order of the seeds.
        values: entries by key of the measure.
        notes: what must be known to read the row.
    """

    dataset: str
    method: str
    defense: str
    seeds: tuple[int, ...]
    runs: tuple[str, ...]
    values: Mapping[str, Value | NotAvailable]
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Method and defense, as in `heterofl / memdefense`."""
        return f"{self.method} / {self.defense}"


@dataclass(frozen=True)
class ComparisonTable:
    """All rows.

    Attributes:
        measures: the columns, in order; only those that at least one row has a value for.
        rows: by dataset, then in the order of the comparison.
        notes: remarks on the table as a whole, such as how significance was tested.
    """

    measures: tuple[Measure, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    @property
    def datasets(self) -> tuple[str, ...]:
        """Datasets in the order of the rows."""
        return tuple(dict.fromkeys(row.dataset for row in self.rows))

    def of(self, dataset: str) -> tuple[Row, ...]:
        """Rows of one dataset."""
        return tuple(row for row in self.rows if row.dataset == dataset)
