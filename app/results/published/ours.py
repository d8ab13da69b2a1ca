"""Our result for a published number: from the table, or from the runs where the table has no such column."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from app.attacks.protocols.mapp_fl import SMALLEST_CLIENT
from app.metrics.correlation import value_correlation
from app.metrics.intervals import Interval, student_quantile
from app.metrics.membership import NotAvailable
from app.results.comparison.table import ComparisonTable, Measure, Value
from app.results.published.values import (
    ALL_METHODS,
    CORRELATION,
    LEAD,
    PAPER,
    RECONSTRUCTION,
    SIZE,
    UNITS,
    PublishedFigure,
    correlated,
    scale_to,
)
from app.results.run.store import RunRecord, Store

CONFIDENCE = 0.95


@dataclass(frozen=True)
class OwnResult:
    """Our result, in the unit of the published number."""

    value: float  # mean, highest or lowest over the seeds, as the paper has it
    interval: Interval | NotAvailable  # 95 % interval of the mean, or why there is none
    about: str  # interval over other `seeds`, other `samples` of the same runs, other `clients`, or `none`
    seeds: tuple[int, ...]  # seeds of the runs, ascending
    rounds: int  # rounds of the shortest run


def own_result(store: Store, table: ComparisonTable, figure: PublishedFigure) -> OwnResult | NotAvailable:
    """Our result in the place of a published number, or why there is none.

    Args:
        store: the runs.
        table: their table.
        figure: the published number.
    """
    runs = [run for run in store.runs if _belongs(run, figure)]
    if not runs:
        return NotAvailable(f"no finished run of {' / '.join(figure.place)}")
    if figure.measure.startswith(CORRELATION):
        return _correlation(runs, figure)
    found = _lead(store, table, figure) if figure.measure.startswith(LEAD) else _measured(store, table, figure)
    if isinstance(found, NotAvailable):
        return found
    value, unit = found
    scale = scale_to(figure.unit, unit)
    if scale is None:
        return NotAvailable(f"ours is in {unit or 'no unit'}, theirs in {figure.unit or 'no unit'}")
    return _chosen(value, scale, figure, min(len(run.rounds) for run in runs))


def _measured(store: Store, table: ComparisonTable, figure: PublishedFigure) -> tuple[Value, str] | NotAvailable:
    """Our value with its unit: the entry of the table, or what the runs hold."""
    runs = [run for run in store.runs if _belongs(run, figure)]
    if not runs:
        return NotAvailable(f"no finished run of {' / '.join(figure.place)}")
    tabled = None if figure.client is not None else _tabled(table, figure)
    if tabled is not None:
        return tabled
    numbers = _from_runs(runs, figure)
    return numbers if isinstance(numbers, NotAvailable) else (_over_seeds(numbers), _own_unit(figure))


def _lead(store: Store, table: ComparisonTable, figure: PublishedFigure) -> tuple[Value, str] | NotAvailable:
    """Our value less that of another method with the same seeds."""
    method, _, measure = figure.measure.removeprefix(LEAD).partition("/")
    own, other = (
        _measured(store, table, replace(figure, measure=measure, method=one)) for one in (figure.method, method)
    )
    if isinstance(own, NotAvailable):
        return own
    if isinstance(other, NotAvailable):
        return other
    ours, theirs = own[0].by_seed, other[0].by_seed
    leads = {seed: number - theirs[seed] for seed, number in ours.items() if seed in theirs}
    return (_over_seeds(leads), own[1]) if leads else NotAvailable(f"no seed has runs of {figure.method} and {method}")


def _belongs(run: RunRecord, figure: PublishedFigure) -> bool:
    method = run.labels.method if figure.method == ALL_METHODS else figure.method
    return (run.labels.dataset, run.labels.method, run.labels.defense) == (figure.dataset, method, figure.defense)


def _correlation(runs: list[RunRecord], figure: PublishedFigure) -> OwnResult | NotAvailable:
    """Pearson's coefficient over the clients of all runs together, each client of each run counting once."""
    first, second, name = correlated(figure.measure)
    pairs = np.array([pair for run in runs for pair in _pairs(run, first, second, name)]).reshape(-1, 2)
    found = value_correlation(pairs[:, 0], pairs[:, 1])
    if isinstance(found, NotAvailable):
        return found
    seeds = tuple(sorted({run.labels.seed for run in runs}))
    about = "none" if isinstance(found.interval, NotAvailable) else "clients"
    return OwnResult(found.value, found.interval, about, seeds, min(len(run.rounds) for run in runs))


def _pairs(run: RunRecord, first: str, second: str, name: str) -> list[tuple[float, float]]:
    """The two values of every client of a run that has both; small clients have no size, as in the paper."""
    sizes = {end.client: math.log10(end.samples) for end in run.clients if end.samples >= SMALLEST_CLIENT}
    one = sizes if first == SIZE else _per_client(run, first, name)
    other = _per_client(run, second, name)
    return [(one[client], other[client]) for client in sorted(set(one) & set(other))]


