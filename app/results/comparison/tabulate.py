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
from app.results.comparison.notes import attacks_of, notes_of_row, shadow_note, table_notes
from app.results.comparison.pairwise_tests import PairwiseTests
from app.results.comparison.plain_columns import cost_columns, formal_columns, utility_columns
from app.results.comparison.rows import Column, RowRuns, SeedValues, rows_of
from app.results.comparison.standings import standings
from app.results.comparison.table import ComparisonTable, Measure, Row, Standing, Value
from app.results.comparison.tuning import by_place, with_tuning
from app.results.run.labels import NO_DEFENSE
from app.results.run.store import Store

CONFIDENCE = 0.95

Entries = Mapping[str, SeedValues | NotAvailable]


def tabulate(store: Store) -> ComparisonTable:
    """The table of a comparison: means over seeds, their intervals, and the rows that are significantly best."""
    grouped = rows_of(store.runs)
    every = (*utility_columns(), *leakage_columns(grouped), *formal_columns(), *cost_columns(grouped))
    entries = [{column.measure.key: column.read(row_runs) for column in every} for row_runs in grouped]
    columns = _present(grouped, every, entries)
    places = _standings(grouped, columns, entries)
    tuned = by_place(store.tuned)
    rows = [
        with_tuning(_row(row_runs, columns, entries[number], places[number], grouped), tuned)
        for number, row_runs in enumerate(grouped)
    ]
    notes = (*table_notes(rows), *shadow_note(grouped))
    return ComparisonTable(tuple(column.measure for column in columns), tuple(rows), notes, store.tuned)


def value_of(seeds: SeedValues, bounds: tuple[float, float], standing: Standing = "unknown") -> Value:
    """Mean and interval: Student's over two or more seeds, else the run's own, else none.

    Values that are the same for every seed have no interval: a spread of 0 is no estimate.

    Args:
        seeds: values by seed.
        bounds: smallest and largest possible value, to which the interval is cut.
        standing: against the best of the same dataset.
    """
    values = [seeds.by_seed[seed] for seed in sorted(seeds.by_seed)]
    entry = Value(fmean(values), math.nan, math.nan, dict(seeds.by_seed), "none", standing, seeds.marks)
    if len(values) > 1:
        if len(set(values)) == 1:
            return entry
        reach = student_quantile(len(values), CONFIDENCE) * stdev(values) / math.sqrt(len(values))
        low, high = max(bounds[0], entry.mean - reach), min(bounds[1], entry.mean + reach)
        return replace(entry, low=low, high=high, interval="seeds")
    if seeds.own is not None:
        return replace(entry, low=seeds.own.low, high=seeds.own.high, interval="samples")
    return entry


def _present(grouped: Sequence[RowRuns], columns: Sequence[Column], entries: Sequence[Entries]) -> tuple[Column, ...]:
    """Columns with a number in some row.

    The last round's clients only where not every client was measured, ratios only where there is a defense.
    """
    keys = {key for row in entries for key, entry in row.items() if isinstance(entry, SeedValues)}
    if "everyone_accuracy" in keys:
        keys -= {"clients_own"}
    if all(row_runs.defense == NO_DEFENSE for row_runs in grouped):
        keys -= {"seconds_ratio", "client_ratio"}
    return tuple(column for column in columns if column.measure.key in keys)


def _standings(
    grouped: Sequence[RowRuns], columns: Sequence[Column], entries: Sequence[Entries]
) -> list[dict[str, Standing]]:
    """Standing of every row by key of the measure; absent where it is unknown."""
    places: list[dict[str, Standing]] = [{} for _ in grouped]
    tests = PairwiseTests(grouped)
    for dataset in dict.fromkeys(row_runs.dataset for row_runs in grouped):
        numbers = [number for number, row_runs in enumerate(grouped) if row_runs.dataset == dataset]
        for measure in (column.measure for column in columns):
            for number, standing in _compared(measure, numbers, entries, tests).items():
                places[number][measure.key] = standing
    return places


def _compared(
    measure: Measure, numbers: Sequence[int], entries: Sequence[Entries], tests: PairwiseTests
) -> dict[int, Standing]:
    """Standing of the rows of one dataset in one measure, by number of the row."""
    lower = measure.lower_is_better
    if lower is None:
        return {}
    values = {number: entry for number in numbers if isinstance(entry := entries[number][measure.key], SeedValues)}
    means = {str(number): fmean(each.by_seed.values()) for number, each in values.items()}

    def compare(first: str, second: str) -> PairedDifference | NotAvailable:
        pair = (int(first), int(second))
        return tests.compare(pair, (values[pair[0]], values[pair[1]]), measure)

    pooled = block_design_p_values({str(number): each.by_seed for number, each in values.items()})
    return {int(name): standing for name, standing in standings(means, lower, compare, pooled).items()}


def _row(
    row_runs: RowRuns,
    columns: Sequence[Column],
    entries: Entries,
    places: Mapping[str, Standing],
    grouped: Sequence[RowRuns],
) -> Row:
    rivals = [other for other in grouped if other.dataset == row_runs.dataset]
    expected = sorted({seed for other in rivals for seed in other.seeds})
    values: dict[str, Value | NotAvailable] = {}
    notes: list[str] = []
    for column in columns:
        key, entry = column.measure.key, entries[column.measure.key]
        values[key] = (
            entry if isinstance(entry, NotAvailable) else value_of(entry, column.bounds, places.get(key, "unknown"))
        )
        if isinstance(entry, SeedValues):
            notes += [f"{column.measure.title}: {note}" for note in entry.notes]
    return Row(
        dataset=row_runs.dataset,
        method=row_runs.method,
        defense=row_runs.defense,
        seeds=row_runs.seeds,
        runs=tuple(run.name for run in row_runs.runs),
        values=values,
        notes=(*notes_of_row(row_runs, expected, attacks_of(rivals)), *notes),
    )
