"""Weights & Biases with the round as x axis, offline by default."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities import rank_zero_only

from app.result import Result

TrackingMode = Literal["offline", "online", "disabled"]
Rows = Sequence[Sequence[Any]]
"""Rows of a table, with None where there is no value."""


class RoundLogger(WandbLogger):
    """Lightning's W&B logger, told that `round` is the step of every metric."""

    def __init__(self, images: bool = False, **settings: Any) -> None:
        super().__init__(**settings)
        self.images = images
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
    def finish(self, summary: Mapping[str, Any], columns: Sequence[str], rows: Rows) -> None:
        """Fill the run's summary and log the table of clients."""
        self._log_table("clients", columns, rows, summary)

    @rank_zero_only
    def log_results(
        self, kind: type[Result], new: Sequence[Result], everything: Sequence[Result], figures: Mapping[str, str]
    ) -> None:
        """Log results of one kind: a table, all numbers, curves, and figures (image files by name)."""
        import wandb

        further: dict[str, Any] = {}
        if not kind.shows_data or self.images:
            further |= {f"figures/{name.removesuffix('.png')}": wandb.Image(path) for name, path in figures.items()}
        if points := [[label, *point] for label, line in kind.curves(new).items() for point in line]:
            further[f"{kind.folder}/roc_points"] = wandb.Table(columns=["result", "fpr", "tpr"], data=points)
            further[f"{kind.folder}/roc"] = _roc_plot(points)
        table = kind.table(new)
        self._log_table(f"{kind.part}/results", table.columns, table.rows, _flat(kind.summary(everything)), further)

    @rank_zero_only
    def log_report(
        self, page: Path, others: Sequence[Path], summary: Mapping[str, float], columns: Sequence[str], rows: Rows
    ) -> None:
        """Keep a report as an artifact of type `report`, with its numbers and its table.

        Args:
            page: the HTML file.
            others: files that lie in folders beside it.
            summary: numbers by name.
            columns: names of the table's columns.
            rows: one per row of the report, with None where there is no value.
        """
        import wandb

        artifact = wandb.Artifact(self.experiment.id, type="report")
        for path in (page, *others):
            artifact.add_file(str(path), name=path.relative_to(page.parent).as_posix())
        self.experiment.log_artifact(artifact)
        self._log_table("report/table", columns, rows, summary)

    def _log_table(
        self,
        name: str,
        columns: Sequence[str],
        rows: Rows,
        summary: Mapping[str, Any],
        further: Mapping[str, Any] | None = None,
    ) -> None:
        """Update the summary, then log a table, together with what belongs to it."""
        import wandb

        self.experiment.summary.update(dict(summary))
        table = wandb.Table(columns=list(columns), data=[list(row) for row in rows])
        self.experiment.log({name: table, **(further or {})})

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """End the run, so that a later one in the same process gets a run of its own."""
        super().finalize(status)
        if self._experiment is not None:
            self._experiment.finish(exit_code=0 if status == "success" else 1)
            self._experiment = None


def tracker_of(trainer: Trainer) -> RoundLogger | None:
    """The trainer's logger that is a run in Weights & Biases; None where there is none."""
    return next((logger for logger in trainer.loggers if isinstance(logger, RoundLogger)), None)


def _flat(summary: Mapping[str, Any], front: str = "") -> dict[str, float]:
    """Numbers of nested data by path."""
    flat: dict[str, float] = {}
    for name, value in summary.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{front}{name}/")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            flat[f"{front}{name}"] = value
    return flat


def _roc_plot(points: list[list[Any]]) -> Any:
    """One line per result. W&B's own line charts have linear axes, so the logarithms are plotted."""
    import wandb

    lines: dict[str, list[tuple[float, float]]] = {}
    for label, fpr, tpr in points:
        lines.setdefault(label, []).append((math.log10(fpr), math.log10(tpr)))
    xs, ys = ([[point[axis] for point in line] for line in lines.values()] for axis in (0, 1))
    title = "log10 of TPR over log10 of FPR"
    return wandb.plot.line_series(xs, ys, keys=list(lines), title=title, xname="log10 FPR")


def make_tracker(mode: TrackingMode, folder: Path, name: str, group: str | None, project: str) -> RoundLogger | None:
    """The run's tracker, or None where tracking is disabled.

    Args:
        mode: `offline` keeps everything in the run folder (send it later with `wandb sync`), `online` uploads.
        folder: the run folder.
        name: also the id, so that a resumed run goes on in the same place.
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
