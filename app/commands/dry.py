"""Commands that look at a federation before any training, and leave no run behind."""

from __future__ import annotations

from typing import Any

from app.commands.fit import FitCommand
from app.federation.hooks import FederatedCallback


class DryCommand(FitCommand):
    """Takes the options of a run; neither trains nor attacks. The device does not matter."""

    def before_instantiate_classes(self) -> None:
        """Claim no run folder."""

    def give_home(self, attack: FederatedCallback) -> None:
        """Nothing is attacked."""

    def trainer_options(self, given: dict[str, Any]) -> dict[str, Any]:
        """No recorder, no tracker, and no device: nothing depends on where clients are trained."""
        here = {"accelerator": "cpu", "devices": 1, "num_nodes": 1, "strategy": "auto"}
        return {**here, "logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
