"""Types of numbers with a range: declared in signatures, shown by `--help`, checked wherever an object is used.

A constructor says `epochs: Count`. The command line then refuses 0 while it parses, and `range_problems` refuses it
where the object was made in Python. Values stay plain `int` and `float`.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin, get_type_hints

from jsonargparse.typing import register_type

from app.described import Described, arguments
from app.errors import Problem

LARGEST = 2**31 - 1
"""The largest count, which no run comes near."""


_CHECKED: ContextVar[bool] = ContextVar("_CHECKED", default=True)


@contextmanager
def unchecked() -> Iterator[None]:
    """Numbers outside their ranges are let pass, so that `range_problems` can name all of them."""
    token = _CHECKED.set(False)
    try:
        yield
    finally:
        _CHECKED.reset(token)


class Ranged:
    """Base of the types of numbers with a range."""

    base: type
    holds: Callable[[Any], bool]

    @classmethod
    def checked(cls, value: Any) -> Any:
        """The value as a plain number.

        Raises:
            ValueError: where it is outside the range, or no number.
        """
        try:
            number: Any = cls.base(value) if isinstance(value, str) else value
        except ValueError:
            number = None
        if cls.base is float and type(number) is int and abs(number) < 2**1023:
            number = float(number)
        if type(number) is not cls.base or (_CHECKED.get() and not cls.holds(number)):
            raise ValueError(f"{value} is out of range")
        return number


def _number(base: type, text: str, holds: Callable[[Any], bool]) -> Any:
    """A type whose name, which `--help` shows, is the range in words."""
    kind = type(f"{base.__name__} {text}", (Ranged, base), {"base": base, "holds": staticmethod(holds)})
    register_type(kind, serializer=lambda value: value, deserializer=kind.checked, type_check=lambda value, _: False)  # type: ignore[attr-defined]
    return kind


if TYPE_CHECKING:
    Count = int
    Several = int
    Whole = int
    Seed = int
    Positive = float
    NonNegative = float
    Fraction = float
    Share = float
    Decay = float
    Inside = float
    ServerRate = float
else:
    Count = _number(int, ">= 1", lambda value: 1 <= value <= LARGEST)
    Several = _number(int, ">= 2", lambda value: 2 <= value <= LARGEST)
    Whole = _number(int, ">= 0", lambda value: 0 <= value <= LARGEST)
    Seed = _number(int, "in [0, 2^32 - 1]", lambda value: 0 <= value < 2**32)
    Positive = _number(float, "> 0", lambda value: 0 < value < math.inf)
    NonNegative = _number(float, ">= 0", lambda value: 0 <= value < math.inf)
    Fraction = _number(float, "in [0, 1]", lambda value: 0 <= value <= 1)
    Share = _number(float, "in (0, 1]", lambda value: 0 < value <= 1)
    Decay = _number(float, "in [0, 1)", lambda value: 0 <= value < 1)
    Inside = _number(float, "in (0, 1)", lambda value: 0 < value < 1)
    ServerRate = _number(float, "in (0, 10]", lambda value: 0 < value <= 10)


def range_problems(value: Any, option: str) -> Iterator[Problem]:
    """Problems of numbers outside the ranges that constructors declare.

    Args:
        value: an object; those that it was made from are looked at, too.
        option: how the object is set on the command line, such as `model.local`.
    """
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from range_problems(item, option)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from range_problems(item, f"{option}.{name}")
    else:
        declared = _declared(value)
        for name, given in _given(value).items():
            if (text := _violated(declared.get(name), given)) is not None:
                cause = f"--{option}.{name} is {given}"
                yield Problem(cause, f"it must be {text}", f"set --{option}.{name} in that range")
            else:
                yield from range_problems(given, f"{option}.{name}")


def _given(value: Any) -> dict[str, Any]:
    """The arguments that an object was made from; none for objects that do not keep them."""
    if isinstance(value, Described):
        return arguments(value)
    if isinstance(value, partial):
        return dict(value.keywords)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value) if field.init}
    return {}


def _declared(value: Any) -> dict[str, Any]:
    """The types that the constructors of a class and of its base classes declare, by the name of the argument."""
    kind = value.func if isinstance(value, partial) else type(value)
    hints: dict[str, Any] = {}
    for base in reversed(kind.__mro__ if isinstance(kind, type) else (kind,)):
        try:
            hints |= get_type_hints(vars(base).get("__init__", base) if isinstance(base, type) else base)
        except (NameError, TypeError):  # of a class that names types it does not import
            continue
    return hints


def _violated(hint: Any, value: Any) -> str | None:
    """The range that a value is outside of, or None."""
    if isinstance(hint, type) and issubclass(hint, Ranged):
        try:
            hint.checked(value)
        except ValueError:
            return hint.__name__
        return None
    if get_origin(hint) in (Union, types.UnionType):
        return _violated_union(get_args(hint), value)
    if get_origin(hint) in (list, tuple) and isinstance(value, (list, tuple)):
        parts = get_args(hint)
        kinds = parts[:1] * len(value) if get_origin(hint) is list or parts[-1] is Ellipsis else parts
        return next((text for kind, item in zip(kinds, value, strict=False) if (text := _violated(kind, item))), None)
    return None


def _violated_union(kinds: tuple[Any, ...], value: Any) -> str | None:
    """The range that a value of one of several types is outside of, or None where one of them takes it."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if value is None or (number and any(kind in (int, float) for kind in kinds)):
        return None
    ranged = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Ranged)]
    if number and ranged:
        violated = [_violated(kind, value) for kind in ranged]
        return None if None in violated else " or ".join(text for text in violated if text)
    return next((text for kind in kinds if (text := _violated(kind, value))), None)