def _per_client(run: RunRecord, result: str, name: str) -> dict[int, float]:
    """A figure of one result by client, where it is finite."""
    figures = [figure for record in run.attacks if record.label == result for figure in record.figures]
    found = next((dict(figure.per_client) for figure in figures if figure.name == name), {})
    return {client: value for client, value in found.items() if math.isfinite(value)}


def _tabled(table: ComparisonTable, figure: PublishedFigure) -> tuple[Value, str] | NotAvailable | None:
    """The entry as it is shown, and its unit; None where the table has no such column."""
    measures = {measure.key: measure for measure in table.measures}
    rows = [row for row in table.rows if (row.dataset, row.method, row.defense) == figure.place]
    if figure.measure not in measures or not rows:
        return None
    measure, value = measures[figure.measure], rows[0].values.get(figure.measure)
    if value is None:
        return NotAvailable(f"{measure.title} was not measured")
    return value if isinstance(value, NotAvailable) else (_shown(value, measure), measure.unit)


def _shown(value: Value, measure: Measure) -> Value:
    """The entry multiplied as the table shows it."""
    by_seed = {seed: measure.scale * each for seed, each in value.by_seed.items()}
    factor = measure.scale
    return Value(factor * value.mean, factor * value.low, factor * value.high, by_seed, value.interval)


def _from_runs(runs: list[RunRecord], figure: PublishedFigure) -> dict[int, float] | NotAvailable:
    """The number by seed where the table has no column for it."""
    read = _reader(figure)
    if read is None:
        return NotAvailable(f"the table has no {figure.measure}" + _of_client(figure))
    numbers = {run.labels.seed: read(run) for run in runs}
    present = {seed: number for seed, number in numbers.items() if number is not None and math.isfinite(number)}
    return present or NotAvailable(f"no run has {figure.measure}" + _of_client(figure))


def _of_client(figure: PublishedFigure) -> str:
    return "" if figure.client is None else f" of client {figure.client}"


def _reader(figure: PublishedFigure) -> Callable[[RunRecord], float | None] | None:
    """How to read the number from a run; None where runs do not have it."""
    measure, client = figure.measure, figure.client
    if measure.startswith(PAPER):
        result, _, name = measure.removeprefix(PAPER).partition("/")
        return lambda run: _paper_number(run, result, name, client)
    if measure.startswith(RECONSTRUCTION) and client is None:
        name = measure.removeprefix(RECONSTRUCTION)
        return lambda run: next((each.numbers[name] for each in run.reconstructions if name in each.numbers), None)
    if measure == "clients_accuracy" and client is not None:
        return lambda run: next((end.received_common for end in run.clients if end.client == client), None)
    return None


def _paper_number(run: RunRecord, result: str, name: str, client: int | None) -> float | None:
    """A figure of one result, of all clients or of one."""
    figures = [figure for record in run.attacks if record.label == result for figure in record.figures]
    numbers = [
        figure.value if client is None else dict(figure.per_client).get(client)
        for figure in figures
        if figure.name == name
    ]
    return numbers[0] if numbers else None


def _own_unit(figure: PublishedFigure) -> str:
    """Unit of a number that was read from runs; accuracies and shares are fractions there."""
    name = figure.measure
    if name.startswith(PAPER):
        return "%" if "%" in name else ""
    if name.startswith(RECONSTRUCTION):
        return "dB" if "psnr" in name else "images" if name.endswith("recovered") else ""
    return "" if UNITS.get(name) == "%" else UNITS.get(name, "")


def _over_seeds(by_seed: Mapping[int, float]) -> Value:
    """Mean over the seeds with Student's interval, which needs two of them."""
    numbers, count = np.array(list(by_seed.values())), len(by_seed)
    mean, reach = float(numbers.mean()), math.nan
    if count > 1:
        reach = student_quantile(count, CONFIDENCE) * float(numbers.std(ddof=1)) / math.sqrt(count)
    return Value(mean, mean - reach, mean + reach, dict(by_seed), "seeds" if count > 1 else "none")


def _chosen(value: Value, scale: float, figure: PublishedFigure, rounds: int) -> OwnResult:
    """The mean with its interval, or the highest or lowest of the seeds without one."""
    seeds = tuple(sorted(value.by_seed))
    if figure.statistic != "mean":
        extreme = max if figure.statistic == "highest" else min
        number = scale * extreme(value.by_seed.values(), default=value.mean)
        return OwnResult(number, NotAvailable(f"the {figure.statistic} of the seeds has none"), "none", seeds, rounds)
    low, high = scale * value.low, scale * value.high
    known = value.interval != "none" and math.isfinite(low) and math.isfinite(high)
    interval = Interval(low, high, CONFIDENCE) if known else NotAvailable("one seed has no interval over seeds")
    return OwnResult(scale * value.mean, interval, value.interval if known else "none", seeds, rounds)
