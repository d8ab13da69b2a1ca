"""What a comparison asks for: the axes of its matrix, further and excluded cells, and what every run has in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from app.results.run.labels import RunLabels

AXES = {"dataset": "datasets", "method": "methods", "defense": "defenses"}
"""Label of a run, and the key of the axis that it is taken from."""

Options = tuple[tuple[str, str], ...]
"""Options of `rampart fit` with their values, such as `("trainer.max_epochs", "20")`; later ones win."""


@dataclass(frozen=True)
class AxisEntry:
    """A place on an axis.

    Attributes:
        name: what it is called in tables and in names of runs.
        configs: recipes or files that it stands for, first to last.
        options: options on top of them.
        listed: whether it is part of the axis; otherwise it only occurs in cells that `include` adds.
    """

    name: str
    configs: tuple[str, ...] = ()
    options: Options = ()
    listed: bool = True


@dataclass(frozen=True)
class Pattern:
    """Cells of the matrix; what is None may be anything.

    Attributes:
        dataset: name on the axis of datasets.
        method: name on the axis of methods.
        defense: name on the axis of defenses.
        seeds: any of these.
    """

    dataset: str | None = None
    method: str | None = None
    defense: str | None = None
    seeds: tuple[int, ...] | None = None

    def matches(self, labels: RunLabels) -> bool:
        """Whether a cell is one of those meant."""
        named = all(getattr(self, axis) in (None, getattr(labels, axis)) for axis in AXES)
        return named and (self.seeds is None or labels.seed in self.seeds)

    def __str__(self) -> str:
        parts = [f"{axis}: {getattr(self, axis)}" for axis in AXES if getattr(self, axis) is not None]
        parts += [] if self.seeds is None else [f"seed: {', '.join(map(str, self.seeds))}"]
        return "{" + ", ".join(parts) + "}"


@dataclass(frozen=True)
class Scale:
    """A size in which the whole comparison can be made.

    Attributes:
        name: what to write after `--scale`.
        seeds: instead of the comparison's, None for the same.
        configs: recipes over every cell.
        options: options on top of everything.
    """

    name: str
    seeds: tuple[int, ...] | None = None
    configs: tuple[str, ...] = ()
    options: Options = ()

    @property
    def changes_nothing(self) -> bool:
        """Whether it is the comparison as it stands."""
        return self.seeds is None and not self.configs and not self.options


@dataclass(frozen=True)
class ComparisonSpec:
    """A comparison, read and understood.

    Attributes:
        name: name of the folder that holds its runs.
        purpose: the comment in the file's first line.
        path: the file.
        base: recipes below every cell.
        datasets: the axis of datasets.
        methods: the axis of methods.
        defenses: the axis of defenses.
        attacks: recipes over every cell.
        options: options on top of all recipes.
        seeds: every cell is run once with each of them.
        include: further cells.
        exclude: cells that are left out.
        baseline: method and defense that others are compared with, None for the first ones.
        scales: sizes in which it can be made.
        published: figures that others have published, as they stand in the file.
        scale: size in which it is made, `full` for that of the file.
    """

    name: str
    purpose: str
    path: Path
    base: tuple[str, ...]
    datasets: tuple[AxisEntry, ...]
    methods: tuple[AxisEntry, ...]
    defenses: tuple[AxisEntry, ...]
    attacks: tuple[str, ...] = ()
    options: Options = ()
    seeds: tuple[int, ...] = (0,)
    include: tuple[Pattern, ...] = ()
    exclude: tuple[Pattern, ...] = ()
    baseline: tuple[str, str] | None = None
    scales: tuple[Scale, ...] = ()
    published: tuple[Mapping[str, Any], ...] = ()
    scale: str = "full"

    def axis(self, label: str) -> tuple[AxisEntry, ...]:
        """Entries of the axis that a label is taken from, those of `include` last."""
        entries: tuple[AxisEntry, ...] = getattr(self, AXES[label])
        return entries

    def at_scale(self, scale: Scale) -> ComparisonSpec:
        """The same comparison in another size, under a name of its own where anything changes."""
        if scale.changes_nothing:
            return self
        return replace(
            self.with_seeds(scale.seeds) if scale.seeds else self,
            name=f"{self.name}-{scale.name}",
            scale=scale.name,
            attacks=(*self.attacks, *scale.configs),
            options=(*self.options, *scale.options),
        )

    def with_seeds(self, seeds: tuple[int, ...]) -> ComparisonSpec:
        """The same comparison with these seeds only."""
        return replace(
            self, seeds=seeds, include=tuple(replace(one, seeds=_common(one.seeds, seeds)) for one in self.include)
        )


def _common(named: tuple[int, ...] | None, seeds: tuple[int, ...]) -> tuple[int, ...] | None:
    return None if named is None else tuple(seed for seed in named if seed in seeds)
