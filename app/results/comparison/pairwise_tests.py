"""Tests between two rows: over seeds, by attack scores where seeds are few, exactly where bytes are counted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from scipy import stats

from app.common.errors import UserError
from app.metrics.bootstrap import Bootstrap
from app.metrics.intervals import Interval
from app.metrics.membership import MembershipScores, NotAvailable
from app.metrics.paired_tests import PairedDifference, compare_auc, compare_over_seeds
from app.results.comparison.rows import RowRuns, SeedValues
from app.results.comparison.table import Measure

FEWEST_SEEDS = 3
"""Common seeds that a test over seeds needs."""

COUNTED = ("megabytes_up", "megabytes_down")
"""Measures that are counted: a difference that is the same for all seeds is not due to chance."""

RESAMPLES = Bootstrap(resamples=200)
"""Enough for a standard error within 5 %."""


@dataclass(frozen=True, eq=False)
class PairwiseTests:
    """Compares rows in pairs; scores are read once."""

    rows: Sequence[RowRuns]
    _scores: dict[tuple[str, str], MembershipScores] = field(default_factory=dict)

    def compare(
        self, pair: tuple[int, int], values: tuple[SeedValues, SeedValues], measure: Measure
    ) -> PairedDifference | NotAvailable:
        """Difference of two rows, first minus second, or why it cannot be tested.

        Args:
            pair: numbers of the two rows.
            values: their values.
            measure: what is compared; one in which lower or higher is better.
        """
        seeds = sorted(set(values[0].by_seed) & set(values[1].by_seed))
        first, second = ({seed: each.by_seed[seed] for seed in seeds} for each in values)
        lower = bool(measure.lower_is_better)
        if measure.key in COUNTED and len(seeds) > 1 and len({*first.values()}) == len({*second.values()}) == 1:
            return _counted(first, second, lower)
        if len(seeds) >= FEWEST_SEEDS:
            result = compare_over_seeds(first, second, lower)
            return result if isinstance(result, PairedDifference) else _shares(values, result)
        if values[0].images:
            return _shares(values, NotAvailable("no images were attacked"))
        if seeds and values[0].label and measure.key.endswith("_auc"):
            return self._by_scores(pair, (values[0].label, values[1].label), seeds)
        return NotAvailable(f"the rows share {len(seeds)} of {FEWEST_SEEDS} seeds that a comparison needs")

    def _by_scores(
        self, pair: tuple[int, int], labels: tuple[str, str], seeds: Sequence[int]
    ) -> PairedDifference | NotAvailable:
        """Paired bootstrap of the AUC in every common seed; with two seeds, both must differ in the same direction."""
        differences = []
        for seed in seeds:
            try:
                first, second = (self._read(row, label, seed) for row, label in zip(pair, labels, strict=True))
                one = compare_auc(first, second, RESAMPLES)
            except UserError as error:
                return NotAvailable(error.problems[0].cause)
            if isinstance(one, NotAvailable):
                return one
            differences.append(one)
        agree = len({each.difference > 0 for each in differences}) == 1
        p_value = max(each.p_value for each in differences) if agree else 1.0
        return replace(differences[0], difference=fmean(each.difference for each in differences), p_value=p_value)

    def _read(self, row: int, label: str, seed: int) -> MembershipScores:
        run = self.rows[row].run(seed)
        assert run is not None, "the seed is one of the row's"
        key = (str(run.path), label)
        if key not in self._scores:
            self._scores[key] = run.scores(label)
        return self._scores[key]


def _shares(values: tuple[SeedValues, SeedValues], otherwise: NotAvailable) -> PairedDifference | NotAvailable:
    """Fisher's exact test of the images recovered in all runs, where seeds are few or do not vary."""
    (first, of_first), (second, of_second) = (each.images or (0, 0) for each in values)
    if not of_first or not of_second:
        return otherwise
    table = [[first, of_first - first], [second, of_second - second]]
    difference, p_value = first / of_first - second / of_second, float(stats.fisher_exact(table).pvalue)
    return PairedDifference(difference, Interval(math.nan, math.nan), p_value, "Fisher's exact")


def _counted(first: Mapping[int, float], second: Mapping[int, float], lower_is_better: bool) -> PairedDifference:
    """Difference of two counts that are the same for all seeds."""
    difference = fmean(first.values()) - fmean(second.values())
    p_value = 1.0 if difference == 0 else 0.0
    return PairedDifference(difference, Interval(difference, difference), p_value, "counted", lower_is_better)
