"""Errors of the parser in words that name the option, the class and what to write instead."""

from __future__ import annotations

import importlib
import re
from argparse import ArgumentError
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from jsonargparse import ArgumentParser

from app.common.errors import Problem, UserError
from app.common.wording import near

REFUSED = r"Option '([^']+)' is not accepted"
UNKNOWN = (
    re.compile(rf"class_path '(?P<path>[\w.]+)':\s+{REFUSED}"),
    re.compile(rf"{REFUSED}\. Got value: Namespace\(class_path='(?P<path>[\w.]+)'"),
    re.compile(r"Group '(?P<group>[\w.]+)' does not accept option '([^']+)'"),
    re.compile(rf"^{REFUSED}"),
)
"""How jsonargparse says that a class, a group of options or the whole configuration lacks an option."""


class OutOfRangeError(UserError):
    """A number outside its range."""


def unknown_option(message: str, options: Iterable[str]) -> Problem | None:
    """The problem of an option that does not exist, from the parser's message; None for other messages.

    Args:
        message: of the parser.
        options: all options of the parser with dots, such as `model.local.epochs`.
    """
    found = next((match for pattern in UNKNOWN if (match := pattern.search(message))), None)
    if found is None:
        return None
    parts = found.groupdict()
    option = next(group for group in found.groups() if group not in parts.values())
    if "path" in parts:
        own = options_of(parts["path"])
        listed = f"its options are {', '.join(own)}; " if own else "it has no options; "
        return Problem(f"{parts['path'].rpartition('.')[2]} has no option {option}", "", near(option, own) + listed)
    whole = f"{parts['group']}.{option}" if "group" in parts else option
    return Problem(f"there is no option {whole}", "", near(whole, options))


def options_of(path: str) -> list[str]:
    """Options of a class by its dotted path; empty where it cannot be told."""
    module, _, name = path.rpartition(".")
    parser = ArgumentParser(exit_on_error=False)
    try:
        parser.add_class_arguments(getattr(importlib.import_module(module), name), fail_untyped=False)
    except (ImportError, AttributeError, ValueError, TypeError):
        return []
    names = (action.dest for action in parser._actions if action.dest != "help" and "." not in action.dest)
    return [name for name in dict.fromkeys(names) if name != "shape"]  # which networks get from the data


def range_problem(message: str) -> Problem | None:
    """The problem of a number outside its range, from the parser's message; None where that is about something else."""
    before, found, after = message.partition("Not of type ")
    if not found:
        return None
    option = ""
    for key in re.findall(r'Parser key "([\w.-]+)"', before):
        option = key if key.startswith(option) else f"{option}.{key}"
    given = re.search(r": (\S+) is out of range", after) or re.search(r"Given value: (.*)", after)
    value = f"is {given[1]}" if given else "cannot be read"
    ranges = " or ".join(dict.fromkeys(re.findall(r"Not of type ([^:]+):", message)))
    return Problem(f"--{option} {value}", f"it must be {ranges}", f"set --{option} in that range")


@contextmanager
def user_errors(cause: str) -> Iterator[None]:
    """Errors of libraries as errors of what the user asked for; the original error is their `__cause__`."""
    try:
        yield
    except (UserError, ArgumentError):
        raise
    except Exception as error:
        deep = isinstance(error, RecursionError)
        reason = "a value is nested too deeply, or holds itself" if deep else f"{type(error).__name__}: {error}"
        remedy = "correct the values; `rampart fit --help` explains every option, RAMPART_DEBUG=1 shows the place"
        raise UserError.of(f"{cause}: {reason}", "no run starts", remedy) from error
