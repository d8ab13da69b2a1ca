"""Recipes: configuration files that are layered, each the difference from what lies below.

Mappings are merged key by key, so a method, two defenses and an attack suite add up; lists and plain values are
replaced; `null` removes what a layer below has put there. An object (`class_path` with `init_args`) is merged with one
of the same class and replaced by one of another class. A key with a question mark (`net?`) gives way: it counts only
where the layers below have chosen nothing, or an object of the same class.

A defense or an attack that a layer only names (`defenses: [memdefense]`, `defenses: {memdefense: }`) stands for the
shipped recipe of that name.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from app.common.errors import Problem, UserError, raise_all
from app.common.reading import load_yaml
from app.common.renamed import current
from app.common.wording import near

FOLDER = Path(__file__).parent / "configs"
DEFAULTS = FOLDER / "default.yaml"
COVERAGE = FOLDER / "coverage.yaml"
COMPARISONS = FOLDER / "comparisons"
SWEEPS = FOLDER / "sweeps"
SECTIONS = {"defenses": "defense", "attacks": "attack"}
"""Sections that hold callbacks by name, and the kind of recipes that fill them."""

OBJECT_KEYS = {"class_path", "init_args", "dict_kwargs"}
CODES = {"ofm": "heterofl", "gfm": "mapp-fl", "gfr": "mapp-fl-r", "usr": "fdropout"}
"""Codes of the taxonomy whose recipe goes by the method's own name."""


@dataclass(frozen=True)
class Recipe:
    """A shipped configuration file; its kind is method, defense, attack, data, paper, comparison or general."""

    name: str
    kind: str
    path: Path

    @property
    def purpose(self) -> str:
        """The comment in the file's first line."""
        first = self.path.read_text().split("\n", 1)[0]
        return first.lstrip("# ").strip() if first.startswith("#") else ""


@functools.cache
def shipped_recipes() -> tuple[Recipe, ...]:
    """All recipes, by kind and name; comparisons and sweeps are made of recipes, and are none themselves."""
    others = (COMPARISONS, SWEEPS)
    none = (DEFAULTS, COVERAGE)
    paths = sorted(path for path in FOLDER.rglob("*.yaml") if path not in none and path.parent not in others)
    return tuple(Recipe(path.stem, _kind(path), path) for path in paths)


def shipped_comparisons() -> list[Recipe]:
    """All comparisons that come with the program, by name."""
    return [Recipe(path.stem, "comparison", path) for path in sorted(COMPARISONS.glob("*.yaml"))]


@dataclass(frozen=True)
class Coverage:
    """A table or figure of a paper.

    Attributes:
        paper: short name of the paper.
        name: the table or figure by its number there, such as "Table 2".
        by: the comparisons, the recipe or the command that show it; empty where nothing does.
        left_out: what is missing or different, and why; empty where it is there as published.
    """

    paper: str
    name: str
    by: str = ""
    left_out: str = ""


def published_coverage() -> list[Coverage]:
    """All tables and figures of the five papers, paper by paper."""
    papers = load_yaml(COVERAGE.read_text())
    return [Coverage(paper, name, **entry) for paper, entries in papers.items() for name, entry in entries.items()]


def find_comparison(name: str) -> Path:
    """The file behind `rampart compare --config NAME`: a path, or the name of a shipped comparison."""
    known = {comparison.name: comparison.path for comparison in shipped_comparisons()}
    if (path := _file_or_shipped(name, name.lower(), known)) is not None:
        return path
    hint = near(name.lower(), known, 3)
    if name.lower() in {recipe.name for recipe in shipped_recipes()}:
        hint = f"{name} is a recipe of a single run: `rampart fit --config {name}`; "
    raise UserError.of(
        f"no comparison {name!r}: neither a file nor a shipped one",
        "no run starts",
        f"{hint}`rampart list comparisons` shows those that are shipped",
    )


