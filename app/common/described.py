"""Objects that remember how they were made, so that an equal one can be made and a configuration be written."""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Self


class Described:
    """Base class of objects that configurations name by class path: keeps the arguments of the constructor."""

    _given: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        made = super().__new__(cls)
        # copied, so that later changes of an argument do not count
        object.__setattr__(made, "_given", copy.deepcopy((args, kwargs)))
        return made

    def fresh(self) -> Self:
        """A new object from the same arguments, without anything that has happened to this one."""
        args, kwargs = copy.deepcopy(self._given)
        return type(self)(*args, **kwargs)


def described(value: Any) -> Any:
    """A value as plain data for a configuration: objects as `class_path` with all `init_args`, settings as mappings."""
    if isinstance(value, Described):
        return {"class_path": _path(type(value)), "init_args": described(arguments(value))}
    if isinstance(value, partial):
        return {"class_path": _path(value.func), "init_args": described(value.keywords)}
    if isinstance(value, Mapping):
        return {str(key): described(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [described(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        settings = {field.name: described(getattr(value, field.name)) for field in fields(value) if field.init}
        plain = type(value).__mro__[1] is object  # a dataclass of its own, not one of several that fit in its place
        return settings if plain else {"class_path": _path(type(value)), "init_args": settings}
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if inspect.isroutine(value):
        return _path(value)
    return str(value) if isinstance(value, Path) else {"class_path": _path(value)}


def arguments(value: Described) -> dict[str, Any]:
    """Arguments of an object's constructor by name, those included that were left to their defaults."""
    args, kwargs = value._given
    bound = _signature(type(value).__init__).bind(None, *args, **kwargs)
    bound.apply_defaults()
    named = dict(list(bound.arguments.items())[1:])
    for name, parameter in bound.signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            named |= named.pop(name)
        elif parameter.kind is parameter.VAR_POSITIONAL:  # of classes without a constructor of their own
            del named[name]
    return named


@cache
def _signature(constructor: Any) -> inspect.Signature:
    return inspect.signature(constructor)


def _path(value: Any) -> str:
    """Dotted path of a class or function, from the outermost package that exports it."""
    kind = value if hasattr(value, "__qualname__") else type(value)
    name, parts = kind.__qualname__, str(kind.__module__).split(".")
    packages = [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
    exporting = [one for one in packages if getattr(sys.modules.get(one), name, None) is kind]
    return f"{exporting[0] if exporting else packages[-1]}.{name}"
