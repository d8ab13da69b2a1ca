"""Types of numbers with a range: declared in signatures, shown by `--help`, checked wherever an object is used.

A constructor says `epochs: Count`. The command line then refuses 0 while it parses, and `range_problems` refuses it
where the object was made in Python. Values stay plain `int` and `float`.
"""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from functools import cache, partial
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal, Self, Union, get_args, get_origin

from jsonargparse.typing import register_type

from app.common.described import Described, arguments
from app.common.errors import Problem, UserError, raise_all

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
    def read(cls, value: Any) -> Any:
        """A number as a command line or a file gives it, which may be text.

        Raises:
            ValueError: where it is outside the range, or no number.
        """
        try:
            number = cls.base(value) if isinstance(value, str) else value
        except ValueError:
            raise ValueError(f"{value} is out of range") from None
        return cls.checked(number)

    @classmethod
    def checked(cls, value: Any) -> Any:
        """The value as a plain number; numbers of NumPy are taken, too, and whole ones where any number is.

        Raises:
            ValueError: where it is outside the range, or no number.
        """
        numbers = Integral if cls.base is int else Real
        sound = isinstance(value, numbers) and not isinstance(value, bool) and not _huge(value)
        if not sound or (_CHECKED.get() and not cls.holds(cls.base(value))):
            raise ValueError(f"{value} is out of range")
        return cls.base(value)


def _huge(value: Any) -> bool:
    """Whether a whole number is larger than floating-point numbers can be."""
    return isinstance(value, int) and abs(value) >= 2**1023


def _number(base: type, text: str, holds: Callable[[Any], bool]) -> Any:
    """A type whose name, which `--help` shows, is the range in words."""
    kind = type(f"{base.__name__} {text}", (Ranged, base), {"base": base, "holds": staticmethod(holds)})
    register_type(kind, serializer=lambda value: value, deserializer=kind.read, type_check=lambda value, _: False)  # type: ignore[attr-defined]
    return kind


if TYPE_CHECKING:
    Count = int
    Several = int
    AtLeastFour = int
    AtLeastTen = int
    Whole = int
    Bits = int
    Seed = int
    Positive = float
    NonNegative = float
    Fraction = float
    Share = float
    Decay = float
    Inside = float
    Majority = float
    Multiple = float
    Bound = float
    Finite = float
    ServerRate = float
else:
    Count = _number(int, ">= 1", lambda value: 1 <= value <= LARGEST)
    Several = _number(int, ">= 2", lambda value: 2 <= value <= LARGEST)
    AtLeastFour = _number(int, ">= 4", lambda value: 4 <= value <= LARGEST)
    AtLeastTen = _number(int, ">= 10", lambda value: 10 <= value <= LARGEST)
    Whole = _number(int, ">= 0", lambda value: 0 <= value <= LARGEST)
    Bits = _number(int, "in [8, 32]", lambda value: 8 <= value <= 32)
    Seed = _number(int, "in [0, 2^32 - 1]", lambda value: 0 <= value < 2**32)
    Positive = _number(float, "> 0", lambda value: 0 < value < math.inf)
    NonNegative = _number(float, ">= 0", lambda value: 0 <= value < math.inf)
    Fraction = _number(float, "in [0, 1]", lambda value: 0 <= value <= 1)
    Share = _number(float, "in (0, 1]", lambda value: 0 < value <= 1)
    Decay = _number(float, "in [0, 1)", lambda value: 0 <= value < 1)
    Inside = _number(float, "in (0, 1)", lambda value: 0 < value < 1)
    Majority = _number(float, "in (0.5, 1]", lambda value: 0.5 < value <= 1)
    Multiple = _number(float, ">= 1", lambda value: 1 <= value < math.inf)
    Bound = _number(float, "> 0, inf for none", lambda value: value > 0)
    Finite = _number(float, "that is finite", math.isfinite)
    ServerRate = _number(float, "in (0, 10]", lambda value: 0 < value <= 10)


def fits(kind: Any, value: Any) -> bool:
    """Whether a value is a number in the range of a type."""
    try:
        kind.checked(value)
    except ValueError:
        return False
    return True


def ranged_option(name: str, kind: Any) -> Callable[[str], Any]:
    """Reads an option of a command that has a plain argument parser, such as `--jobs`."""

    def read(text: str) -> Any:
        try:
            return kind.read(text)
        except ValueError:
            remedy = f"set {name} in that range"
            raise UserError.of(f"{name} is {text!r}", f"it must be {kind.__name__}", remedy) from None

    return read


