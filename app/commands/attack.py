"""`rampart attack RUN`: attack a finished run from its transcript, without training it again.

These are the options of membership inference; `rampart attack RUN --attacks rolling-model --help` shows those of
attacks that bring training images back, and `--attacks factor-recovery` asks which factors clients of WAFFLe use.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from app.commands.factors import recover, wants_factors
from app.commands.finished import AttackCommand, exit_code, finished_run
from app.commands.fit import FitParser, quieten
from app.commands.reconstruct import reconstruct, wants_reconstruction
from app.federation.transcript import Transcript
from callbacks.attacks.membership_inference import MembershipInference

LISTS = ("--attacks", "--targets", "--rounds")
"""Options whose values may be written without brackets."""


def attack(arguments: Sequence[str]) -> int:
    """Attack a finished run; returns the exit code: 1 where an attack broke down."""
    quieten()
    if wants_factors(list(with_lists(arguments))):
        return recover(list(with_lists(arguments)))
    if wants_reconstruction(list(with_lists(arguments))):
        return reconstruct(list(with_lists(arguments)))
    parser = attack_parser()
    options = parser.parse_args(list(with_lists(arguments)))
    folder = finished_run(Path(options.run))
    callback = _callback(parser, options)
    command = AttackCommand(folder)
    command.give_home(callback)
    federation = command.prepared()
    rounds = len(folder.read_lines("metrics.jsonl"))
    print(f"attacking {folder.path}, trained for {rounds} rounds", flush=True)
    found = callback.run(federation, Transcript(folder.path / "transcript"), rounds, final=True)
    if command.tracker is not None:
        command.tracker.finalize("success")
    print(f"results are in {folder.path / 'attacks'}: leakage.png, roc.png, clients.csv, vulnerable.csv, *.npz")
    return exit_code([finding.conditions.label for finding in found if finding.failed])


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


def attack_parser() -> ArgumentParser:
    """The options of the command: those of the callback, but for attacks on the way."""
    parser = FitParser(
        prog="rampart attack",
        description=__doc__,
        usage="rampart attack RUN [--attacks NAME,NAME ...] [--OPTION VALUE ...]",
        allow_abbrev=False,
    )
    parser.add_argument("run", type=str, help="folder of a finished run, such as runs/demo")
    parser.add_class_arguments(MembershipInference, None, skip={"every"})
    return parser


def _callback(parser: ArgumentParser, options: Namespace) -> MembershipInference:
    values = {key: value for key, value in vars(parser.instantiate_classes(options)).items() if key != "run"}
    return MembershipInference(**values)