def find_recipe(name: str) -> Path:
    """The file behind `--config NAME`: a path, or the name of a shipped recipe."""
    known = {recipe.name: recipe.path for recipe in shipped_recipes()}
    if (path := _file_or_shipped(name, CODES.get(name.lower(), name.lower()), known)) is not None:
        return path
    hint = near(name.lower(), known, 3)
    if name.lower() in {comparison.name for comparison in shipped_comparisons()}:
        hint = f"{name} is a comparison of many runs: `rampart compare --config {name}`; "
    raise UserError.of(
        f"no configuration {name!r}: neither a file nor a recipe",
        "the run would not be the one you asked for",
        f"{hint}`rampart list recipes` shows all recipes",
    )


def _file_or_shipped(path: str, name: str, known: Mapping[str, Path]) -> Path | None:
    try:
        return Path(path) if Path(path).is_file() else known.get(name)
    except OSError:  # such as a path that is too long
        return None


Layer = str | Path | Mapping[str, Any]
"""A recipe's name, a configuration file, or a configuration as nested data."""


def layered(layers: Iterable[Layer]) -> dict[str, Any]:
    """The defaults with the layers on top, first to last."""
    config = read_layer(DEFAULTS)
    problems: list[Problem] = []
    for layer in layers:
        try:
            config = overlay(config, layer if isinstance(layer, Mapping) else read_layer(find_recipe(str(layer))))
        except UserError as error:
            problems.extend(error.problems)
    raise_all(problems)
    return config


