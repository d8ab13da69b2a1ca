"""Runs grouped into the rows of a table, and the values of a row in one column before rows are compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from app.metrics.intervals import Interval
from app.metrics.membership import NotAvailable
from app.results.comparison.table import NOT_MEASURED, Measure
from app.results.run.store import RunRecord

NOT_RUN = NotAvailable("not run")
NO_GUARANTEE = NotAvailable("no formal guarantee")

MOST_NAMED = 3
"""Settings that a note lists."""

IGNORED = ("run", "tracking", "group", "project", "entity", "track_images", "trainer")
"""Settings that do not change the experiment; of those of the trainer, only the number of rounds does."""


@dataclass(frozen=True, eq=False)
class RowRuns:
    """All runs of one dataset, method and defense: one per seed, by seed, and notes on runs that were left out."""

    dataset: str
    method: str
    defense: str
    runs: tuple[RunRecord, ...]
    notes: tuple[str, ...] = ()

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of the runs, ascending."""
        return tuple(run.labels.seed for run in self.runs)

    def run(self, seed: int) -> RunRecord | None:
        """The run of one seed; None where there is none."""
        return next((run for run in self.runs if run.labels.seed == seed), None)


@dataclass(frozen=True)
class SeedValues:
    """Values of one row in one column, unscaled."""

    by_seed: Mapping[int, float]  # finite value of every seed that has one; never empty
    own: Interval | None = None  # interval over the samples of the run, where there is one seed
    marks: tuple[str, ...] = ()  # short remarks beside the number
    # result of membership inference whose AUC it is, so that scores can be compared; empty for all else
    label: str = ""
    notes: tuple[str, ...] = ()  # remarks on the number
    # images recovered and attacked in all runs, where the values are shares of images
    images: tuple[int, int] | None = None


@dataclass(frozen=True)
class Column:
    """A measure, how it is read from the runs of a row, and its smallest and largest possible value."""

    measure: Measure
    read: Callable[[RowRuns], SeedValues | NotAvailable]
    bounds: tuple[float, float] = (0.0, 1.0)


def rows_of(runs: Iterable[RunRecord]) -> tuple[RowRuns, ...]:
    """Runs by dataset, method and defense, in the order in which they first occur, rows of one dataset together."""
    places: dict[tuple[str, str, str], list[RunRecord]] = {}
    for run in runs:
        places.setdefault((run.labels.dataset, run.labels.method, run.labels.defense), []).append(run)
    order = list(dict.fromkeys(dataset for dataset, _, _ in places))
    return tuple(
        RowRuns(*place, *_newest(same))
        for place, same in sorted(places.items(), key=lambda item: order.index(item[0][0]))
    )


def by_seed(row_runs: RowRuns, read: Callable[[RunRecord], float | None]) -> SeedValues | NotAvailable:
    """A number of every run; seeds without one, or whose number is not finite, are left out.

    Args:
        row_runs: the runs.
        read: the number of one run; None where it has none.
    """
    numbers = {run.labels.seed: value for run in row_runs.runs if (value := read(run)) is not None}
    present = {seed: float(value) for seed, value in numbers.items() if math.isfinite(value)}
    if present:
        return SeedValues(present, notes=seeds_without_number(row_runs, present))
    return NotAvailable("the number is not finite") if numbers else NOT_MEASURED


def seeds_without_number(row_runs: RowRuns, present: Iterable[int]) -> tuple[str, ...]:
    """A note on seeds without a number; nothing where all have one."""
    missing = [str(seed) for seed in row_runs.seeds if seed not in set(present)]
    return (f"no number for {'seed' if len(missing) == 1 else 'seeds'} {', '.join(missing)}",) if missing else ()


def _newest(runs: list[RunRecord]) -> tuple[tuple[RunRecord, ...], tuple[str, ...]]:
    """One run per seed, by seed, and notes on those that were left out."""
    kept: dict[int, RunRecord] = {}
    notes = []
    for run in sorted(runs, key=lambda run: (_finished(run), run.name)):
        if (older := kept.get(run.labels.seed)) is not None:
            notes.append(_left_out(older, run))
        kept[run.labels.seed] = run
    return tuple(kept[seed] for seed in sorted(kept)), tuple(notes)


def _finished(run: RunRecord) -> float:
    """Time at which the run finished, in seconds since 1970; 0 where its folder is missing."""
    try:
        return (run.path / "summary.json").stat().st_mtime
    except OSError:
        return 0.0


def _left_out(older: RunRecord, newer: RunRecord) -> str:
    note = f"{older.name} is left out: {newer.name} has the same dataset, method, defense and seed, and is newer"
    differing = sorted(_differing(older.config, newer.config))
    if not differing:
        return note
    more = f" and {len(differing) - MOST_NAMED} more" if len(differing) > MOST_NAMED else ""
    return f"{note}; their settings differ in {', '.join(differing[:MOST_NAMED])}{more}"


def _differing(one: Mapping[str, Any], two: Mapping[str, Any], front: str = "") -> set[str]:
    """Names of settings that differ, as on the command line."""
    names: set[str] = set()
    for key in {*one, *two} - ({*IGNORED} if not front else set()):
        left, right = one.get(key), two.get(key)
        name = f"{front}{key}"
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            names |= _differing(left, right, f"{name}.")
        elif left != right:
            names.add(name.replace(".init_args", ""))
    if not front and _rounds(one) != _rounds(two):
        names.add("trainer.max_epochs")
    return names


def _rounds(config: Mapping[str, Any]) -> Any:
    return (config.get("trainer") or {}).get("max_epochs")
