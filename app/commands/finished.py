"""A finished run, built again for attacks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from app.commands.fit import FitCommand, complete_config
from app.errors import UserError
from app.federation.module import FederatedModule
from app.results.run.folder import RunFolder
from app.results.run.tracking import make_tracker


class AttackCommand(FitCommand):
    """The federation of a finished run, built again from its configuration."""

    program: ClassVar[str] = "rampart attack"
    purpose: ClassVar[str | None] = "Attack a finished run."

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


def finished_run(path: Path) -> RunFolder:
    """The folder of a run that is over and has a transcript.

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
            "nobody has seen anything that could be attacked",
            "train it again with --transcript.last 2 (the default)",
        )
    return folder


def exit_code(broken: Sequence[str]) -> int:
    """1, after telling which attacks broke down; 0 where none did."""
    if broken:
        print(f"error: {len(broken)} attacks broke down: {', '.join(broken)}", file=sys.stderr)
    return 1 if broken else 0
