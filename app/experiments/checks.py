"""Contradictions between the parts of a comparison, each told with what to change."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from app.errors import Problem
from app.experiments.matrix import full_product, included, planned_runs, remaining
from app.experiments.spec import ComparisonSpec

LONGEST_NAME = 200
"""Characters of a run's name; file systems take 255 bytes, and some files' names are longer than their run's."""


def problems_of(spec: ComparisonSpec) -> Iterator[Problem]:
    """Everything that is wrong with a comparison whose parts could be read."""
    yield from name_problems(spec)
    yield from _datasets(spec)
    if not full_product(spec):
        return  # an empty axis or no seed: already told
    yield from _excluded(spec)
    yield from _included(spec)
    yield from _baseline(spec)
    yield from _run_names(spec)


def name_problems(spec: ComparisonSpec) -> Iterator[Problem]:
    """A name that no folder can have."""
    if not re.fullmatch(r"[A-Za-z0-9_+][A-Za-z0-9._+-]*", spec.name):
        remedy = "use letters, digits, dots, hyphens and underscores"
        yield Problem(f"the name of the comparison is {spec.name!r}", "it could not name a folder", remedy)


def _datasets(spec: ComparisonSpec) -> Iterator[Problem]:
    """Only one dataset can be what the recipes below say."""
    bare = [entry.name for entry in spec.datasets if not entry.configs and not entry.options]
    if len(bare) > 1:
        cause = f"the datasets {' and '.join(bare)} both stand for what `base` says"
        remedy = "name the recipes of each, such as `mnist: [my-mnist.yaml]`"
        yield Problem(cause, "the same runs would be made twice under different names", remedy)


def _excluded(spec: ComparisonSpec) -> Iterator[Problem]:
    every = full_product(spec)
    for pattern in spec.exclude:
        if not any(pattern.matches(labels) for labels in every):
            yield Problem(f"exclude: {pattern} matches no cell", "it has no effect", "correct it or remove it")
    if not remaining(spec) and not spec.include:
        yield Problem("every cell is excluded", "there is nothing to run", "exclude less")


def _included(spec: ComparisonSpec) -> Iterator[Problem]:
    there = set(remaining(spec))
    for pattern in spec.include:
        cells = included(spec, pattern)
        against = [one for one in spec.exclude if any(one.matches(labels) for labels in cells)]
        if against:
            cause = f"include: {pattern} asks for cells that exclude: {against[0]} leaves out"
            yield Problem(cause, "it is unclear whether they are to be run", "remove one of the two")
        elif there.issuperset(cells):
            cause = f"include: {pattern} is part of the matrix already"
            yield Problem(cause, "it has no effect", "correct it or remove it")
        there.update(cells)


def _baseline(spec: ComparisonSpec) -> Iterator[Problem]:
    pairs = {(cell.labels.method, cell.labels.defense) for cell in planned_runs(spec)}
    if spec.baseline is not None and pairs and spec.baseline not in pairs:
        method, defense = spec.baseline
        yield Problem(
            f"baseline: no cell has the method {method} with the defense {defense}",
            "there would be nothing to compare the others with",
            "name a method and a defense that are run, or include them",
        )


def _run_names(spec: ComparisonSpec) -> Iterator[Problem]:
    cells = defaultdict(list)
    for cell in planned_runs(spec):
        cells[cell.name.casefold()].append(cell)  # some file systems do not tell them apart
    for same in cells.values():
        if len(same) > 1:
            told = " and ".join(f"({', '.join(cell.combination)})" for cell in same)
            cause = f"the cells {told} would both be called {same[0].name}"
            yield Problem(cause, "one would overwrite the other", "rename an entry of an axis")
        if len(same[0].name) > LONGEST_NAME:
            cause = f"the name {same[0].name} has {len(same[0].name)} characters"
            yield Problem(cause, "a file system may refuse it", f"shorten names to {LONGEST_NAME} in all")
