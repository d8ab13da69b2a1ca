"""Weights & Biases with the round as x axis, offline unless asked otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities import rank_zero_only

TrackingMode = Literal["offline", "online", "disabled"]


class RoundLogger(WandbLogger):
    """Lightning's W&B logger, told that `round` is the step of every metric."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._wandb_init.pop("anonymous", None)  # wandb warns about it although it is not set

    @rank_zero_only
    def use_rounds(self, config: Mapping[str, Any]) -> None:
        """Make `round` the x axis and fill in the configuration."""
        self.experiment.define_metric("round")
        self.experiment.define_metric("*", step_metric="round")
        self.experiment.config.update(dict(config), allow_val_change=True)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log one round; metrics that bring no round of their own belong to Lightning and are passed over."""
        if "round" in metrics:
            self.experiment.log(dict(metrics))

    @rank_zero_only
    def finish(self, summary: Mapping[str, Any], columns: list[str], rows: list[list[Any]]) -> None:
        """Fill the run's summary and log the table of clients."""
        import wandb

        self.experiment.summary.update(dict(summary))
        self.experiment.log({"clients": wandb.Table(columns=list(columns), data=rows)})

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """End the run, so that a later one in the same process gets a run of its own."""
        super().finalize(status)
        if self._experiment is not None:
            self._experiment.finish(exit_code=0 if status == "success" else 1)
            self._experiment = None


def make_tracker(mode: TrackingMode, folder: Path, name: str, group: str | None, project: str) -> RoundLogger | None:
    """The run's tracker, or None where tracking is disabled.

    Args:
        mode: `offline` keeps everything in the run folder (send it later with `wandb sync`), `online` uploads.
        folder: the run folder.
        name: name of the run, also its id, so that a resumed run goes on in the same place.
        group: comparison the run belongs to.
        project: W&B project.
    """
    if mode == "disabled":
        return None
    import wandb

    folder.mkdir(parents=True, exist_ok=True)
    return RoundLogger(
        name=name,
        id=name,
        group=group,
        project=project,
        save_dir=folder,
        offline=mode == "offline",
        resume="allow",
        settings=wandb.Settings(silent=mode == "offline", console="off", x_disable_stats=True),
    )
