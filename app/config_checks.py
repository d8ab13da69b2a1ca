"""Mistakes in a parsed configuration that its types let pass: null, groups without options, misplaced callbacks."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from jsonargparse import Namespace

from app.common.errors import Problem
from app.federation.checks.placement import Placed, place_problems, repeat_problems
from app.federation.hooks import FederatedCallback
from app.recipes import read_layer, shipped_recipes
from app.results.run.labels import NO_DEFENSE


def config_problems(config: Namespace, options: Iterable[str]) -> list[Problem]:
    """All of them, each with a remedy.

    Args:
        config: as the parser has it.
        options: options of the parser with dots, such as `model.local.epochs`.
    """
    wrong = [*_group_problems(config, options), *_object_problems(config, "")]
    if not wrong:
        placed = list(placed_callbacks(config))
        wrong = [*place_problems(placed), *repeat_problems(placed), *_name_problems(placed)]
    return wrong


def placed_callbacks(config: Namespace) -> Iterator[Placed]:
    """Federated callbacks of a configuration, in the sections where it has them."""
    for section in ("defenses", "attacks"):
        for name, entry in (config.get(section) or {}).items():
            yield Placed(section, name, class_of(entry.class_path), _plain(entry.get("init_args")))
    further = config.get("trainer.callbacks") or []
    for entry in further if isinstance(further, list) else [further]:
        kind = class_of(entry.class_path) if isinstance(entry, Namespace) else None
        if isinstance(kind, type) and issubclass(kind, FederatedCallback):
            yield Placed("trainer.callbacks", "", kind, _plain(entry.get("init_args")))


def class_of(path: str) -> Any:
    """The class or function behind a dotted path."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def _name_problems(placed: Iterable[Placed]) -> Iterator[Problem]:
    """Names of defenses under which another one, or none, would be reported."""
    recipes = {recipe.name: recipe.path for recipe in shipped_recipes() if recipe.kind == "defense"}
    for defense in (one for one in placed if one.section == "defenses"):
        name = defense.name.replace("_", "-")
        remedy = f"call it something else: --defenses.NAME {defense.kind.__name__}"
        if name == NO_DEFENSE:
            yield Problem(f"a defense is called {NO_DEFENSE}", "the run would count as undefended", remedy)
        elif name in recipes:
            known = {entry["class_path"].rpartition(".")[2] for entry in read_layer(recipes[name])["defenses"].values()}
            if not any(base.__name__ in known for base in defense.kind.__mro__):
                cause = f"--defenses.{defense.name} is {defense.kind.__name__}, not {' or '.join(known)}"
                yield Problem(cause, f"its results would be reported as those of {name}", remedy)


def _group_problems(config: Namespace, options: Iterable[str]) -> Iterator[Problem]:
    """Groups of options that are set to a single value, such as `model.local: 2`."""
    parents = (option.rpartition(".")[0] for option in options if not option.endswith(".help"))
    for group in dict.fromkeys(parent for parent in parents if parent):
        first = next(option for option in options if option.startswith(f"{group}."))
        if not isinstance(value := config.get(group), Namespace):
            yield _no_value(group, value, first)


def _object_problems(value: Any, where: str) -> Iterator[Problem]:
    """Options of objects, at any depth, that are null where a value is due, or a value where options are due."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from _object_problems(item, where)
    if not isinstance(value, Namespace | dict):
        return
    parts = vars(value) if isinstance(value, Namespace) else value
    if isinstance(init_args := parts.get("init_args"), Namespace) and "class_path" in parts:
        kind = class_of(parts["class_path"])
        for name, item in vars(init_args).items():
            yield from _argument_problems(kind, name, item, f"{where}.{name}")
    for key, item in parts.items():
        yield from _object_problems(item, where if key == "init_args" else f"{where}.{key}".lstrip("."))


def _argument_problems(kind: Any, name: str, value: Any, option: str) -> Iterator[Problem]:
    if (parameter := _parameter(kind, name)) is None:
        return
    default = parameter.default
    if is_dataclass(default) and not isinstance(value, Namespace | dict) and not is_dataclass(value):
        yield _no_value(option, value, f"{option}.{fields(default)[0].name}")
    elif value is None and not _takes_null(parameter):
        usual = f"leave it out for {default!r}, or " if default is not parameter.empty else ""
        yield Problem(f"--{option} is null", f"{kind.__name__} needs a value there", f"{usual}give a value")


def _no_value(group: str, value: Any, example: str) -> Problem:
    shown = "null" if value is None else repr(value)
    return Problem(
        f"--{group} is {shown}", "it is a group of options", f"name them, such as --{example}, or leave it out"
    )


def _parameter(kind: Any, name: str) -> inspect.Parameter | None:
    """A parameter of a constructor, its own or of a class it inherits from; None where it cannot be told."""
    for base in inspect.getmro(kind) if inspect.isclass(kind) else (kind,):
        try:
            found = inspect.signature(base).parameters.get(name)
        except (TypeError, ValueError):
            continue
        if found is not None:
            return found
    return None


def _takes_null(parameter: inspect.Parameter) -> bool:
    words = str(parameter.annotation)
    untyped = parameter.annotation is parameter.empty
    return untyped or parameter.default is None or any(word in words for word in ("None", "Optional", "Any"))


def _plain(value: Any) -> Any:
    return value.as_dict() if isinstance(value, Namespace) else value
