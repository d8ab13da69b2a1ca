"""The data of a comparison: axes of the matrix, further and excluded runs, and the settings all runs share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from app.common.ranges import Seed
from app.results.run.labels import RunLabels

AXES = {"dataset": "datasets", "method": "methods", "defense": "defenses"}
"""Label of a run -> key of the axis that it is taken from."""

Options = tuple[tuple[str, str], ...]
"""Options of `rampart fit` with their values, such as `("trainer.max_epochs", "20")`; later ones win."""


@dataclass(frozen=True)
class AxisEntry:
    """One dataset, method or defense of the matrix."""

    name: str  # as shown in tables and in names of runs
    configs: tuple[str, ...] = ()  # recipes or files that it stands for, first to last
    options: Options = ()  # options on top of them
    rounds: float | None = None  # share of the rounds that its runs train for, in (0, 1); None for all
    swept: str = ""  # the option among them that its strength is; empty for none
    listed: bool = True  # whether it is part of the axis; otherwise it only occurs in runs that `include` adds


@dataclass(frozen=True)
class Pattern:
    """Selects runs by their labels; None matches every value."""

    dataset: str | None = None
    method: str | None = None
    defense: str | None = None
    seeds: tuple[Seed, ...] | None = None

    def matches(self, labels: RunLabels) -> bool:
        """Whether a run with these labels is selected."""
        named = all(getattr(self, axis) in (None, getattr(labels, axis)) for axis in AXES)
        return named and (self.seeds is None or labels.seed in self.seeds)

    def __str__(self) -> str:
        parts = [f"{axis}: {getattr(self, axis)}" for axis in AXES if getattr(self, axis) is not None]
        parts += [] if self.seeds is None else [f"seed: {', '.join(map(str, self.seeds))}"]
        return "{" + ", ".join(parts) + "}"


@dataclass(frozen=True)
class Scale:
    """A size in which the whole comparison can be run."""

    name: str  # value of `--scale`
    seeds: tuple[Seed, ...] | None = None  # replace those of the comparison; None keeps them
    configs: tuple[str, ...] = ()  # recipes over those of every run
    options: Options = ()  # options on top of everything


@dataclass(frozen=True)
class Tune:
    """How the settings of every row are chosen."""

    trials: int  # of every row, the recipe as it stands among them; 2 or more
    space: Mapping[str, Any]  # options with what to search, as in `tuning.space`; empty for what is usual
    validation: float  # share of the pool, in (0, 1), that settings are chosen by
    seed: Seed  # of the trials and of their points
    prune: bool  # whether the worse half of the trials ends early


@dataclass(frozen=True)
class ComparisonSpec:
    """The content of a comparison file."""

    name: str  # name of the folder that holds the runs
    purpose: str  # the comment in the file's first line
    path: Path
    base: tuple[str, ...]  # recipes below those of every run
    datasets: tuple[AxisEntry, ...]
    methods: tuple[AxisEntry, ...]
    defenses: tuple[AxisEntry, ...]
    attacks: tuple[str, ...] = ()  # recipes over those of every run
    options: Options = ()  # options on top of all recipes
    seeds: tuple[Seed, ...] = (0,)  # every combination is run once with each of them
    include: tuple[Pattern, ...] = ()  # further runs
    exclude: tuple[Pattern, ...] = ()  # runs that are left out
    # method and defense that the others are compared with, None for the first ones
    baseline: tuple[str, str] | None = None
    scales: tuple[Scale, ...] = ()
    published: tuple[Mapping[str, Any], ...] = ()  # published figures, as they stand in the file
    scale: str = "full"  # size in which it is run, `full` for that of the file
    tune: Tune | None = None  # None to run recipes as they stand

    def axis(self, label: str) -> tuple[AxisEntry, ...]:
        """Entries of the axis that a label is taken from, those of `include` last."""
        return getattr(self, AXES[label])

    def at_scale(self, scale: Scale) -> ComparisonSpec:
        """The same comparison in another size, under a name of its own unless the scale changes nothing."""
        if scale == Scale(scale.name):
            return self
        return replace(
            self.with_seeds(scale.seeds) if scale.seeds else self,
            name=f"{self.name}-{scale.name}",
            scale=scale.name,
            attacks=(*self.attacks, *scale.configs),
            options=(*self.options, *scale.options),
        )

    def with_seeds(self, seeds: tuple[int, ...]) -> ComparisonSpec:
        """The same comparison with these seeds only; an entry of `include` keeps those of its seeds among them."""
        include = [
            pattern if pattern.seeds is None else replace(pattern, seeds=tuple(s for s in pattern.seeds if s in seeds))
            for pattern in self.include
        ]
        return replace(self, seeds=seeds, include=tuple(include))
