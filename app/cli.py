"""The command line: `rampart COMMAND`, where each command is a module of `app.commands`."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from argparse import RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from app.commands.parser import CommandParser
from app.common.errors import UserError
from app.common.leaving import leave
from app.common.signals import hangup_terminates

DISTRIBUTION = "rampart-fl"
"""Name under which the program is installed."""

DEBUG = "RAMPART_DEBUG"
"""Variable that, if set, shows where in the program an error was found."""

PIPE_CLOSED = 141
"""Exit code of a program that SIGPIPE ends, as shells count it."""


@dataclass(frozen=True)
class Command:
    """A command.

    Attributes:
        module: of `app.commands` that holds it; imported when the command is called, since that takes seconds.
        function: takes the arguments, returns the exit code.
        purpose: one line of help.
        parser: function of `app.commands.options` that makes its parser; empty where options follow from classes.
    """

    module: str
    function: str
    purpose: str
    parser: str = ""

    def check(self, arguments: Sequence[str]) -> None:
        """Print the help where it is asked for, and refuse wrong options, before anything heavy is loaded."""
        if self.parser:
            options = importlib.import_module("app.commands.options")
            getattr(options, self.parser)().parse_args(list(arguments))

    def load(self) -> Callable[[Sequence[str]], int]:
        """The function itself."""
        function: Callable[[Sequence[str]], int] = getattr(
            importlib.import_module(f"app.commands.{self.module}"), self.function
        )
        return function


COMMANDS = {
    "fit": Command(
        "fit", "fit", "train a federation; without a recipe, on the embedded digits (fit --help shows all options)"
    ),
    "attack": Command("attack", "attack", "attack a finished run from its transcript, without training it again"),
    "report": Command(
        "report", "report", "write tables, figures and one HTML page about finished runs", "report_parser"
    ),
    "compare": Command(
        *("compare", "compare", "run a matrix of methods, defenses, datasets and seeds, and compare them"),
        "compare_parser",
    ),
    "export": Command(
        "export", "export", "save the model of a finished run as .pt, .safetensors or .onnx", "export_parser"
    ),
    "validate": Command("validate", "validate", "evaluate the model of a finished run again", "validate_parser"),
    "predict": Command("predict", "predict", "classify image files with the model of a finished run", "predict_parser"),
    "plan": Command("plan", "plan", "show who trains which weights, before any training"),
    "cost": Command("cost", "cost", "estimate what encryption and masks would take per round, before any training"),
    "list": Command(
        "listing", "list_choices", "show methods, defenses, attacks, datasets, models and recipes", "list_parser"
    ),
    "completion": Command(
        *("completion", "completion", "print a script for the shell that completes commands and options"),
        "completion_parser",
    ),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit with its code: 0 done, 1 partly failed, 2 a mistake in the arguments, 130 interrupted."""
    try:
        name, *options = _parsed(list(sys.argv[1:] if arguments is None else arguments))
        COMMANDS[name].check(options)
        run = COMMANDS[name].load()
        # configurations may name the user's own classes; only now, so that ours come first
        sys.path.append(str(Path.cwd()))
        with hangup_terminates():
            code = run(options)
    except UserError as error:
        if os.environ.get(DEBUG):
            traceback.print_exception(error)
        print("\n".join(f"error: {problem}" for problem in error.problems), file=sys.stderr)
        code = 2
    except (MemoryError, RuntimeError) as error:
        if (message := _out_of_memory(error)) is None:
            raise
        print(message, file=sys.stderr)
        code = 1
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:  # the reader of our output, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = PIPE_CLOSED
    if arguments is None:
        leave(code)
    raise SystemExit(code)  # the calling program goes on


def _parsed(arguments: list[str]) -> list[str]:
    """The arguments, the first of which is a command; exits where it is an option, or no command."""
    lines = "\n".join(f"  {name:<10} {command.purpose}" for name, command in COMMANDS.items())
    parser = CommandParser(
        prog="rampart",
        description=f"{__doc__}\n\ncommands:\n{lines}",
        formatter_class=RawDescriptionHelpFormatter,
        usage="rampart COMMAND [options]",
    )
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="one of the commands above")
    parser.add_argument("--version", action="version", version=f"rampart {_version()}")
    parser.parse_args(arguments[:1])
    return arguments


def _out_of_memory(error: MemoryError | RuntimeError) -> str | None:
    """What is said where memory was not enough; None for other errors."""
    from app.common.memory import out_of_memory  # which imports torch

    problem = out_of_memory(error)
    return None if problem is None else f"error: {problem}"


def _version() -> str:
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:  # run from a checkout
        from app import __version__

        return __version__


if __name__ == "__main__":
    main()
