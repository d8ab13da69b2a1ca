"""A comparison's cells: which runs it consists of, how they are called, and what each is told."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import product

from app.experiments.spec import AXES, AxisEntry, ComparisonSpec, Pattern
from app.results.run.labels import NO_DEFENSE, RunLabels

Combination = tuple[str, str, str]
"""Dataset, method and defense: what runs that differ in their seed only have in common."""


@dataclass(frozen=True)
class PlannedRun:
    """One run of a comparison.

    Attributes:
        labels: its place in the matrix.
        arguments: what `rampart fit` is told, apart from where the run is kept.
    """

    labels: RunLabels
    arguments: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name of the run."""
        return run_name(self.labels)

    @property
    def combination(self) -> Combination:
        """What it shares with the other seeds."""
        return self.labels.dataset, self.labels.method, self.labels.defense


def run_name(labels: RunLabels) -> str:
    """A name that is safe for files, such as `digits-heterofl-memdefense-s0`."""
    parts = (labels.dataset, labels.method, labels.defense, f"s{labels.seed}")
    return re.sub(r"[^A-Za-z0-9._+-]+", "_", "-".join(parts)).lstrip(".-")


def planned_runs(spec: ComparisonSpec) -> tuple[PlannedRun, ...]:
    """All cells, by dataset, method, defense and seed in the order of the axes."""
    further = [labels for pattern in spec.include for labels in included(spec, pattern)]
    distinct = dict.fromkeys([*remaining(spec), *further])
    return tuple(PlannedRun(labels, _arguments(spec, labels)) for labels in sorted(distinct, key=_Order(spec)))


def full_product(spec: ComparisonSpec) -> list[RunLabels]:
    """Every combination of the axes."""
    return included(spec, Pattern())


def remaining(spec: ComparisonSpec) -> list[RunLabels]:
    """The combinations that are not excluded."""
    return [labels for labels in full_product(spec) if not any(one.matches(labels) for one in spec.exclude)]


def included(spec: ComparisonSpec, pattern: Pattern) -> list[RunLabels]:
    """Cells that an entry of `include` stands for: every listed entry and every seed where it names none."""
    datasets, methods, defenses = (_named(spec, pattern, label) for label in AXES)
    seeds = spec.seeds if pattern.seeds is None else pattern.seeds
    return [RunLabels(*labels) for labels in product(datasets, methods, defenses, seeds)]


def baseline_of(spec: ComparisonSpec, cells: tuple[PlannedRun, ...]) -> tuple[str, str]:
    """Method and defense that others are compared with: as stated, else the first cell without a defense."""
    plain = [cell for cell in cells if cell.labels.defense == NO_DEFENSE]
    first = (plain or list(cells))[0].labels
    return spec.baseline or (first.method, first.defense)


class _Order:
    """Sorts labels by their places on the axes."""

    def __init__(self, spec: ComparisonSpec) -> None:
        self._places = {label: {entry.name: at for at, entry in enumerate(spec.axis(label))} for label in AXES}

    def __call__(self, labels: RunLabels) -> tuple[int, ...]:
        """Sort key."""
        return (*(places[getattr(labels, label)] for label, places in self._places.items()), labels.seed)


def _arguments(spec: ComparisonSpec, labels: RunLabels) -> tuple[str, ...]:
    """Recipes from the general to the particular, attacks over them, then options in the same order, then the seed."""
    entries = [_entry(spec, labels, label) for label in AXES]
    recipes = [*spec.base, *(name for entry in entries for name in entry.configs), *spec.attacks]
    options = [*(pair for entry in entries for pair in entry.options), *spec.options]
    return (
        *(part for name in recipes for part in ("--config", name)),
        *(part for option, value in options for part in (f"--{option}", value)),
        *("--seed_everything", str(labels.seed)),
    )


def _entry(spec: ComparisonSpec, labels: RunLabels, label: str) -> AxisEntry:
    return next(entry for entry in spec.axis(label) if entry.name == getattr(labels, label))


def _named(spec: ComparisonSpec, pattern: Pattern, label: str) -> list[str]:
    name: str | None = getattr(pattern, label)
    return [entry.name for entry in spec.axis(label) if entry.listed] if name is None else [name]
