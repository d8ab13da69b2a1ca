"""Parts of a comparison's file, read one by one; what is wrong with them is gathered, and reading goes on."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.errors import Problem, UserError
from app.experiments.spec import AxisEntry, Options
from app.recipes import find_recipe, shipped_recipes
from app.results.run.labels import NO_DEFENSE

OURS = ("config", "run", "group", "seed_everything")
"""Options that the comparison itself gives to every run."""

NOT_STARTED = "no run starts"


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """The nearest names as the beginning of a remedy, empty where none is near."""
    near = difflib.get_close_matches(str(name), list(known), n=2)
    return f"did you mean {' or '.join(near)}? " if near else ""


@dataclass(frozen=True)
class Fields:
    """Reads values, and gathers problems.

    Attributes:
        folder: folder of the comparison's file; files named in it may lie there.
        problems: what was found so far.
    """

    folder: Path
    problems: list[Problem] = field(default_factory=list)

    def wrong(self, cause: str, remedy: str, consequence: str = NOT_STARTED) -> None:
        """Note a problem."""
        self.problems.append(Problem(cause, consequence, remedy))

    def mapping(self, value: Any, where: str, known: Iterable[str] | None = None) -> dict[str, Any]:
        """A mapping with texts as keys; empty where there is none.

        Args:
            value: what stands in the file.
            where: its place, for messages.
            known: keys that are understood, None for any.
        """
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self.wrong(f"{where} is {value!r}", f"write {where} as `name: value` lines")
            return {}
        for key in value:
            if not isinstance(key, str):
                self.wrong(f"a name in {where} is {key!r}, which is no text", "put it in quotes")
            elif known is not None and key not in known:
                hint = did_you_mean(key, known)
                self.wrong(f"{where} has no key {key!r}", f"{hint}known are {', '.join(known)}")
        return {key: item for key, item in value.items() if isinstance(key, str) and (known is None or key in known)}

    def recipes(self, value: Any, where: str) -> tuple[str, ...]:
        """Names of recipes or files: none, one, or a list; each must exist."""
        given = [] if value is None else value if isinstance(value, list) else [value]
        return tuple(found for name in given if (found := self._recipe(name, where)) is not None)

    def options(self, value: Any, where: str) -> Options:
        """Options of `rampart fit` with their values as they are written on a command line."""
        result = []
        for name, item in self.mapping(value, where).items():
            option = name.removeprefix("--")
            if option.split(".")[0] in OURS:
                remedy = "remove it; seeds, names and folders have places of their own"
                self.wrong(f"{where} sets {option}, which the comparison gives to every run", remedy)
            else:
                result.append((option, item if isinstance(item, str) else json.dumps(item)))
        return tuple(result)

    def seeds(self, value: Any, where: str) -> tuple[int, ...]:
        """Distinct numbers of 0 or more: one, or a list."""
        given = value if isinstance(value, list) else [value]
        good = [seed for seed in given if isinstance(seed, int) and not isinstance(seed, bool) and seed >= 0]
        if bad := [seed for seed in given if seed not in good or isinstance(seed, bool)]:
            self.wrong(f"{where} holds {', '.join(map(repr, bad))}", "seeds are whole numbers of 0 or more")
        if twice := sorted({seed for seed in good if good.count(seed) > 1}):
            cause = f"{where} names {', '.join(map(str, twice))} more than once"
            self.wrong(cause, "name every seed once", "a run would be counted twice")
        if not given:
            self.wrong(f"{where} is empty", "name at least one seed, such as [0, 1, 2]")
        return tuple(dict.fromkeys(good))

    def entries(self, value: Any, axis: str) -> tuple[AxisEntry, ...]:
        """All entries of an axis: a list of names, or names with what they stand for."""
        if isinstance(value, list):
            names = [str(name) for name in value]
            if twice := sorted({name for name in names if names.count(name) > 1}):
                self.wrong(f"{axis} names {', '.join(twice)} more than once", "name each once")
            value = dict.fromkeys(names)
        return tuple(self.entry(name, stands_for, axis) for name, stands_for in self.mapping(value, axis).items())

    def entry(self, name: str, value: Any, axis: str, listed: bool = True) -> AxisEntry:
        """One entry: null for the recipe of that name, recipes, or `{configs: ..., set: ...}`.

        Args:
            name: its name.
            value: what it stands for.
            axis: key of the axis.
            listed: whether it is part of the axis.
        """
        where = f"{axis}.{name}"
        if axis == "defenses" and name == NO_DEFENSE:
            if value:
                self.wrong(f"{where} stands for {value!r}", f"give it another name; {NO_DEFENSE} means no defense")
            return AxisEntry(name, listed=listed)
        parts = self.mapping(value, where, ("configs", "set")) if isinstance(value, Mapping) else {"configs": value}
        options = self.options(parts.get("set"), f"{where}.set")
        if parts.get("configs") is not None:
            return AxisEntry(name, self.recipes(parts["configs"], where), options, listed)
        if axis == "datasets" and not self._nearly_a_recipe(name):
            return AxisEntry(name, (), options, listed)
        return AxisEntry(name, self.recipes(name, where), options, listed)

    def is_recipe(self, name: str) -> bool:
        """Whether there is a recipe or a file of that name."""
        try:
            find_recipe(self._located(name))
        except UserError:
            return False
        return True

    def _nearly_a_recipe(self, name: str) -> bool:
        """Whether a dataset's name is meant as a recipe; otherwise it is what lies below that names the data."""
        names = [recipe.name for recipe in shipped_recipes()]
        return self.is_recipe(name) or bool(difflib.get_close_matches(name, names, n=1, cutoff=0.85))

    def _recipe(self, name: Any, where: str) -> str | None:
        if not isinstance(name, str):
            self.wrong(f"{where} names {name!r}, which is no text", "name recipes or files")
            return None
        try:
            find_recipe(self._located(name))
        except UserError as error:
            self.problems.extend(Problem(f"{where}: {each.cause}", NOT_STARTED, each.remedy) for each in error.problems)
            return None
        return self._located(name)

    def _located(self, name: str) -> str:
        """The name itself, or the path of a file beside the comparison's."""
        beside = self.folder / name
        return str(beside) if name.endswith((".yaml", ".yml")) and beside.is_file() else name
