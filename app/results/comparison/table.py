"""The table of a comparison: one row per dataset, method and defense, one column per measure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from app.metrics.membership import NotAvailable

Group = Literal["utility", "leakage", "formal", "cost"]
Standing = Literal["best", "indistinguishable", "worse", "unknown"]
"""Against the best row of the same dataset: significantly better than all others, not significantly different from the
best, significantly worse, or too few seeds to test."""

NOT_MEASURED = NotAvailable("not measured")


@dataclass(frozen=True)
class Measure:
    """A column.

    Attributes:
        key: short name, unique in the table, such as `server_accuracy`.
        title: head of the column.
        meaning: definition in one sentence, with unit and range.
        group: group of columns that it belongs to.
        unit: shown beside the title: `%`, `s`, `MB`, `x` or nothing.
        scale: factor on values before they are shown, such as 100 for percent.
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

    @property
    def head(self) -> str:
        """Title with its unit."""
        return f"{self.title} ({self.unit})" if self.unit else self.title

    def number(self, value: float) -> str:
        """A value in the unit of the column, without the unit; numbers that round to 0 have no sign."""
        if not math.isfinite(value):
            return "∞" if value == math.inf else "–"
        shown = f"{self.scale * value:.{self.digits}f}"
        return shown.removeprefix("-") if float(shown) == 0 else shown


@dataclass(frozen=True)
class Value:
    """One entry, unscaled.

    Attributes:
        mean: over the seeds.
        low: lower end of the 95 % interval; NaN where there is none.
        high: upper end.
        by_seed: value of every seed.
        interval: over repeated training (`seeds`), over other samples of the same run (`samples`), or `none`.
        standing: against the best of the same dataset.
        marks: short remarks that stand beside the number, such as `adaptive` or `nominal`.
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
    """One dataset, method and defense over all its seeds.

    Attributes:
        dataset: dataset and partition.
        method: how submodels are chosen and aggregated.
        defense: the stack of defenses, or `none`.
        seeds: seeds of its runs, ascending.
        runs: names of the runs, in the order of the seeds.
        values: entries by key of the measure.
        notes: remarks on the row.
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

    def entry(self, measure: Measure) -> Value | NotAvailable:
        """Entry of a column, or why there is none."""
        return self.values.get(measure.key, NOT_MEASURED)


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
