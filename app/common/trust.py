"""Configurations that strangers may have written: without the user's trust, they name classes of this program only.

Reading a configuration imports the classes that it names and calls them, so that its author chooses which code runs.
The check is on plain data, before anything is imported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType
from typing import Any

import yaml

from app.common.errors import Problem, raise_all
from app.common.reading import OversizedError, load_yaml

PACKAGES = ("app.attacks", "app.federation", "app.models", "callbacks", "datamodules", "torch.optim")
"""Packages whose classes may be named."""

FURTHER = ("lightning.pytorch.callbacks.EarlyStopping", "lightning.pytorch.callbacks.Timer")
"""Further classes that may be named."""

NETWORKS = "app.models."
"""Modules whose functions may be named, too: they make networks and do nothing else."""

CLASSES = ("class_path", "callbacks", "plugins", "logger")
"""Settings whose texts are class names and nothing else."""

NAMES = ("entity", "group", "personal", "project")
"""Settings whose texts are neither class names nor files with settings, though they may look like them."""

DATA = ("root", "source", "table")
"""Settings whose texts may name files: the data."""


def refuse_foreign(config: Any, origin: object) -> None:
    """Refuse a configuration (plain data) that could run code which does not come with this program.

    Args:
        config: as it was read, with the class paths of today.
        origin: where it comes from, for the error message.

    Raises:
        UserError: with every class path, file and setting that could.
    """
    remedy = "if you know who made it, repeat with --trust (in Python: trust=True)"
    consequence = "code of its author would run on this machine"
    raise_all(Problem(f"{origin} {cause}", consequence, remedy) for cause in dict.fromkeys(_foreign(config, "")))


def _foreign(value: Any, setting: str) -> Iterator[str]:
    """What could run foreign code, in words; `setting` is the last name on the way to the value."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _foreign(item, str(name).rpartition(".")[2].rstrip("?+"))
    elif isinstance(value, (list, tuple, set)):
        for item in value:
            yield from _foreign(item, setting)
    elif isinstance(value, str):
        yield from _foreign_text(value, setting)
    elif setting == "verify" and value is not True:
        yield "switches the check of the data's files off (verify), which are pickles"


def _foreign_text(text: str, setting: str) -> Iterator[str]:
    """As `_foreign`; the parser reads texts as YAML, as names of files with settings, or as class paths."""
    try:
        plain = load_yaml(text)
    except OversizedError as error:
        yield f"holds a text in which {error}"
        return
    except yaml.YAMLError:
        plain = text
    if plain != text:
        yield from _foreign(plain, setting)
    elif setting in CLASSES:
        if not _shipped(text):
            yield f"names {text}, which does not come with this program"
    elif setting not in NAMES:
        if _importable(text) and not _shipped(text):
            yield f"names {text}, which does not come with this program"
        elif setting not in DATA and _is_file(text):
            yield f"names the file {text}, whose settings would count too"


def _shipped(path: str) -> bool:
    """Whether a path names a class of this program, an object of one, such as a default, or a function of a network."""
    module, _, name = path.rpartition(".")
    if path in FURTHER or not _inside(module):
        return path in FURTHER
    try:
        named = getattr(import_module(module), name, None)
    except ImportError:
        return False
    if isinstance(named, FunctionType):
        return named.__module__.startswith(NETWORKS)
    return _inside((named if isinstance(named, type) else type(named)).__module__)


def _inside(module: str) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in PACKAGES)


def _importable(path: str) -> bool:
    """Whether a text is a dotted path into a module that is there; looking for it runs nothing of it."""
    first, *rest = path.split(".")
    if not rest or not all(part.isidentifier() for part in (first, *rest)):
        return False
    try:
        return find_spec(first) is not None
    except ValueError:  # a module without a record of where it comes from, such as __main__
        return True


def _is_file(text: str) -> bool:
    try:
        return Path(text).expanduser().is_file()
    except (OSError, ValueError, RuntimeError):  # too long, with a zero byte, or of an unknown user
        return False
