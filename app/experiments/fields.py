"""Reads single fields of a comparison file; problems are gathered, and reading continues."""

from __future__ import annotations

import contextlib
import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from app.common.errors import Problem, UserError
from app.common.ranges import Inside, Seed, Several, fits
from app.common.wording import near
from app.experiments.spec import AxisEntry, Options, Tune
from app.experiments.sweeps import DEFAULT, swept
from app.experiments.tuning.space import read_span
from app.recipes import find_recipe, shipped_recipes
from app.results.run.labels import NO_DEFENSE, TRAIN_LESS

TRIALS = 12
"""Trials of every row where a comparison does not say."""

VALIDATION = 0.1
"""Share of the pool that settings are chosen by where a comparison does not say."""

RESERVED = ("config", "run", "group", "seed_everything")
"""Options that the comparison itself sets for every run."""


class FieldReader:
    """Reads fields and gathers their problems; `where` names the field in messages, `folder` holds files it names."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problems: list[Problem] = []

    def add_problem(self, cause: str, remedy: str, consequence: str = "no run starts") -> None:
        """Note a problem of the file."""
        self.problems.append(Problem(cause, consequence, remedy))

    def mapping(self, value: Any, where: str, known: Sequence[str] | None = None) -> dict[str, Any]:
        """The items of a mapping whose keys are text and among `known` (None for any); empty for null."""
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self.add_problem(f"{where} is {value!r}", f"write {where} as `name: value` lines")
            return {}
        for key in value:
            if not isinstance(key, str):
                self.add_problem(f"a name in {where} is {key!r}, which is no text", "put it in quotes")
            elif known is not None and key not in known:
                remedy = f"{near(str(key), known)}known are {', '.join(known)}"
                self.add_problem(f"{where} has no key {key!r}", remedy)
        return {key: item for key, item in value.items() if isinstance(key, str) and (known is None or key in known)}

    def recipes(self, value: Any, where: str) -> tuple[str, ...]:
        """Names of recipes or files: null, one, or a list; each must exist."""
        names = [] if value is None else value if isinstance(value, list) else [value]
        return tuple(path for name in names if (path := self._recipe(name, where)) is not None)

    def options(self, value: Any, where: str) -> Options:
        """Options of `rampart fit` with their values as they are written on a command line."""
        options = []
        for name, item in self.mapping(value, where).items():
            option = name.removeprefix("--")
            if option.split(".")[0] in RESERVED:
                remedy = "remove it; seeds, names and folders have places of their own"
                self.add_problem(f"{where} sets {option}, which the comparison gives to every run", remedy)
            else:
                options.append((option, item if isinstance(item, str) else json.dumps(item)))
        return tuple(options)

    def seeds(self, value: Any, where: str) -> tuple[int, ...]:
        """Distinct seeds: one, or a list."""
        values = value if isinstance(value, list) else [value]
        seeds = [seed for seed in values if fits(Seed, seed)]
        if wrong := [seed for seed in values if not fits(Seed, seed)]:
            remedy = "seeds are whole numbers from 0 to 2^32 - 1"
            self.add_problem(f"{where} holds {', '.join(map(repr, wrong))}", remedy)
        if repeated := _repeated(seeds):
            cause = f"{where} names {', '.join(map(str, repeated))} more than once"
            self.add_problem(cause, "name every seed once", "a run would be counted twice")
        if not values:
            self.add_problem(f"{where} is empty", "name at least one seed, such as [0, 1, 2]")
        return tuple(dict.fromkeys(seeds))

    def tune(self, value: Any, seeds: Sequence[int]) -> Tune:
        """How rows are tuned: `default`, or a mapping of trials, space, validation, seed and prune."""
        parts = self.mapping({} if value == DEFAULT else value, "tune", [field.name for field in fields(Tune)])
        space = parts.get("space", DEFAULT)
        wanted = self.mapping({} if space == DEFAULT else space, "tune.space")
        tune = Tune(
            trials=parts.get("trials", TRIALS),
            space={},
            validation=parts.get("validation", VALIDATION),
            seed=parts.get("seed", next(iter(seeds), 0)),
            prune=parts.get("prune", True),
        )
        for name, kind in (("trials", Several), ("validation", Inside), ("seed", Seed)):
            if not fits(kind, given := getattr(tune, name)):
                self.add_problem(f"tune.{name} is {given!r}", f"set a number {kind.__name__.partition(' ')[2]}")
        if not isinstance(tune.prune, bool):
            self.add_problem(f"tune.prune is {tune.prune!r}", "write true or false")
        spans = {}
        for name, asked in wanted.items():
            try:
                spans[name] = read_span(name, asked)
            except UserError as error:
                self.problems.extend(error.problems)
        return replace(tune, space=spans)

    def entries(self, value: Any, axis: str) -> tuple[AxisEntry, ...]:
        """All entries of an axis: a list of names, or a mapping of names to what they stand for."""
        if isinstance(value, list):
            names = [str(name) for name in value]
            if repeated := _repeated(names):
                self.add_problem(f"{axis} names {', '.join(repeated)} more than once", "name each once")
            value = dict.fromkeys(names)
        return tuple(
            each for name, content in self.mapping(value, axis).items() for each in self.strengths(name, content, axis)
        )

    def strengths(self, name: str, content: Any, axis: str) -> tuple[AxisEntry, ...]:
        """One entry, or one for every strength of a defense that its `sweep` names."""
        entry = self.entry(name, content, axis)
        sweep = content.get("sweep") if isinstance(content, Mapping) else None
        if sweep is None:
            return (entry,)
        try:
            return swept(entry, sweep)
        except UserError as error:
            for problem in error.problems:
                self.add_problem(f"{axis}.{name}: {problem.cause}", problem.remedy)
            return (entry,)

    def entry(self, name: str, content: Any, axis: str, listed: bool = True) -> AxisEntry:
        """One entry: null for the recipe of that name, recipes, or `{configs: ..., set: ...}`."""
        where = f"{axis}.{name}"
        if axis == "defenses" and name == NO_DEFENSE:
            if content:
                remedy = f"give it another name; {NO_DEFENSE} means no defense"
                self.add_problem(f"{where} stands for {content!r}", remedy)
            return AxisEntry(name, listed=listed)
        is_mapping = isinstance(content, Mapping)
        known = ("configs", "set", "sweep") if axis == "defenses" else ("configs", "set")
        parts = self.mapping(content, where, known) if is_mapping else {"configs": content}
        configs = [] if name == TRAIN_LESS and axis == "defenses" else parts.get("configs")
        if configs is None and (kind := self._other_kind(name, axis)):
            remedy = f"name it below {kind}s, or write `{name}: [...]` with the recipes that it stands for"
            self.add_problem(f"{where} is the recipe of {'an' if kind == 'attack' else 'a'} {kind}", remedy)
        elif configs is None and (axis != "datasets" or self._is_nearly_recipe(name)):
            configs = name  # a dataset may also be described by `base`
        options = self.options(parts.get("set"), f"{where}.set")
        return AxisEntry(name, self.recipes(configs, where), options, listed=listed)

    def _other_kind(self, name: str, axis: str) -> str | None:
        """The kind of a shipped recipe that belongs to another axis: `attack`, `defense` or `method`."""
        kinds = {recipe.name: recipe.kind for recipe in shipped_recipes()}
        kind = kinds.get(name.lower())
        return kind if kind in ("attack", "defense", "method") and f"{kind}s" != axis else None

    def is_recipe(self, name: str) -> bool:
        """Whether there is a recipe or a file of that name."""
        with contextlib.suppress(UserError):
            find_recipe(self._located(name))
            return True
        return False

    def _is_nearly_recipe(self, name: str) -> bool:
        recipes = [recipe.name for recipe in shipped_recipes()]
        return self.is_recipe(name) or bool(difflib.get_close_matches(name, recipes, n=1, cutoff=0.85))

    def _recipe(self, name: Any, where: str) -> str | None:
        if not isinstance(name, str):
            self.add_problem(f"{where} names {name!r}, which is no text", "name recipes or files")
            return None
        try:
            find_recipe(self._located(name))
        except UserError as error:
            for problem in error.problems:
                self.add_problem(f"{where}: {problem.cause}", problem.remedy)
            return None
        return self._located(name)

    def _located(self, name: str) -> str:
        """The name itself, or the path of a file beside the comparison file."""
        beside = self.folder / name
        return str(beside) if name.endswith((".yaml", ".yml")) and beside.is_file() else name


def _repeated(values: Sequence[Any]) -> list[Any]:
    return sorted({value for value in values if values.count(value) > 1})
