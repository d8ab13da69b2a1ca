"""Recipes: configuration files that are layered, each the difference from what lies below.

Mappings are merged key by key, so a method, two defenses and an attack suite add up; lists and plain values are
replaced; `null` removes what a layer below has put there. An object (`class_path` with `init_args`) is merged with one
of the same class and replaced by one of another class. A key with a question mark (`net?`) gives way: it counts only
where the layers below have chosen nothing, or an object of the same class.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from app.errors import Problem, UserError, raise_all
from app.federation.submodels.integration import NAMES
from app.reading import load_yaml
from app.renamed import current

FOLDER = Path(__file__).parent / "configs"
DEFAULTS = FOLDER / "default.yaml"
COVERAGE = FOLDER / "coverage.yaml"
COMPARISONS = FOLDER / "comparisons"
SWEEPS = FOLDER / "sweeps"
CODES = {code.lower(): name for name, code in NAMES.items()}
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


def shipped_recipes() -> list[Recipe]:
    """All recipes, by kind and name; comparisons and sweeps are made of recipes, and are none themselves."""
    others = (COMPARISONS, SWEEPS)
    none = (DEFAULTS, COVERAGE)
    paths = sorted(path for path in FOLDER.rglob("*.yaml") if path not in none and path.parent not in others)
    return [Recipe(path.stem, _kind(path), path) for path in paths]


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
    hint = _similar(name, known)
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
    hint = _similar(name, known)
    if name.lower() in {comparison.name for comparison in shipped_comparisons()}:
        hint = f"{name} is a comparison of many runs: `rampart compare --config {name}`; "
    raise UserError.of(
        f"no configuration {name!r}: neither a file nor a recipe",
        "the run would not be the one you asked for",
        f"{hint}`rampart list recipes` shows all recipes",
    )


def _file_or_shipped(path: str, name: str, known: Mapping[str, Path]) -> Path | None:
    return Path(path) if Path(path).is_file() else known.get(name)


def _similar(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name.lower(), known, n=3)
    return f"did you mean {' or '.join(near)}? " if near else ""


Layer = str | Path | Mapping[str, Any]
"""A recipe's name, a configuration file, or a configuration as nested data."""


def layered(layers: Iterable[Layer]) -> dict[str, Any]:
    """The defaults with the layers on top, first to last."""
    config = read_layer(DEFAULTS)
    problems: list[Problem] = []
    for layer in layers:
        try:
            config = merge(config, layer if isinstance(layer, Mapping) else read_layer(find_recipe(str(layer))))
        except UserError as error:
            problems.extend(error.problems)
    raise_all(problems)
    return config


def read_layer(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file."""
    remedy = "correct the file; `rampart fit --print_config` shows the form"
    try:
        content = load_yaml(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError.of(f"cannot read {path}: {' '.join(str(error).split())}", "no run starts", remedy) from error
    if not isinstance(content, Mapping):
        raise UserError.of(f"{path} holds no settings", "no run starts", remedy)
    return current(dict(content))


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


def put(config: dict[str, Any], section: str, keys: list[str], value: Any) -> None:
    """Set one option of a named callback: `--defenses.NAME.OPTION VALUE`, or its class with `--defenses.NAME CLASS`."""
    name, *rest = keys
    entry: dict[str, Any] = {"class_path": value} if not rest else {"init_args": _nested(rest, value)}
    entries = config.get(section) or {}
    if rest and name not in entries:
        raise UserError.of(
            f"--{section}.{'.'.join(keys)}: there is no {name!r} among the {section}",
            "the option would have no effect",
            f"add it with --config or --{section}.{name} CLASS; present: {', '.join(entries) or 'none'}",
        )
    config[section] = merge(entries, {name: entry if value is not None or rest else None})


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
