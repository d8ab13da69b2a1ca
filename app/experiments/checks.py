"""Contradictions between the parts of a comparison, each with what to change."""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from collections.abc import Iterator

from app.common.errors import Problem, UserError
from app.experiments.matrix import full_product, included, planned_runs, remaining
from app.experiments.spec import ComparisonSpec
from app.recipes import layered
from app.results.run.labels import NO_DEFENSE
from app.results.run.naming import LONGEST_NAME, shortened


def problems_of(spec: ComparisonSpec) -> Iterator[Problem]:
    """Everything that is wrong with a comparison whose parts could be read."""
    yield from name_problems(spec)
    yield from _dataset_problems(spec)
    if not full_product(spec):
        return  # an empty axis or no seed, which reading has reported
    yield from _exclude_problems(spec)
    yield from _include_problems(spec)
    yield from _baseline_problems(spec)
    yield from _run_name_problems(spec)
    yield from _undefended_problems(spec)


def name_problems(spec: ComparisonSpec) -> Iterator[Problem]:
    """A name that no folder can have."""
    if not re.fullmatch(r"[A-Za-z0-9_+][A-Za-z0-9._+-]*", spec.name):
        remedy = "use letters, digits, dots, hyphens and underscores"
        yield Problem(f"the name of the comparison is {shortened(spec.name)}", "it could not name a folder", remedy)
    elif len(spec.name) > LONGEST_NAME:
        cause = f"the name of the comparison has {len(spec.name):,} characters: {shortened(spec.name)}"
        yield Problem(cause, "a file system may refuse it", f"choose a --name of up to {LONGEST_NAME}")


def _dataset_problems(spec: ComparisonSpec) -> Iterator[Problem]:
    bare = [entry.name for entry in spec.datasets if not entry.configs and not entry.options]
    if len(bare) > 1:
        cause = f"the datasets {' and '.join(bare)} both stand for what `base` says"
        remedy = "name the recipes of each, such as `mnist: [my-mnist.yaml]`"
        yield Problem(cause, "the same runs would be made twice under different names", remedy)


def _exclude_problems(spec: ComparisonSpec) -> Iterator[Problem]:
    product = full_product(spec)
    for pattern in spec.exclude:
        if not any(pattern.matches(labels) for labels in product):
            yield Problem(f"exclude: {pattern} matches no run", "it has no effect", "correct it or remove it")
    if not remaining(spec) and not spec.include:
        yield Problem("every run is excluded", "there is nothing to run", "exclude less")


def _include_problems(spec: ComparisonSpec) -> Iterator[Problem]:
    present = set(remaining(spec))
    for pattern in spec.include:
        runs = included(spec, pattern)
        against = [other for other in spec.exclude if any(other.matches(labels) for labels in runs)]
        if against:
            cause = f"include: {pattern} asks for runs that exclude: {against[0]} leaves out"
            yield Problem(cause, "it is unclear whether they are to be run", "remove one of the two")
        elif present.issuperset(runs):
            cause = f"include: {pattern} is part of the matrix already"
            yield Problem(cause, "it has no effect", "correct it or remove it")
        present.update(runs)


def _baseline_problems(spec: ComparisonSpec) -> Iterator[Problem]:
    """A baseline that is not run; several rows of which none is without a defense, and no baseline."""
    pairs = list(dict.fromkeys((planned.labels.method, planned.labels.defense) for planned in planned_runs(spec)))
    if spec.baseline is None and len(pairs) > 1 and all(defense != NO_DEFENSE for _, defense in pairs):
        method, defense = pairs[0]
        yield Problem(
            "no row is without a defense, and no baseline is named",
            "it is unclear which row the others are compared with",
            f"name it, such as `baseline: {{method: {method}, defense: {defense}}}`, or add `{NO_DEFENSE}` to defenses",
        )
    if spec.baseline is not None and pairs and spec.baseline not in pairs:
        method, defense = spec.baseline
        yield Problem(
            f"baseline: no run has the method {method} with the defense {defense}",
            "there would be nothing to compare the others with",
            "name a method and a defense that are run, or include them",
        )


def _undefended_problems(spec: ComparisonSpec) -> Iterator[Problem]:
    """Defenses that every run gets, also those that are reported as undefended."""
    undefended = any(planned.labels.defense == NO_DEFENSE for planned in planned_runs(spec))
    if undefended and (shared := _shared_defenses(spec)):
        yield Problem(
            f"every run gets a defense ({', '.join(shared)}), also those under {NO_DEFENSE}",
            "defended runs would be reported as undefended",
            "move it to `defenses`, such as `defenses: {dp-sgd: , both: [dp-sgd, memdefense]}`",
        )


def _shared_defenses(spec: ComparisonSpec) -> list[str]:
    """Defenses of `base`, `attacks` and `set`; none where a recipe is wrong, which is raised with the runs."""
    added = [option for option, value in spec.options if option.startswith("defenses") and value != "null"]
    with contextlib.suppress(UserError):
        return [*(layered([*spec.base, *spec.attacks]).get("defenses") or {}), *filter(_adds, added)]
    return []


def _adds(option: str) -> bool:
    """Whether it adds a defense, and does not only set an option of one."""
    return option.count(".") < 2


def _run_name_problems(spec: ComparisonSpec) -> Iterator[Problem]:
    by_name = defaultdict(list)
    for planned in planned_runs(spec):
        by_name[planned.name.casefold()].append(planned)  # some file systems ignore case
    for runs in by_name.values():
        name = runs[0].name
        if len(runs) > 1:
            combinations = " and ".join(f"({', '.join(planned.combination)})" for planned in runs)
            cause = f"the runs {combinations} would both be called {name}"
            yield Problem(cause, "one would overwrite the other", "rename an entry of an axis")
        if len(name) > LONGEST_NAME:
            cause = f"the name {shortened(name)} has {len(name)} characters"
            yield Problem(cause, "a file system may refuse it", f"shorten names to {LONGEST_NAME} in all")
