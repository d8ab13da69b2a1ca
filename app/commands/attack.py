"""`rampart attack RUN`: attack a finished run from its transcript, without training it again.

Membership inference and passive reconstructions read the transcript. Attacks of a malicious server need clients that
respond: the last rounds of the run are repeated, with all its defenses, by a server that deviates from the protocol.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from jsonargparse import Namespace

from app.auditing import AttackSuite, Audit, attack_run
from app.commands.fit import quieten
from app.commands.options import TRUST
from app.common.signals import termination_interrupts
from app.common.wording import counted
from app.configuration import Parser
from app.finished import FinishedRun, load_run
from app.results.run.attempts import Attempt, end_attempt
from app.results.run.results import replay
from app.results.run.tracking import run_tracker

INTERRUPTED = 130

LISTS = ("--attacks", "--targets", "--rounds")
"""Options whose values may be written without brackets."""


def attack(arguments: Sequence[str]) -> int:
    """Attack a finished run; returns the exit code: 1 where an attack failed, 130 where it was interrupted."""
    quieten()
    parser = attack_parser()
    options = parser.parse_args(list(with_lists(arguments)))
    run = load_run(options.run, options.trust)
    given = vars(parser.instantiate_classes(options)).items()
    values = {key: value for key, value in given if key not in ("run", "trust")}
    suite = AttackSuite(**values)
    try:
        with run.folder.locked(), termination_interrupts():
            audit = _attacked(run, suite, options.trust, _described(parser, options))
    except KeyboardInterrupt:
        print("interrupted; the same command goes on with the attacks that are left, and repeats none that is done")
        return INTERRUPTED
    place = run.folder.path / "attacks"
    print(f"\n{audit.table()}\n\nresults are in {place}: numbers, scores, images, tables and figures")
    if audit.failed:
        print(f"error: {counted(len(audit.failed), 'attack')} failed: {', '.join(audit.failed)}", file=sys.stderr)
    return 1 if audit.failed else 0


def _attacked(run: FinishedRun, suite: AttackSuite, trust: bool, what: str) -> Audit:
    """Attack a run, or go on where an attempt at `what` was interrupted."""
    attempt = Attempt(run.folder.path, what)
    attempt.begin()
    print(f"attacking {run.folder.path}, trained for {counted(len(run.metrics), 'round')}", flush=True)
    if attempt.labels:
        print(f"an earlier attempt was interrupted; its results are kept: {', '.join(attempt.labels)}", flush=True)
    tracker, status = run_tracker(run.folder.path, _tracking(run.config, trust)), "failed"
    if tracker is not None:
        tracker.begin(run.config, partial(replay, run.folder))
    try:
        audit, status = attack_run(run, suite, tracker, attempt, shown=True), "success"
    finally:
        if tracker is not None:
            tracker.finalize(status)
    end_attempt(run.folder.path)
    return audit


def _described(parser: Parser, options: Namespace) -> str:
    """The attacks and all their settings as text."""
    chosen = options.clone()
    chosen.run, chosen.trust = "", False
    return str(parser.dump(chosen, skip_validation=True))


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