def range_problems(value: Any, option: str = "") -> Iterator[Problem]:
    """Problems of numbers outside the ranges that constructors declare.

    Args:
        value: an object; those that it was made from are looked at, too.
        option: how the object is set on the command line, such as `model.local`; empty where it is made in Python only.
    """
    if value is None or isinstance(value, (str, int, float)):  # made from nothing
        return
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from range_problems(item, option)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from range_problems(item, option and f"{option}.{name}")
    else:
        kind: Any = _maker(value) if isinstance(value, partial) else type(value)
        declared = declared_types(kind)
        for name, given in _given(value).items():
            if text := _allowed_instead(declared.get(name), given):
                path = f"{option}.{name}" if option else name
                cause = f"--{path} is {given}" if option else f"{name} of {_title(kind)} is {given}"
                yield Problem(cause, f"it must be {text}", f"set {'--' if option else ''}{path} in that range")
            else:
                yield from range_problems(given, option and f"{option}.{name}")


class Checked(Described):
    """Base of described objects whose numbers are checked when they are made."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        made = super().__new__(cls, *args, **kwargs)
        if args or kwargs:  # copies are made without any, and get their state afterwards
            raise_all(range_problems(made))
        return made


def _title(kind: Any) -> str:
    name = getattr(kind, "name", None)
    return name if isinstance(name, str) else str(kind.__name__)


def _maker(factory: partial[Any]) -> Any:
    """The class or function that a factory calls; jsonargparse passes the class to a function of its own."""
    return next((argument for argument in factory.args if isinstance(argument, type)), factory.func)


def _given(value: Any) -> dict[str, Any]:
    """The arguments that an object was made from; none for objects that do not keep them."""
    if isinstance(value, Described):
        return arguments(value)
    if isinstance(value, partial):
        return dict(value.keywords)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value) if field.init}
    return {}


@cache
def declared_types(kind: Any) -> dict[str, Any]:
    """The types that the constructors of a class and of its base classes declare, by the name of the argument."""
    makers = [vars(base).get("__init__") for base in reversed(kind.__mro__)] if isinstance(kind, type) else [kind]
    hints: dict[str, Any] = {}
    for maker in makers:
        if inspect.isfunction(maker):
            hints |= _hints(maker)
    return hints


def _hints(maker: Any) -> dict[str, Any]:
    """Types that a function declares, except those that its module imports for type checkers only."""
    hints = {}
    for name, text in inspect.get_annotations(maker).items():
        try:
            hints[name] = eval(text, maker.__globals__) if isinstance(text, str) else text  # noqa: S307  code of the class
        except NameError:
            continue
    return hints


def _allowed_instead(hint: Any, value: Any) -> str | None:
    """What is allowed instead of a value, empty where the type declares no range; None where the value is allowed."""
    if isinstance(hint, type) and issubclass(hint, Ranged):
        return None if fits(hint, value) else hint.__name__
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        texts = [_allowed_instead(kind, value) for kind in parts]
        return None if None in texts else " or ".join(dict.fromkeys(text for text in texts if text))
    if origin in (list, tuple, Sequence, dict, Mapping):
        return _items_allowed_instead(origin, parts, value)
    if origin is Literal:
        return None if value in parts else ""
    return None if not isinstance(hint, type) or _is_a(value, hint) else ""


def _items_allowed_instead(origin: Any, parts: tuple[Any, ...], value: Any) -> str | None:
    """What is allowed instead of a list, tuple or mapping, or of one of its items."""
    mapping = origin in (dict, Mapping)
    if not isinstance(value, Mapping if mapping else Iterable) or isinstance(value, str):
        text = _allowed_instead(parts[-1] if mapping else parts[0], None)
        return f"a {'mapping to' if mapping else 'list of'} {text}" if text else ""
    items: list[Any] = list(dict(value).values() if mapping else value)
    if mapping or origin is not tuple or parts[-1] is Ellipsis:
        parts = (parts[1 if mapping else 0],) * len(items)
    return next(
        (text for kind, item in zip(parts, items, strict=False) if (text := _allowed_instead(kind, item))), None
    )


def _is_a(value: Any, kind: type) -> bool:
    """Whether a value is of a type without a range; whole numbers are numbers of any kind."""
    try:
        return isinstance(value, kind) or (kind is float and isinstance(value, int))
    except TypeError:  # a protocol that does not say how to recognise what keeps to it
        return True
