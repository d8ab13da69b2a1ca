"""The runs a comparison consists of: their labels, names and arguments of `rampart fit`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import Any

from app.experiments.spec import AXES, ComparisonSpec, Pattern
from app.recipes import layered
from app.results.run.labels import NO_DEFENSE, RunLabels

Combination = tuple[str, str, str]
"""Dataset, method and defense; runs of one combination differ in their seed only."""


@dataclass(frozen=True)
class PlannedRun:
    """One run of a comparison."""

    labels: RunLabels
    arguments: tuple[str, ...]  # arguments of `rampart fit`, without the folder and name of the run
    trial: int | None = None  # number of a trial of settings; None for a run of the matrix

    @property
    def name(self) -> str:
        return run_name(self.labels) + ("" if self.trial is None else f"-t{self.trial}")

    @property
    def combination(self) -> Combination:
        return self.labels.dataset, self.labels.method, self.labels.defense


def run_name(labels: RunLabels) -> str:
    """A name that is safe for files, such as `digits-heterofl-memdefense-s0`."""
    parts = (labels.dataset, labels.method, labels.defense, f"s{labels.seed}")
    return re.sub(r"[^A-Za-z0-9._+-]+", "_", "-".join(parts)).lstrip(".-")


def planned_runs(spec: ComparisonSpec) -> tuple[PlannedRun, ...]:
    """All runs, by dataset, method, defense and seed in the order of the axes."""
    further = [labels for pattern in spec.include for labels in included(spec, pattern)]
    distinct = dict.fromkeys([*remaining(spec), *further])
    places = {label: {entry.name: place for place, entry in enumerate(spec.axis(label))} for label in AXES}

    def order(labels: RunLabels) -> tuple[int, ...]:
        return (*(places[label][getattr(labels, label)] for label in AXES), labels.seed)

    return tuple(planned_run(spec, labels) for labels in sorted(distinct, key=order))


def planned_run(
    spec: ComparisonSpec, labels: RunLabels, settings: Mapping[str, Any] = MappingProxyType({})
) -> PlannedRun:
    """The run of some labels, with settings on top of those of the comparison."""
    options = [(name, value if isinstance(value, str) else json.dumps(value)) for name, value in settings.items()]
    return PlannedRun(labels, _arguments(spec, labels, options))


def leaders_first(runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """The runs in the order in which to make them: the first of every dataset and seed before all others.

    It trains the shadow models that later runs of the same dataset and seed can share with it.
    """
    leaders = {(planned.labels.dataset, planned.labels.seed): planned for planned in reversed(runs)}.values()
    return sorted(runs, key=lambda planned: planned not in leaders)


def full_product(spec: ComparisonSpec) -> list[RunLabels]:
    """Every combination of the axes with every seed."""
    return included(spec, Pattern())


def remaining(spec: ComparisonSpec) -> list[RunLabels]:
    """The full product without what is excluded."""
    return [labels for labels in full_product(spec) if not any(one.matches(labels) for one in spec.exclude)]


def included(spec: ComparisonSpec, pattern: Pattern) -> list[RunLabels]:
    """Runs that an entry of `include` stands for: every listed entry and every seed where it names none."""
    datasets, methods, defenses = (_names(spec, pattern, label) for label in AXES)
    seeds = spec.seeds if pattern.seeds is None else pattern.seeds
    return [RunLabels(*labels) for labels in product(datasets, methods, defenses, seeds)]


def baseline_of(spec: ComparisonSpec, runs: tuple[PlannedRun, ...]) -> tuple[str, str]:
    """Method and defense that the others are compared with: as stated, else the first ones without a defense.

    Where no run is without a defense, there is a single row, or the comparison states its baseline.
    """
    undefended = [planned for planned in runs if planned.labels.defense == NO_DEFENSE]
    first = (undefended or list(runs))[0].labels
    return spec.baseline or (first.method, first.defense)


def _arguments(spec: ComparisonSpec, labels: RunLabels, further: Sequence[tuple[str, str]] = ()) -> tuple[str, ...]:
    """Recipes from the general to the particular, attacks over them, then options in the same order, then the seed."""
    entries = [entry for label in AXES for entry in spec.axis(label) if entry.name == getattr(labels, label)]
    recipes = [*spec.base, *(name for entry in entries for name in entry.configs), *spec.attacks]
    held_out = [] if spec.tune is None else [("data.holdout.validation", str(spec.tune.validation))]
    options = [*held_out, *(pair for entry in entries for pair in entry.options), *spec.options]
    options += [_fewer_rounds(entry.rounds, recipes, options) for entry in entries if entry.rounds is not None]
    return (
        *(part for name in recipes for part in ("--config", name)),
        *(part for option, value in (*options, *further) for part in (f"--{option}", value)),
        *("--seed_everything", str(labels.seed)),
    )


def _fewer_rounds(share: float, recipes: Sequence[str], options: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """The option that trains for a share of the rounds that recipes and options ask for, and for one at least."""
    option = "trainer.max_epochs"
    rounds = dict(options).get(option) or layered(recipes)["trainer"][option.rpartition(".")[2]]
    return option, str(max(1, round(share * int(rounds))))


def _names(spec: ComparisonSpec, pattern: Pattern, label: str) -> list[str]:
    name: str | None = getattr(pattern, label)
    return [entry.name for entry in spec.axis(label) if entry.listed] if name is None else [name]
