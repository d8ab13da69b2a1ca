"""A finished run, rebuilt for attacks; and the names of the attacks on the command line."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from app.commands.fit import FitCommand, FitParser, complete_config
from app.errors import UserError
from app.federation.module import FederatedModule
from app.results.run.folder import RunFolder
from app.results.run.tracking import make_tracker


class AttackCommand(FitCommand):
    """The federation of a finished run, built again from its configuration."""

    program: ClassVar[str] = "rampart attack"
    purpose: ClassVar[str | None] = "Attack a finished run."

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        super().__init__(["--config", str(folder.path / "config.yaml")])

    def before_instantiate_classes(self) -> None:
        """Claim nothing: the run stays as it is, but for its attack folder."""
        self.plain_config = complete_config(self.parser, self.config)

    def trainer_options(self, options: dict[str, Any]) -> dict[str, Any]:
        """One device; no recorder, no progress bar of rounds."""
        config, folder = self.config_init, self.folder
        self.tracker = make_tracker(config["tracking"], folder.path, folder.name, config["group"], config["project"])
        alone = {"devices": 1, "num_nodes": 1, "strategy": "auto"}
        return {**alone, "logger": False, "enable_checkpointing": False, "enable_progress_bar": False}

    def prepared(self) -> FederatedModule:
        """The federation with its data and its network, on the device."""
        federation = super().prepared()
        device = self.trainer.strategy.root_device
        federation.to(device)
        federation.data.to(device)
        return federation


def finished_run(path: Path) -> RunFolder:
    """The folder of a run that is finished and has a transcript.

    Raises:
        UserError: where there is no such run.
    """
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
            "attacks work on the models and uploads in it",
            "train it again with --transcript.last 2 (the default)",
        )
    return folder


def run_parser(description: str, usage: str) -> FitParser:
    """A parser of `rampart attack` that takes the run's folder."""
    parser = FitParser(prog=AttackCommand.program, description=description, usage=usage, allow_abbrev=False)
    parser.add_argument("run", type=str, help="folder of a finished run, such as runs/demo")
    return parser


def attack_names(arguments: Sequence[str]) -> list[str]:
    """Names after `--attacks`; the last one counts where it is given several times."""
    names: list[str] = []
    for place, argument in enumerate(arguments):
        option, equals, value = argument.partition("=")
        if option == "--attacks":
            names = re.findall(r"[\w.-]+", value if equals else " ".join(arguments[place + 1 : place + 2]))
    return names


def exit_code(failed: Sequence[str]) -> int:
    """1, after naming the attacks that failed; 0 where none did."""
    if failed:
        print(f"error: {len(failed)} attacks failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0
