"""Runs gathered into the rows of a table, and one measure of a row before it is compared with others."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from app.metrics.intervals import Interval
from app.metrics.membership import NotAvailable
from app.results.comparison.table import Measure
from app.results.run.store import RunRecord

NOT_RUN = NotAvailable("not run")
NOT_MEASURED = NotAvailable("not measured")
NO_PROMISE = NotAvailable("no formal guarantee")

MOST_NAMED = 3
"""Settings that a note names."""

IGNORED = ("run", "tracking", "group", "project", "trainer")
"""Settings that do not make another experiment, but for the number of rounds."""


@dataclass(frozen=True, eq=False)
class RowRuns:
    """All runs of one dataset, method and defense.

    Attributes:
        dataset: dataset and partition.
        method: how submodels are chosen and aggregated.
        defense: the stack of defenses, or `none`.
        runs: one per seed, by seed.
        notes: runs that were left out.
    """

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
    """One measure of one cell, unscaled.

    Attributes:
        by_seed: finite value of every seed that has one; never empty.
        own: interval that the run itself gives, where there is one seed.
        marks: short remarks that belong beside the number.
        label: result of membership inference whose area it is, so that scores can be compared; empty for all else.
        notes: what must be known to read the number.
        images: images recovered and attacked in all runs, where the values are shares of images.
    """

    by_seed: Mapping[int, float]
    own: Interval | None = None
    marks: tuple[str, ...] = ()
    label: str = ""
    notes: tuple[str, ...] = ()
    images: tuple[int, int] | None = None


@dataclass(frozen=True)
class Column:
    """A measure and how it is read.

    Attributes:
        measure: what is shown.
        series: its values in one cell, or why there are none.
        bounds: smallest and largest value that it can have; intervals are cut to them.
    """

    measure: Measure
    series: Callable[[RowRuns], SeedValues | NotAvailable]
    bounds: tuple[float, float] = (0.0, 1.0)


def rows_of(runs: Iterable[RunRecord]) -> tuple[RowRuns, ...]:
    """Runs by dataset, method and defense, in the order in which they first occur, rows of one dataset together."""
    places: dict[tuple[str, str, str], list[RunRecord]] = {}
    for run in runs:
        places.setdefault((run.labels.dataset, run.labels.method, run.labels.defense), []).append(run)
    order = list(dict.fromkeys(dataset for dataset, _, _ in places))
    return tuple(
        RowRuns(*place, *_newest(found))
        for place, found in sorted(places.items(), key=lambda item: order.index(item[0][0]))
    )


def by_seed(cell: RowRuns, read: Callable[[RunRecord], float | None]) -> SeedValues | NotAvailable:
    """A number of every run; seeds without one, or whose number is not finite, are left out.

    Args:
        cell: the runs.
        read: the number of one run; None where it has none.
    """
    found = {run.labels.seed: value for run in cell.runs if (value := read(run)) is not None}
    present = {seed: float(value) for seed, value in found.items() if math.isfinite(value)}
    if present:
        return SeedValues(present, notes=absent(cell, present))
    return NotAvailable("the number is not finite") if found else NOT_MEASURED


def absent(cell: RowRuns, present: Iterable[int]) -> tuple[str, ...]:
    """A note on seeds without a number; nothing where all have one."""
    missing = [str(seed) for seed in cell.seeds if seed not in set(present)]
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
    """When the run was finished, in seconds; 0 where its folder is not there."""
    try:
        return (run.path / "summary.json").stat().st_mtime
    except OSError:
        return 0.0


def _left_out(older: RunRecord, newer: RunRecord) -> str:
    told = f"{older.name} is left out: {newer.name} has the same dataset, method, defense and seed, and is newer"
    differing = sorted(_differing(older.config, newer.config))
    if not differing:
        return told
    more = f" and {len(differing) - MOST_NAMED} more" if len(differing) > MOST_NAMED else ""
    return f"{told}; their settings differ in {', '.join(differing[:MOST_NAMED])}{more}"


def _differing(one: Mapping[str, Any], two: Mapping[str, Any], front: str = "") -> set[str]:
    """Names of settings that are not the same, as they are written on the command line."""
    found: set[str] = set()
    for key in {*one, *two} - ({*IGNORED} if not front else set()):
        left, right = one.get(key), two.get(key)
        name = f"{front}{key}"
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            found |= _differing(left, right, f"{name}.")
        elif left != right:
            found.add(name.replace(".init_args", ""))
    if not front and _rounds(one) != _rounds(two):
        found.add("trainer.max_epochs")
    return found


def _rounds(config: Mapping[str, Any]) -> Any:
    return (config.get("trainer") or {}).get("max_epochs")
