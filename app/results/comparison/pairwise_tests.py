"""How two rows are compared: over seeds, by their scores where seeds are few, exactly where bytes are counted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from scipy import stats

from app.errors import UserError
from app.metrics.bootstrap import Bootstrap
from app.metrics.intervals import Interval
from app.metrics.membership import MembershipScores, NotAvailable
from app.metrics.paired_tests import PairedDifference, compare_auc, compare_over_seeds
from app.results.comparison.rows import RowRuns, SeedValues
from app.results.comparison.table import Measure

FEWEST_SEEDS = 3
"""Common seeds that a comparison over seeds needs."""

COUNTED = ("megabytes_up", "megabytes_down")
"""Measures that are counted, so that a difference which no seed changes is no accident."""

RESAMPLES = Bootstrap(resamples=200)
"""Enough for a standard error within 5 %."""


@dataclass(frozen=True, eq=False)
class PairwiseTests:
    """Compares rows in pairs; scores are read once.

    Attributes:
        cells: the rows.
    """

    cells: Sequence[RowRuns]
    _scores: dict[tuple[str, str], MembershipScores] = field(default_factory=dict)

    def compare(
        self, pair: tuple[int, int], series: tuple[SeedValues, SeedValues], measure: Measure
    ) -> PairedDifference | NotAvailable:
        """Difference of two rows, first minus second, or why it cannot be tested.

        Args:
            pair: numbers of the two cells.
            series: their values.
            measure: what is compared; one in which lower or higher is better.
        """
        seeds = sorted(set(series[0].by_seed) & set(series[1].by_seed))
        first, second = ({seed: each.by_seed[seed] for seed in seeds} for each in series)
        lower = bool(measure.lower_is_better)
        if measure.key in COUNTED and len(seeds) > 1 and len({*first.values()}) == len({*second.values()}) == 1:
            return _counted(first, second, lower)
        if len(seeds) >= FEWEST_SEEDS:
            found = compare_over_seeds(first, second, lower)
            return found if isinstance(found, PairedDifference) else _shares(series, found)
        if series[0].images:
            return _shares(series, NotAvailable("no images were attacked"))
        if seeds and series[0].label and measure.key.endswith("_auc"):
            return self._by_scores(pair, (series[0].label, series[1].label), seeds)
        return NotAvailable(f"the rows share {len(seeds)} of {FEWEST_SEEDS} seeds that a comparison needs")

    def _by_scores(
        self, pair: tuple[int, int], labels: tuple[str, str], seeds: Sequence[int]
    ) -> PairedDifference | NotAvailable:
        """Paired bootstrap of the areas in every common seed; with two seeds, both must differ alike."""
        found = []
        for seed in seeds:
            try:
                first, second = (self._read(cell, label, seed) for cell, label in zip(pair, labels, strict=True))
                one = compare_auc(first, second, RESAMPLES)
            except UserError as error:
                return NotAvailable(error.problems[0].cause)
            if isinstance(one, NotAvailable):
                return one
            found.append(one)
        agree = len({each.difference > 0 for each in found}) == 1
        p_value = max(each.p_value for each in found) if agree else 1.0
        return replace(found[0], difference=fmean(each.difference for each in found), p_value=p_value)

    def _read(self, cell: int, label: str, seed: int) -> MembershipScores:
        run = self.cells[cell].run(seed)
        assert run is not None, "the seed is one of the cell's"
        key = (str(run.path), label)
        if key not in self._scores:
            self._scores[key] = run.scores(label)
        return self._scores[key]


def _shares(series: tuple[SeedValues, SeedValues], otherwise: NotAvailable) -> PairedDifference | NotAvailable:
    """Fisher's exact test of the images recovered in all runs, where seeds show no spread or are few."""
    (first, of_first), (second, of_second) = (each.images or (0, 0) for each in series)
    if not of_first or not of_second:
        return otherwise
    table = [[first, of_first - first], [second, of_second - second]]
    difference, p_value = first / of_first - second / of_second, float(stats.fisher_exact(table).pvalue)
    return PairedDifference(difference, Interval(math.nan, math.nan), p_value, "Fisher's exact")


def _counted(first: Mapping[int, float], second: Mapping[int, float], lower_is_better: bool) -> PairedDifference:
    """Two counts that no seed changes."""
    difference = fmean(first.values()) - fmean(second.values())
    p_value = 1.0 if difference == 0 else 0.0
    return PairedDifference(difference, Interval(difference, difference), p_value, "counted", lower_is_better)
