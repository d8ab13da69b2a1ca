"""The command line as one configuration and the options that override it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import yaml

import callbacks
from app.errors import UserError
from app.recipes import layered, put
from app.renamed import current_path

SECTIONS = ("defenses", "attacks")


def expand(arguments: Sequence[str]) -> list[str]:
    """Arguments for jsonargparse: all `--config` layers merged into one, then everything else.

    `--config` may be given many times, with a file or the name of a recipe; later ones lie on top, and options on the
    command line on top of all. `--defenses.NAME.OPTION VALUE` reaches into a named defense (likewise attacks).
    """
    layers: list[str] = []
    entries: list[tuple[str, list[str], Any]] = []
    rest: list[str] = []
    for option, value in _pairs(arguments):
        section, *keys = option.removeprefix("--").split(".")
        if option in ("--config", "-c"):
            layers.append(_required(option, value))
        elif option.startswith("--") and section in SECTIONS and keys not in ([], ["help"]):
            entries.append((section, keys, _class_or_value(keys, yaml.safe_load(_required(option, value)))))
        else:
            rest.extend(part for part in (option, value) if part is not None)
    config = layered(layers)
    for section, keys, value in entries:
        put(config, section, keys, value)
    for section in SECTIONS:
        named = config.get(section)
        if isinstance(named, dict):  # a layer may remove what no layer below has added
            config[section] = {name: entry for name, entry in named.items() if entry is not None}
    return ["--config", json.dumps(config), *rest]


def _class_or_value(keys: list[str], value: Any) -> Any:
    """The value of an option; `--defenses.NAME CLASS` may leave out the module of a class that comes with Rampart."""
    if len(keys) == 1 and isinstance(value, str) and value.isidentifier():
        return f"callbacks.{value}" if value in callbacks.__all__ else value
    return current_path(value) if len(keys) == 1 and isinstance(value, str) else value


def _pairs(arguments: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Options with their values, where they have one."""
    position = 0
    while position < len(arguments):
        option, equals, value = arguments[position].partition("=")
        position += 1
        if not option.startswith("-") or not (option.startswith("--") or option == "-c"):
            yield arguments[position - 1], None
        elif equals:
            yield option, value
        elif position < len(arguments) and not arguments[position].startswith("--"):
            yield option, arguments[position]
            position += 1
        else:
            yield option, None


def _required(option: str, value: str | None) -> str:
    if value is None:
        raise UserError.of(f"{option} has no value", "", f"write {option} VALUE")
    return value
