"""`rampart attack RUN`: attack a finished run from its transcript, without training it again."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from jsonargparse import ArgumentParser, Namespace

from app.attacks.findings import Finding
from app.commands.fit import FitCommand, FitParser, complete_config, quieten
from app.errors import UserError
from app.federation.module import FederatedModule
from app.federation.transcript import Transcript
from app.results.run_folder import RunFolder
from app.results.tracking import make_tracker
from callbacks.membership_inference import MembershipInference

LISTS = ("--attacks", "--targets", "--rounds")
"""Options whose values may be written without brackets."""


class AttackCommand(FitCommand):
    """The federation of a finished run, built again from its configuration."""

    program: ClassVar[str] = "rampart attack"
    purpose: ClassVar[str | None] = __doc__

    def __init__(self, folder: RunFolder) -> None:
        """Build the federation of a run.

        Args:
            folder: the run's folder.
        """
        self.folder = folder
        super().__init__(["--config", str(folder.path / "config.yaml")])

    def before_instantiate_classes(self) -> None:
        """Claim nothing: the run stays as it is, but for its attack folder."""
        self.plain_config = complete_config(self.parser, self.config)

    def trainer_options(self, given: dict[str, Any]) -> dict[str, Any]:
        """One device; no recorder, no progress bar of rounds."""
        config, folder = self.config_init, self.folder
        self.tracker = make_tracker(config["tracking"], folder.path, folder.name, config["group"], config["project"])
        alone = {"devices": 1, "num_nodes": 1, "strategy": "auto"}
        return {**alone, "logger": False, "enable_checkpointing": False, "enable_progress_bar": False}

    def prepared(self) -> FederatedModule:
        """The federation with its data dealt and its network built, on the device."""
        federation = super().prepared()
        device = self.trainer.strategy.root_device
        federation.to(device)
        federation.data.to(device)
        return federation


def attack(arguments: Sequence[str]) -> int:
    """Attack a finished run; returns the exit code: 1 where an attack broke down."""
    quieten()
    parser = attack_parser()
    options = parser.parse_args(list(with_lists(arguments)))
    folder = _finished_run(Path(options.run))
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
    return _exit_code(found)


def _exit_code(found: list[Finding]) -> int:
    broken = [finding.conditions.label for finding in found if finding.failed]
    if broken:
        print(f"error: {len(broken)} attacks broke down: {', '.join(broken)}", file=sys.stderr)
    return 1 if broken else 0


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


def _finished_run(path: Path) -> RunFolder:
    folder = RunFolder(path)
    if not (path / "config.yaml").is_file():
        raise UserError.of(f"{path} is no run", "there is nothing to attack", "name the folder of a run, as in runs/")
    if not folder.finished:
        raise UserError.of(
            f"the run {path} is not finished",
            "its last model has not been released",
            f"finish it first: rampart fit --config {path / 'config.yaml'} --run.name {path.name}",
        )
    if not any((path / "transcript").glob("round-*")):
        raise UserError.of(
            f"the run {path} has no transcript",
            "nobody has seen anything that could be attacked",
            "train it again with --transcript.last 2 (the default)",
        )
    return folder
