"""The command line: `rampart fit | attack | compare | report | plan | cost | list`."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.errors import UserError


@dataclass(frozen=True)
class Command:
    """A command: what it does in one line, and how to load it (heavy imports wait until it is called)."""

    purpose: str
    load: Callable[[], Callable[[Sequence[str]], int]]


def _fit() -> Callable[[Sequence[str]], int]:
    from app.commands.fit import fit

    return fit


def _plan() -> Callable[[Sequence[str]], int]:
    from app.commands.plan import plan

    return plan


def _attack() -> Callable[[Sequence[str]], int]:
    from app.commands.attack import attack

    return attack


def _cost() -> Callable[[Sequence[str]], int]:
    from app.commands.cost import cost

    return cost


def _report() -> Callable[[Sequence[str]], int]:
    from app.commands.report import report

    return report


def _compare() -> Callable[[Sequence[str]], int]:
    from app.commands.compare import compare

    return compare


def _list() -> Callable[[Sequence[str]], int]:
    from app.commands.listing import list_choices

    return list_choices


PIPE_CLOSED = 141
"""Exit code of a program that SIGPIPE ends, as shells count it."""

COMMANDS = {
    "fit": Command("train a federation; without a recipe, on the embedded digits (fit --help shows all options)", _fit),
    "attack": Command("attack a finished run from its transcript, without training it again", _attack),
    "report": Command("make tables, pictures and one HTML page of finished runs", _report),
    "compare": Command("run a matrix of methods, defenses, datasets and seeds, and tabulate what came out", _compare),
    "plan": Command("show who trains which weights, before any training", _plan),
    "cost": Command("estimate what encryption and masks would take per round, before any training", _cost),
    "list": Command("show methods, defenses, attacks, datasets, models and recipes", _list),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit with its code: 0 done, 1 not all done, 2 a mistake in what was asked, 130 interrupted."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    lines = "\n".join(f"  {name:<9} {command.purpose}" for name, command in COMMANDS.items())
    parser = ArgumentParser(
        prog="rampart",
        description=f"{__doc__}\n\ncommands:\n{lines}",
        formatter_class=RawDescriptionHelpFormatter,
        usage="rampart COMMAND [options]",
    )
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="one of the commands above")
    chosen = parser.parse_args(given[:1]).command
    run = COMMANDS[chosen].load()
    # configurations may name the user's own classes; only now, so that ours come first
    sys.path.append(str(Path.cwd()))
    try:
        code = run(given[1:])
    except UserError as error:
        print("\n".join(f"error: {problem}" for problem in error.problems), file=sys.stderr)
        code = 2
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:  # whoever read our output, such as `head`, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = PIPE_CLOSED
    raise SystemExit(code)


if __name__ == "__main__":
    main()