def read_layer(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file."""
    remedy = "correct the file; `rampart fit --print_config` shows the form"
    try:
        content = deepcopy(_content(path.read_text(encoding="utf-8")))
    except UnicodeDecodeError as error:
        cause = f"cannot read {path}: byte {error.start + 1} is no UTF-8 text"
        raise UserError.of(cause, "no run starts", "save the file as UTF-8") from error
    except (OSError, yaml.YAMLError) as error:
        raise UserError.of(f"cannot read {path}: {' '.join(str(error).split())}", "no run starts", remedy) from error
    if not isinstance(content, Mapping):
        raise UserError.of(f"{path} holds no settings", "no run starts", remedy)
    return current(dict(content))


@functools.lru_cache
def _content(text: str) -> Any:
    """What the text of a layer says; those of a comparison's runs lie on the same layers."""
    return load_yaml(text)


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`below` overlaid with `above`."""
    replaced = _class_of(above) is not None and _class_of(below) != _class_of(above)
    result = {} if replaced else dict(below)
    for marked, value in above.items():
        key = marked.removesuffix("?")
        old = result.get(key)
        if key != marked and old is not None and _class_of(old) != _class_of(value):
            continue
        if value is None and isinstance(old, Mapping):
            del result[key]
        elif isinstance(value, Mapping):
            result[key] = merge(old if isinstance(old, Mapping) else {}, value)
        else:
            result[key] = value
    return result


def overlay(below: Mapping[str, Any], layer: Mapping[str, Any]) -> dict[str, Any]:
    """`below` overlaid with a layer, and under it the recipes of defenses and attacks that it only names.

    Raises:
        UserError: where it names a defense or an attack without a class that neither `below` nor a recipe has.
    """
    _refuse_other_keys(layer)
    above, base = dict(layer), dict(below)
    for section in (section for section in SECTIONS if section in layer):
        entries = {}
        for name, value in _entries(section, layer[section]).items():
            entry = _object(f"{section}.{name}", value)
            key = _key(base.get(section), name)
            if key is None and not name.endswith("?") and _class_of(entry) is None:
                recipe = _recipe_of(section, name, base.get(section) or {})
                base = merge(base, recipe)
                key, entry = next(iter(recipe[section])), entry or {}
            entries[key or name] = entry
        above[section] = entries if layer[section] is not None else None
    return merge(base, above)


def _entries(section: str, content: Any) -> dict[str, Any]:
    """Callbacks of a layer by name, from a mapping, a name, or a list of names."""
    if content is None or isinstance(content, Mapping):
        return dict(content or {})
    names = content.split(",") if isinstance(content, str) else content
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        remedy = f"write {section}: [NAME, NAME] for recipes, or {section}: {{NAME: {{class_path: CLASS}}}}"
        raise UserError.of(f"{section} is {content!r}", "it is no name, list of names or mapping", remedy)
    return {name.strip(): {} for name in names}


def _object(where: str, value: Any) -> Any:
    """A callback of a layer as `class_path` and `init_args`: its class may stand alone, and so may its options."""
    if isinstance(value, str):
        return {"class_path": value}
    if value is not None and not isinstance(value, Mapping):
        remedy = f"write {where}: CLASS, or {where}: {{class_path: CLASS, init_args: {{OPTION: VALUE}}}}"
        raise UserError.of(f"{where} is {value!r}", "it names no class", remedy)
    stray = [str(key) for key in value or () if key not in OBJECT_KEYS]
    if value and len(stray) == len(value):
        return {"init_args": value}
    if stray:
        remedy = f"put options below init_args: {where}: {{class_path: CLASS, init_args: {{OPTION: VALUE}}}}"
        raise UserError.of(f"{where} has {', '.join(stray)} beside its class", "it would have no effect", remedy)
    return value


def _recipe_of(section: str, name: str, present: Iterable[str]) -> dict[str, Any]:
    """The recipe that a defense or an attack without a class stands for."""
    known = {recipe.name: recipe.path for recipe in shipped_recipes() if recipe.kind == SECTIONS[section]}
    if (path := known.get(_spelling(name))) is None:
        raise UserError.of(
            f"there is no {name!r} among the {section}, and no recipe of that name",
            "the run would be made without it",
            f"{near(name.lower(), known, 3)}name a class, such as --{section}.{name} CLASS, "
            f"or a recipe: {', '.join(known)}; present: {', '.join(present) or 'none'}",
        )
    return read_layer(path)


def _key(entries: Any, name: str) -> str | None:
    """The name of a callback that is there already, hyphens and underscores alike; None where it is not."""
    return next((key for key in entries or () if _spelling(key) == _spelling(name)), None)


def callback_of(entries: Mapping[str, Any], name: str) -> Any:
    """The callback of a name, hyphens and underscores alike."""
    key = _key(entries, name)
    return entries[key if key is not None else [*entries][-1]]  # a recipe may call it something else


def _spelling(name: str) -> str:
    return name.lower().replace("_", "-")


def _refuse_other_keys(layer: Mapping[Any, Any], where: str = "") -> None:
    for key, value in layer.items():
        if not isinstance(key, str):
            place = f" in {where.removesuffix('.')}" if where else ""
            raise UserError.of(f"the name of a setting{place} is {key!r}", "names are text", "put it in quotes")
        if isinstance(value, Mapping):
            _refuse_other_keys(value, f"{where}{key}.")


def option_layer(section: str, keys: list[str], value: Any) -> dict[str, Any]:
    """The layer of `--defenses VALUE`, of `--defenses.NAME CLASS` or of `--defenses.NAME.OPTION VALUE`."""
    name, *rest = keys or [""]
    entry = {"init_args": _nested(rest, value)} if rest else value
    return {section: {name: entry} if keys else entry}


def refuse_absent(config: Mapping[str, Any], section: str, keys: Sequence[str]) -> None:
    """Refuse an option of a defense or an attack that is not there."""
    present, name = config.get(section) or {}, keys[0]
    if _key(present, name) is None:
        raise UserError.of(
            f"--{section}.{'.'.join(keys)}: there is no {name!r} among the {section}",
            "the option would have no effect",
            f"{near(name.lower(), present, 3)}add it with --config or --{section}.{name} CLASS; "
            f"present: {', '.join(present) or 'none'}",
        )


def _nested(keys: list[str], value: Any) -> dict[str, Any]:
    first, *rest = keys if keys[0] != "init_args" else keys[1:]
    return {first: _nested(rest, value) if rest else value}


def _class_of(value: Any) -> str | None:
    """Class of an object, None for anything else."""
    name = value.get("class_path") if isinstance(value, Mapping) else None
    return str(name).rpartition(".")[2] if name is not None else None


def _kind(path: Path) -> str:
    folder = path.parent.name
    return "general" if path.parent == FOLDER else folder.removesuffix("s")
