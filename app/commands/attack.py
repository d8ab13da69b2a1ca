"""`rampart attack RUN`: attack a finished run from its transcript, without training it again.

Membership inference and passive reconstructions read the transcript. Attacks of a malicious server need clients that
respond: the last rounds of the run are repeated, with all its defenses, by a server that deviates from the protocol.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from app.auditing import AttackSuite, attack_run
from app.commands.export import TRUST
from app.commands.fit import quieten
from app.configuration import Parser
from app.finished import load_run
from app.results.run.results import replay
from app.results.run.tracking import run_tracker

LISTS = ("--attacks", "--targets", "--rounds")
"""Options whose values may be written without brackets."""


def attack(arguments: Sequence[str]) -> int:
    """Attack a finished run; returns the exit code: 1 where an attack failed."""
    quieten()
    parser = attack_parser()
    options = parser.parse_args(list(with_lists(arguments)))
    run = load_run(options.run, options.trust)
    given = vars(parser.instantiate_classes(options)).items()
    values = {key: value for key, value in given if key not in ("run", "trust")}
    suite = AttackSuite(**values)
    print(f"attacking {run.folder.path}, trained for {len(run.metrics)} rounds", flush=True)
    tracker = run_tracker(run.folder.path, _tracking(run.config, options.trust))
    if tracker is not None:
        tracker.begin(run.config, partial(replay, run.folder))
    audit = attack_run(run, suite, tracker, shown=True)
    if tracker is not None:
        tracker.finalize("success")
    place = run.folder.path / "attacks"
    print(f"\n{audit.table()}\n\nresults are in {place}: numbers, scores, images, tables and figures")
    if audit.failed:
        print(f"error: {len(audit.failed)} attacks failed: {', '.join(audit.failed)}", file=sys.stderr)
    return 1 if audit.failed else 0


def attack_parser() -> Parser:
    """The options of the command: those of the attacks of any kind."""
    usage = "rampart attack RUN [--attacks NAME,NAME ...] [--OPTION VALUE ...]"
    parser = Parser(prog="rampart attack", description=str(__doc__), usage=usage, allow_abbrev=False)
    parser.add_argument("run", type=str, help="folder of a finished run, such as runs/demo")
    parser.add_argument("--trust", action="store_true", help=TRUST)
    parser.add_class_arguments(AttackSuite, None)
    return parser


def _tracking(config: Mapping[str, Any], trust: bool) -> Mapping[str, Any]:
    """A run's configuration; without trust, the folder does not decide where results are uploaded."""
    if trust or config.get("tracking") != "online":
        return config
    print("tracked offline: with --trust, results are uploaded to where the run's configuration says")
    return {**config, "tracking": "offline"}


def with_lists(arguments: Sequence[str]) -> Iterator[str]:
    """The arguments with `--attacks yeom,shokri` and the like in the form of lists."""
    before = ""
    for argument in arguments:
        option, equals, value = argument.partition("=")
        if option in LISTS and equals:
            yield f"{option}={_as_list(value)}"
        else:
            yield _as_list(argument) if before in LISTS else argument
        before = argument


def _as_list(value: str) -> str:
    return value if value.startswith(("[", "{", "-")) else f"[{value}]"
