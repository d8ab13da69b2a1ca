"""Weights & Biases with the round as x axis, offline by default."""

from __future__ import annotations

import math
import os
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities import rank_zero_only

from app.common.files import write_text
from app.common.reading import read_text
from app.federation.reports import CLIENT_COLUMNS
from app.result import PlainTable, Result
from app.results.run.manifest import RUN_ID

TrackingMode = Literal["offline", "online", "disabled"]

MODES: dict[str, TrackingMode] = {"online": "online", "run": "online", "disabled": "disabled"}
"""Modes by the values of WANDB_MODE; any other one is `offline`."""

TABLES = {"reconstruction": "attacks/reconstructions"}
"""Names of tables by part of the summary, where they are not `<part>/results`."""


class RoundLogger(WandbLogger):
    """Lightning's W&B logger, told that `round` is the step of every metric.

    Attributes:
        offline: whether everything stays in the folder.
        images: whether figures that show training data are logged.
    """

    def __init__(self, offline: bool = False, images: bool = False, **settings: Any) -> None:
        # Lightning's own `offline` would change WANDB_MODE for the whole process
        super().__init__(mode="offline" if offline else "online", **settings)
        self.offline, self.images = offline, images
        self._wandb_init.pop("anonymous", None)  # wandb warns about it although it is not set

    @rank_zero_only
    def begin(self, config: Mapping[str, Any], replay: Callable[[Self], None] | None = None) -> None:
        """Open the run, make `round` the x axis and fill in the configuration.

        Of several offline parts of a run, each would replace the one before when it is uploaded. So `replay` tells this
        tracker again what has not been uploaded, and this takes the place of the earlier parts.
        """
        parts = (Path(self.save_dir or ".") / "wandb").glob("offline-run-*")
        earlier = [part for part in parts if self.offline or not any(part.glob("*.synced"))]
        self.experiment.define_metric("round")
        self.experiment.define_metric("*", step_metric="round")
        self.experiment.config.update(dict(config), allow_val_change=True)
        if replay is not None and (self.offline or earlier):
            replay(self)
        for part in earlier:
            shutil.rmtree(part, ignore_errors=True)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log one round; metrics that bring no round of their own belong to Lightning and are passed over."""
        if "round" in metrics:
            self.experiment.log(dict(metrics))

    @rank_zero_only
    def finish(self, summary: Mapping[str, Any], withheld: Sequence[str] = ()) -> None:
        """Fill the run's summary and log the table of clients, from the content of `summary.json`.

        Metrics that are withheld are left out, of the clients' table as well.
        """
        final = {name: value for name, value in summary["final"].items() if name not in withheld}
        numbers = {**final, **{f"cost/{name}": cost for name, cost in summary["cost"].items()}}
        columns = tuple(column for column in CLIENT_COLUMNS if f"clients/{column}" not in withheld)
        rows = [[client.get(column) for column in columns] for client in summary["clients"]]
        self._log_table("clients", PlainTable(columns, rows), numbers)

    @rank_zero_only
    def log_results(
        self, kind: type[Result], new: Sequence[Result], everything: Sequence[Result], figures: Mapping[str, str]
    ) -> None:
        """Log results of one kind: a table and curves of the new ones, all numbers, and figures (files by name)."""
        import wandb

        further: dict[str, Any] = {}
        if kind.shows_data and self.images:
            further |= {name.removesuffix(".png"): wandb.Image(path) for name, path in figures.items()}
        if points := [[label, *point] for label, line in kind.curves(new).items() for point in line]:
            further[f"{kind.folder}/roc_points"] = wandb.Table(columns=["result", "fpr", "tpr"], data=points)
            further[f"{kind.folder}/roc"] = _roc_plot(points)
        name = TABLES.get(kind.part, f"{kind.part}/results")
        self._log_table(name, kind.table(new), _numbers(kind, everything), **further)

    @rank_zero_only
    def log_report(
        self,
        page: Path,
        others: Sequence[Path],
        summary: Mapping[str, float],
        columns: Sequence[str],
        rows: Sequence[Sequence[Any]],
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

        self.begin({})
        artifact = wandb.Artifact(str(self._name), type="report")
        for path in (page, *others):
            artifact.add_file(str(path), name=path.relative_to(page.parent).as_posix())
        self.experiment.log_artifact(artifact)
        self._log_table("report/table", PlainTable(tuple(columns), [list(row) for row in rows]), summary)

    def _log_table(self, name: str, table: PlainTable, summary: Mapping[str, Any], **further: Any) -> None:
        """Update the summary, then log a table, together with what belongs to it."""
        import wandb

        self.experiment.summary.update(dict(summary))
        self.experiment.log({name: wandb.Table(columns=list(table.columns), data=table.rows), **further})

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


def _numbers(kind: type[Result], results: Sequence[Result]) -> dict[str, float]:
    """Numbers of all results of a kind by names that begin with its folder, or else with its part of the summary."""
    own, flat = f"{kind.folder}/", _flat(kind.summary(results))
    return {name if name.startswith(own) else f"{kind.part}/{name}": value for name, value in flat.items()}


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


def default_mode() -> TrackingMode:
    """What WANDB_MODE says; without it `online` in a sweep, whose agent waits for numbers, and `offline` elsewhere."""
    otherwise = "online" if os.environ.get("WANDB_SWEEP_ID") else "offline"
    return MODES.get(os.environ.get("WANDB_MODE") or otherwise, "offline")


def default_project() -> str:
    """The project that WANDB_PROJECT names, or `rampart`."""
    return os.environ.get("WANDB_PROJECT") or "rampart"


def make_tracker(
    mode: TrackingMode,
    folder: Path,
    name: str,
    group: str | None = None,
    project: str | None = None,
    entity: str | None = None,
    images: bool = False,
) -> RoundLogger | None:
    """The run's tracker, or None where tracking is disabled.

    Args:
        mode: `offline` keeps everything in the run folder (send it later with `wandb sync`), `online` uploads.
        folder: the run folder, which also keeps the run's id, so that a resumed run goes on in the same place.
        name: for display.
        group: comparison the run belongs to.
        project: W&B project; see `default_project`.
        entity: team or user; by default WANDB_ENTITY, or the one of the account.
        images: whether figures that show training data are logged.
    """
    if mode == "disabled":
        return None
    import wandb

    offline = mode == "offline"
    folder.mkdir(parents=True, exist_ok=True)
    return RoundLogger(
        offline,
        images,
        name=name,
        id=_run_id(folder),
        group=group,
        project=project or default_project(),
        entity=entity,
        save_dir=folder,
        resume="allow",
        settings=wandb.Settings(silent=offline, console="off", x_disable_stats=offline),
    )


def run_tracker(folder: Path, config: Mapping[str, Any]) -> RoundLogger | None:
    """The tracker that a run's configuration asks for."""
    mode, images = config.get("tracking", "disabled"), bool(config.get("track_images"))
    group, project, entity = (config.get(name) for name in ("group", "project", "entity"))
    return make_tracker(mode, folder, folder.name, group, project, entity, images)


def _run_id(folder: Path) -> str:
    """The id in the folder; of a new run the one in WANDB_RUN_ID, as agents of sweeps set it, or a random one."""
    path = folder / RUN_ID
    if path.is_file():
        return read_text(path).strip()
    earlier = [log.stem.removeprefix("run-") for log in folder.glob("wandb/*run-*/run-*.wandb")]  # of version 0.2
    new = max(earlier, default="") or os.environ.get("WANDB_RUN_ID") or secrets.token_hex(8)
    rank_zero_only(write_text)(path, new)
    return new
