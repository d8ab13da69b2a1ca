"""A collection of runs as a table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean, stdev

from app.metrics.intervals import student_quantile
from app.metrics.membership import NotAvailable
from app.metrics.paired_tests import PairedDifference, block_design_p_values
from app.results.comparison.leakage_columns import leakage_columns
from app.results.comparison.notes import attacks_of, cell_notes, numbered, table_notes
from app.results.comparison.pairwise_tests import PairwiseTests
from app.results.comparison.plain_columns import cost_columns, formal_columns, utility_columns
from app.results.comparison.rows import Column, RowRuns, SeedValues, rows_of
from app.results.comparison.standings import standings
from app.results.comparison.table import ComparisonTable, Measure, Row, Standing, Value
from app.results.run.labels import NO_DEFENSE
from app.results.run.store import Store

CONFIDENCE = 0.95

Entries = Mapping[str, SeedValues | NotAvailable]


def tabulate(store: Store) -> ComparisonTable:
    """The table of a comparison: means over seeds, their intervals, and what is best beyond chance.

    Args:
        store: the runs.
    """
    cells = rows_of(store.runs)
    every = (*utility_columns(), *leakage_columns(cells), *formal_columns(), *cost_columns(cells))
    entries = [{column.measure.key: column.series(cell) for column in every} for cell in cells]
    columns = _present(cells, every, entries)
    places = _standings(cells, columns, entries)
    rows = [_row(cell, columns, entries[number], places[number], cells) for number, cell in enumerate(cells)]
    return ComparisonTable(tuple(column.measure for column in columns), tuple(rows), table_notes(rows))


def value_of(series: SeedValues, bounds: tuple[float, float], standing: Standing = "unknown") -> Value:
    """Mean and interval: Student's over two or more seeds, else the run's own, else none.

    Values that are the same for every seed have no interval: what did not vary tells nothing about how it varies.

    Args:
        series: values by seed.
        bounds: smallest and largest possible value, to which the interval is cut.
        standing: against the best of the same dataset.
    """
    values = [series.by_seed[seed] for seed in sorted(series.by_seed)]
    entry = Value(fmean(values), math.nan, math.nan, dict(series.by_seed), "none", standing, series.marks)
    if len(values) > 1:
        if len(set(values)) == 1:
            return entry
        reach = student_quantile(len(values), CONFIDENCE) * stdev(values) / math.sqrt(len(values))
        low, high = max(bounds[0], entry.mean - reach), min(bounds[1], entry.mean + reach)
        return replace(entry, low=low, high=high, interval="seeds")
    if series.own is not None:
        return replace(entry, low=series.own.low, high=series.own.high, interval="samples")
    return entry


def _present(cells: Sequence[RowRuns], columns: Sequence[Column], entries: Sequence[Entries]) -> tuple[Column, ...]:
    """Columns with a number in some row.

    The last round's clients only where not every client was measured, ratios only where there is a defense.
    """
    keys = {key for row in entries for key, entry in row.items() if isinstance(entry, SeedValues)}
    if "everyone_accuracy" in keys:
        keys -= {"clients_own"}
    if all(cell.defense == NO_DEFENSE for cell in cells):
        keys -= {"seconds_ratio"}
    return tuple(column for column in columns if column.measure.key in keys)


def _standings(
    cells: Sequence[RowRuns], columns: Sequence[Column], entries: Sequence[Entries]
) -> list[dict[str, Standing]]:
    """Standing of every cell by key of the measure; absent where it is unknown."""
    found: list[dict[str, Standing]] = [{} for _ in cells]
    duels = PairwiseTests(cells)
    for dataset in dict.fromkeys(cell.dataset for cell in cells):
        numbers = [number for number, cell in enumerate(cells) if cell.dataset == dataset]
        for measure in (column.measure for column in columns):
            for number, standing in _compared(measure, numbers, entries, duels).items():
                found[number][measure.key] = standing
    return found


def _compared(
    measure: Measure, numbers: Sequence[int], entries: Sequence[Entries], duels: PairwiseTests
) -> dict[int, Standing]:
    """Standing of the cells of one dataset in one measure, by number of the cell."""
    lower = measure.lower_is_better
    if lower is None:
        return {}
    series = {number: entry for number in numbers if isinstance(entry := entries[number][measure.key], SeedValues)}
    means = {str(number): fmean(each.by_seed.values()) for number, each in series.items()}

    def compare(first: str, second: str) -> PairedDifference | NotAvailable:
        pair = (int(first), int(second))
        return duels.compare(pair, (series[pair[0]], series[pair[1]]), measure)

    pooled = block_design_p_values({str(number): each.by_seed for number, each in series.items()})
    return {int(name): standing for name, standing in standings(means, lower, compare, pooled).items()}


def _row(
    cell: RowRuns, columns: Sequence[Column], entries: Entries, places: Mapping[str, Standing], cells: Sequence[RowRuns]
) -> Row:
    rivals = [other for other in cells if other.dataset == cell.dataset]
    expected = sorted({seed for other in rivals for seed in other.seeds})
    values: dict[str, Value | NotAvailable] = {}
    told: dict[str, Sequence[str]] = {}
    for column in columns:
        key, entry = column.measure.key, entries[column.measure.key]
        values[key] = (
            entry if isinstance(entry, NotAvailable) else value_of(entry, column.bounds, places.get(key, "unknown"))
        )
        told[column.measure.title] = () if isinstance(entry, NotAvailable) else entry.notes
    return Row(
        dataset=cell.dataset,
        method=cell.method,
        defense=cell.defense,
        seeds=cell.seeds,
        runs=tuple(run.name for run in cell.runs),
        values=values,
        notes=(*cell_notes(cell, expected, attacks_of(rivals)), *numbered(told)),
    )
