"""Attacks by name: from a catalogue, or a class of the user's."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from typing import TypeVar

from app.common.errors import UserError

T = TypeVar("T")


def by_name(attack: str | T, catalogue: Mapping[str, type[T]], base: type[T], kind: str) -> T:
    """An attack with its default settings, by name or by the dotted path of a class; attacks are returned as they are.

    Every such attack derives from the base class; `kind` names it in the error message for an unknown name.
    """
    if not isinstance(attack, str):
        return attack
    if attack in catalogue:
        return catalogue[attack]()
    named = _imported(attack)
    if not (isinstance(named, type) and issubclass(named, base)):
        near = difflib.get_close_matches(attack, catalogue, n=2)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise UserError.of(
            f"there is no {kind} {attack!r}",
            "it cannot be run",
            f"{hint}choose from {', '.join(catalogue)}, or name a class of yours as module.Class",
        )
    return named()


def _imported(path: str) -> object:
    module, _, name = path.rpartition(".")
    if not module:
        return None
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None
