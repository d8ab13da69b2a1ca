"""The table of a comparison: one row per dataset, method and defense, one column per measure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from app.metrics.membership import NotAvailable
from app.results.run.tuned import TunedRow

Group = Literal["utility", "leakage", "formal", "cost"]
Standing = Literal["best", "indistinguishable", "worse", "unknown"]
"""Against the best row of the same dataset: significantly better than all others, not significantly different from the
best, significantly worse, or too few seeds to test."""

NOT_MEASURED = NotAvailable("not measured")


@dataclass(frozen=True)
class Measure:
    """A column."""

    key: str  # short name, unique in the table, such as `server_accuracy`
    title: str  # head of the column
    meaning: str  # definition in one sentence, with unit and range
    group: Group  # group of columns that it belongs to
    unit: str = ""  # shown beside the title: `%`, `s`, `MB`, `x` or nothing
    scale: float = 1.0  # factor on values before they are shown, such as 100 for percent
    digits: int = 2  # decimal places shown
    lower_is_better: bool | None = None  # as for leakage; None where neither is better

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
    """One entry, unscaled."""

    mean: float  # over the seeds
    low: float  # lower end of the 95 % interval; NaN where there is none
    high: float  # upper end
    by_seed: Mapping[int, float]  # value of every seed
    # over repeated training (`seeds`), over other samples of the same run (`samples`), or `none`
    interval: Literal["seeds", "samples", "none"]
    standing: Standing = "unknown"  # against the best of the same dataset
    marks: tuple[str, ...] = ()  # short remarks that stand beside the number, such as `adaptive` or `nominal`


@dataclass(frozen=True)
class Row:
    """One dataset, method and defense over all its seeds."""

    dataset: str  # dataset and partition
    method: str  # how submodels are chosen and aggregated
    defense: str  # the stack of defenses, or `none`
    seeds: tuple[int, ...]  # seeds of its runs, ascending
    runs: tuple[str, ...]  # names of the runs, in the order of the seeds
    values: Mapping[str, Value | NotAvailable]  # entries by key of the measure
    notes: tuple[str, ...] = ()  # remarks on the row

    @property
    def name(self) -> str:
        """Method and defense, as in `heterofl / memdefense`."""
        return f"{self.method} / {self.defense}"

    def entry(self, measure: Measure) -> Value | NotAvailable:
        """Entry of a column, or why there is none."""
        return self.values.get(measure.key, NOT_MEASURED)


@dataclass(frozen=True)
class WordTable:
    """A table whose cells are text."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    reading: str  # how to read it
    about: tuple[Row | None, ...]  # row of the comparison that each line is about; None where it is about none

    @property
    def titles(self) -> list[str]:
        """The heads with capital first letters."""
        return [head[:1].upper() + head[1:] for head in self.heads]


@dataclass(frozen=True)
class ComparisonTable:
    """All rows."""

    measures: tuple[Measure, ...]  # the columns, in order; only those that at least one row has a value for
    rows: tuple[Row, ...]  # by dataset, then in the order of the comparison
    notes: tuple[str, ...] = ()  # remarks on the table as a whole, such as how significance was tested
    tuned: tuple[TunedRow, ...] = ()  # how rows were tuned, as far as they were

    @property
    def datasets(self) -> tuple[str, ...]:
        """Datasets in the order of the rows."""
        return tuple(dict.fromkeys(row.dataset for row in self.rows))

    def of(self, dataset: str) -> tuple[Row, ...]:
        """Rows of one dataset."""
        return tuple(row for row in self.rows if row.dataset == dataset)
