"""Files of results: names that fit every system, several files replaced together, dataclasses back from JSON."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from app.errors import UserError
from app.metrics.membership import NotAvailable

UNSAFE = re.compile(r'[/\\:*?"<>|\x00-\x1f]|^\.|^$')
"""What makes a name unfit for a file on some system, or hides the file."""


LONGEST = 100
"""Letters of a name that every system can hold, endings included."""


def fits_file(label: str) -> bool:
    """Whether a result of that name can be kept in a file."""
    return not UNSAFE.search(label) and len(label) <= LONGEST


def result_path(folder: Path, label: str, kind: str) -> Path:
    """File of a result, `<label>.<kind>`.

    Raises:
        UserError: where the label is unfit for a file name.
    """
    if not fits_file(label):
        raise UserError.of(
            f"a result is called {label!r}",
            "no file can have that name in every system, and it could land in another folder",
            "give attacks, targets and protocols short names without slashes, special signs and a dot in front",
        )
    return folder / f"{label}.{kind}"


def unchanged(value: Any) -> Any:
    """The value itself."""
    return value


def restored(kind: Any, value: Any, mend: Callable[[Any], Any] = unchanged) -> Any:
    """A value of the declared type from plain data; the way back from `asdict`, with null for numbers without a value.

    Fields that have a default may be absent: they are younger than the file.

    Args:
        kind: a dataclass, a tuple or dict of declared types, a union with NotAvailable or None, or a plain type.
        value: what JSON holds.
        mend: applied to every dataclass that was restored, where JSON cannot hold all of its values.
    """
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        known = {name: restored(hint, value[name], mend) for name, hint in hints.items() if name in value}
        return mend(kind(**known))  # type: ignore[operator]
    options = get_args(kind)
    if get_origin(kind) is tuple:
        kinds = options[:1] * len(value) if options[-1] is Ellipsis else options
        return tuple(restored(option, item, mend) for option, item in zip(kinds, value, strict=False))
    if get_origin(kind) is dict:
        return {key: restored(options[1], item, mend) for key, item in value.items()}
    if isinstance(kind, UnionType):
        other = next(option for option in options if option is not NotAvailable)
        return None if value is None else restored(NotAvailable if set(value) == {"reason"} else other, value, mend)
    return float("nan" if value is None else value) if kind is float else value


def unreadable(path: Path, error: Exception) -> UserError:
    """What to tell when a result's file cannot be read."""
    return UserError.of(
        f"{path} cannot be read: {type(error).__name__}: {error}",
        "the results of this run cannot be shown together",
        "delete that file, then repeat the attack",
    )
