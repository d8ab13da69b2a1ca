"""The file of a comparison, read into a `ComparisonSpec`; all that is wrong with it is told at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.errors import UserError, raise_all
from app.experiments.checks import problems_of
from app.experiments.fields import Fields, did_you_mean
from app.experiments.spec import AXES, AxisEntry, ComparisonSpec, Pattern, Scale
from app.recipes import Recipe, find_comparison, read_layer, shipped_recipes

KEYS = (
    *("name", "base", "datasets", "methods", "defenses", "attacks", "set", "seeds"),
    *("include", "exclude", "baseline", "scales", "published"),
)
PLACES = (*AXES, "seed")


def read_spec(name: str) -> ComparisonSpec:
    """A comparison by its file or by the name of a shipped one.

    Args:
        name: path or name.

    Raises:
        UserError: with everything that is wrong with the file.
    """
    path = find_comparison(name)
    fields = Fields(path.parent)
    content = fields.mapping(read_layer(path), "a comparison", KEYS)
    spec = _spec(content, path, fields)
    raise_all([*fields.problems, *problems_of(spec)])
    return spec


def find_scale(spec: ComparisonSpec, name: str) -> Scale:
    """The scale of that name.

    Raises:
        UserError: where there is none.
    """
    known = {scale.name: scale for scale in spec.scales}
    if name not in known:
        choice = f"{did_you_mean(name, known)}there are {', '.join(known)}" if known else "leave out --scale"
        raise UserError.of(f"{spec.name} has no scale {name!r}", "no run starts", choice)
    return known[name]


def _spec(content: Mapping[str, Any], path: Path, fields: Fields) -> ComparisonSpec:
    axes = {key: fields.entries(content.get(key), key) for key in AXES.values()}
    if "defenses" not in content:
        axes["defenses"] = (AxisEntry("none"),)
    for key, entries in axes.items():
        if not entries and not content.get(key):  # else it was told why
            fields.wrong(f"{key} is empty", f"name at least one below {key}", "there would be no cell")
    exclude = tuple(_pattern(one, f"exclude[{at}]", axes, fields) for at, one in _numbered(content, "exclude", fields))
    include = []
    for at, one in _numbered(content, "include", fields):
        _add_new_entries(one, f"include[{at}]", axes, fields)
        include.append(_pattern(one, f"include[{at}]", axes, fields))
    return ComparisonSpec(
        name=str(content.get("name") or path.stem),
        purpose=Recipe(path.stem, "comparison", path).purpose,
        path=path,
        datasets=axes["datasets"],
        methods=axes["methods"],
        defenses=axes["defenses"],
        base=fields.recipes(content.get("base"), "base"),
        attacks=fields.recipes(content.get("attacks"), "attacks"),
        options=fields.options(content.get("set"), "set"),
        seeds=fields.seeds(content.get("seeds", [0]), "seeds"),
        include=tuple(one for one in include if one is not None),
        exclude=tuple(one for one in exclude if one is not None),
        baseline=_baseline(content.get("baseline"), axes, fields),
        scales=_scales(content.get("scales"), fields),
        published=_published(content.get("published"), fields),
    )


def _numbered(content: Mapping[str, Any], key: str, fields: Fields) -> list[tuple[int, Mapping[str, Any]]]:
    """Mappings of a list, counted from 1."""
    value = content.get(key) or []
    if not isinstance(value, list) or not all(isinstance(one, Mapping) and one for one in value):
        fields.wrong(f"{key} is {value!r}", f"write {key} as a list such as [{{method: fedavg, defense: none}}]")
        return []
    return [(at, fields.mapping(one, f"{key}[{at}]", PLACES)) for at, one in enumerate(value, 1)]


def _add_new_entries(
    one: Mapping[str, Any], where: str, axes: dict[str, tuple[AxisEntry, ...]], fields: Fields
) -> None:
    """Give what only `include` names a place at the end of its axis."""
    for label, axis in AXES.items():
        named = one.get(label)
        known = {entry.name for entry in axes[axis]}
        if isinstance(named, Mapping) and len(named) == 1 and (name := str(next(iter(named)))) not in known:
            axes[axis] += (fields.entry(name, named[name], axis, listed=False),)
        elif isinstance(named, Mapping):
            remedy = f"write {label}: {{a-new-name: {{configs: [...], set: {{...}}}}}}, or the name of one in {axis}"
            fields.wrong(f"{where} describes the {label} as {dict(named)}", remedy)
        elif isinstance(named, str) and named not in known and (named == "none" or fields.is_recipe(named)):
            axes[axis] += (fields.entry(named, None, axis, listed=False),)


def _pattern(
    one: Mapping[str, Any], where: str, axes: Mapping[str, tuple[AxisEntry, ...]], fields: Fields
) -> Pattern | None:
    """Cells by label; None where a name is unknown."""
    named: dict[str, str] = {}
    for label, axis in AXES.items():
        value = one.get(label)
        name = str(next(iter(value), "")) if isinstance(value, Mapping) else value
        if name is not None and _known(name, label, axis, where, axes, fields):
            named[label] = name
    seeds = fields.seeds(one["seed"], f"{where}.seed") if "seed" in one else None
    complete = set(named) == {label for label in AXES if one.get(label) is not None} and set(one) <= set(PLACES)
    return Pattern(seeds=seeds, **named) if complete and (named or seeds) else None


def _known(
    name: Any, label: str, axis: str, where: str, axes: Mapping[str, tuple[AxisEntry, ...]], fields: Fields
) -> bool:
    names = [entry.name for entry in axes[axis]]
    if name in names:
        return True
    choices = [*names, *(recipe.name for recipe in shipped_recipes())] if where.startswith("include") else names
    cause = f"{where} names the {label} {name!r}, which is not among {axis}"
    fields.wrong(cause, f"{did_you_mean(name, choices)}{axis} are {', '.join(names) or 'empty'}")
    return False


def _baseline(value: Any, axes: Mapping[str, tuple[AxisEntry, ...]], fields: Fields) -> tuple[str, str] | None:
    if value is None:
        return None
    parts = fields.mapping(value, "baseline", ("method", "defense"))
    pattern = _pattern(parts, "baseline", axes, fields)
    if pattern is None or pattern.method is None:
        if pattern is not None:
            fields.wrong("baseline names no method", "write baseline: {method: fedavg, defense: none}")
        return None
    return pattern.method, pattern.defense or "none"


def _scales(value: Any, fields: Fields) -> tuple[Scale, ...]:
    scales = []
    for name, content in fields.mapping(value, "scales").items():
        where = f"scales.{name}"
        parts = fields.mapping(content, where, ("seeds", "configs", "set"))
        seeds = fields.seeds(parts["seeds"], f"{where}.seeds") if "seeds" in parts else None
        configs = fields.recipes(parts.get("configs"), f"{where}.configs")
        scales.append(Scale(name, seeds, configs, fields.options(parts.get("set"), f"{where}.set")))
    return tuple(scales)


def _published(value: Any, fields: Fields) -> tuple[Mapping[str, Any], ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(one, Mapping) for one in value):
        fields.wrong("published is no list of figures", "write published as a list of mappings")
        return ()
    return tuple(dict(one) for one in value)
