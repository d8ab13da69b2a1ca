"""Attacks by name: from a catalogue, or a class of the user's."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from typing import TypeVar

from app.errors import UserError

T = TypeVar("T")


def by_name(given: str | T, catalogue: Mapping[str, type[T]], base: type[T], what: str) -> T:
    """An attack with its usual settings, by name or by the dotted path of a class; attacks are returned as they are.

    Args:
        given: name, path or attack.
        catalogue: attacks by name.
        base: what every such attack derives from.
        what: kind of attack in words.

    Raises:
        UserError: for a name that means nothing.
    """
    if not isinstance(given, str):
        return given
    if given in catalogue:
        return catalogue[given]()
    kind = _class_of(given)
    if not (isinstance(kind, type) and issubclass(kind, base)):
        near = difflib.get_close_matches(given, catalogue, n=2)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise UserError.of(
            f"there is no {what} {given!r}",
            "it cannot be run",
            f"{hint}choose from {', '.join(catalogue)}, or name a class of yours as module.Class",
        )
    return kind()


def _class_of(path: str) -> object:
    module, _, name = path.rpartition(".")
    if not module:
        return None
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None
