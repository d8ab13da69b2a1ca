"""Reads the file of a comparison into a `ComparisonSpec`; all problems of the file are reported in one error."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.common.errors import UserError, raise_all
from app.common.wording import near
from app.experiments.checks import problems_of
from app.experiments.fields import FieldReader
from app.experiments.spec import AXES, AxisEntry, ComparisonSpec, Pattern, Scale
from app.experiments.sweeps import with_less_training
from app.recipes import Recipe, find_comparison, read_layer, shipped_recipes
from app.results.run.labels import NO_DEFENSE

KEYS = (
    *("name", "base", "datasets", "methods", "defenses", "attacks", "set", "seeds"),
    *("include", "exclude", "baseline", "scales", "published", "tune"),
)


def read_spec(source: str | Path | Mapping[str, Any]) -> ComparisonSpec:
    """The comparison in a file, the shipped one of that name, or one that is given as the content of such a file.

    One error names everything that is wrong with it.
    """
    path = Path("comparison") if isinstance(source, Mapping) else find_comparison(str(source))
    reader = _SpecReader(path)
    spec = reader.spec(source if isinstance(source, Mapping) else read_layer(path))
    raise_all([*reader.problems, *problems_of(spec)])
    return spec


def find_scale(spec: ComparisonSpec, name: str) -> Scale:
    """The scale of that name; refused where there is none."""
    known = {scale.name: scale for scale in spec.scales}
    if name not in known:
        choice = f"{near(str(name), known)}there are {', '.join(known)}" if known else "leave out --scale"
        raise UserError.of(f"{spec.name} has no scale {name!r}", "no run starts", choice)
    return known[name]


class _SpecReader(FieldReader):
    """Reads the sections of the file; `axes` grows by what only `include` names."""

    def __init__(self, path: Path) -> None:
        super().__init__(path.parent)
        self.path = path
        self.axes: dict[str, tuple[AxisEntry, ...]] = {}

    def spec(self, file: Mapping[str, Any]) -> ComparisonSpec:
        content = self.mapping(file, "a comparison", KEYS)
        self._read_axes(content)
        exclude = self._patterns(content.get("exclude"), "exclude")
        include = self._patterns(content.get("include"), "include")
        seeds = self.seeds(content.get("seeds", [0]), "seeds")
        return ComparisonSpec(
            name=str(content.get("name") or self.path.stem),
            purpose=Recipe(self.path.stem, "comparison", self.path).purpose if self.path.is_file() else "",
            path=self.path,
            datasets=self.axes["datasets"],
            methods=self.axes["methods"],
            defenses=self.axes["defenses"],
            base=self.recipes(content.get("base"), "base"),
            attacks=self.recipes(content.get("attacks"), "attacks"),
            options=self.options(content.get("set"), "set"),
            seeds=seeds,
            include=include,
            exclude=exclude,
            baseline=self._baseline(content.get("baseline")),
            scales=self._scales(content.get("scales")),
            published=self._published(content.get("published")),
            tune=self.tune(content["tune"], seeds) if content.get("tune") is not None else None,
        )

    def _read_axes(self, content: Mapping[str, Any]) -> None:
        self.axes = {key: self.entries(content.get(key), key) for key in AXES.values()}
        if "defenses" not in content:
            self.axes["defenses"] = (AxisEntry(NO_DEFENSE),)
        if any(isinstance(entry, Mapping) and entry.get("sweep") for entry in _contents(content.get("defenses"))):
            self.axes["defenses"] = with_less_training(self.axes["defenses"])
        for key, entries in self.axes.items():
            if not entries and not content.get(key):  # otherwise the reason is noted already
                self.add_problem(f"{key} is empty", f"name at least one below {key}", "there would be no run")

    def _patterns(self, value: Any, key: str) -> tuple[Pattern, ...]:
        items = value or []
        if not isinstance(items, list) or not all(isinstance(item, Mapping) and item for item in items):
            remedy = f"write {key} as a list such as [{{method: fedavg, defense: none}}]"
            self.add_problem(f"{key} is {items!r}", remedy)
            return ()
        patterns = []
        for number, item in enumerate(items, 1):
            where = f"{key}[{number}]"
            labels = self.mapping(item, where, (*AXES, "seed"))
            if key == "include":
                self._add_new_entries(labels, where)
            patterns.append(self._pattern(labels, where))
        return tuple(pattern for pattern in patterns if pattern is not None)

    def _add_new_entries(self, labels: Mapping[str, Any], where: str) -> None:
        """Append what only `include` names to its axis."""
        for label, axis in AXES.items():
            value = labels.get(label)
            known = {entry.name for entry in self.axes[axis]}
            if isinstance(value, Mapping) and len(value) == 1 and (name := str(next(iter(value)))) not in known:
                self.axes[axis] += (self.entry(name, value[name], axis, listed=False),)
            elif isinstance(value, Mapping):
                form = f"{label}: {{a-new-name: {{configs: [...], set: {{...}}}}}}"
                remedy = f"write {form}, or the name of one in {axis}"
                self.add_problem(f"{where} describes the {label} as {dict(value)}", remedy)
            elif isinstance(value, str) and value not in known and (value == NO_DEFENSE or self.is_recipe(value)):
                self.axes[axis] += (self.entry(value, None, axis, listed=False),)

    def _pattern(self, labels: Mapping[str, Any], where: str) -> Pattern | None:
        """Runs by label; None where a name is unknown."""
        names: dict[str, str] = {}
        for label in AXES:
            value = labels.get(label)
            name = str(next(iter(value), "")) if isinstance(value, Mapping) else value
            if name is not None and self._is_known(name, label, where):
                names[label] = name
        seeds = self.seeds(labels["seed"], f"{where}.seed") if "seed" in labels else None
        complete = set(names) == {label for label in AXES if labels.get(label) is not None}
        return Pattern(seeds=seeds, **names) if complete and (names or seeds) else None

    def _is_known(self, name: Any, label: str, where: str) -> bool:
        axis = AXES[label]
        names = [entry.name for entry in self.axes[axis]]
        if name in names:
            return True
        recipes = [recipe.name for recipe in shipped_recipes()] if where.startswith("include") else []
        remedy = f"{near(str(name), names + recipes)}{axis} are {', '.join(names) or 'empty'}"
        self.add_problem(f"{where} names the {label} {name!r}, which is not among {axis}", remedy)
        return False

    def _baseline(self, value: Any) -> tuple[str, str] | None:
        labels = self.mapping(value, "baseline", ("method", "defense"))
        pattern = None if value is None else self._pattern(labels, "baseline")
        if pattern is None:
            return None
        if pattern.method is None:
            self.add_problem("baseline names no method", "write baseline: {method: fedavg, defense: none}")
            return None
        return pattern.method, pattern.defense or NO_DEFENSE

    def _scales(self, value: Any) -> tuple[Scale, ...]:
        scales = []
        for name, content in self.mapping(value, "scales").items():
            where = f"scales.{name}"
            parts = self.mapping(content, where, ("seeds", "configs", "set"))
            seeds = self.seeds(parts["seeds"], f"{where}.seeds") if "seeds" in parts else None
            configs = self.recipes(parts.get("configs"), f"{where}.configs")
            scales.append(Scale(name, seeds, configs, self.options(parts.get("set"), f"{where}.set")))
        return tuple(scales)

    def _published(self, value: Any) -> tuple[Mapping[str, Any], ...]:
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(figures, Mapping) for figures in value):
            self.add_problem("published is no list of figures", "write published as a list of mappings")
            return ()
        return tuple(dict(figures) for figures in value)


def _contents(axis: Any) -> list[Any]:
    """What the entries of an axis stand for."""
    return list(axis.values()) if isinstance(axis, Mapping) else []
