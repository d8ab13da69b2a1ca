"""`rampart report FOLDER ...`: tables, figures and one HTML page of finished runs.

A folder is a run, a folder of runs, or a comparison. Runs that are not finished are left out, with the reason.
"""

from __future__ import annotations

import re
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from app.commands.fit import quieten
from app.commands.options import report_parser
from app.common.progress import reported
from app.results.comparison.data_formats import tracked_columns, tracked_numbers, tracked_rows
from app.results.report import report as reporting
from app.results.report.page import files_folder
from app.results.run.manifest import RUN_ID
from app.results.run.tracking import TrackingMode, make_tracker


def report(arguments: Sequence[str]) -> int:
    """Make a report; returns the exit code."""
    quieten()
    options = report_parser().parse_args(list(arguments))
    with reported(shown=True):
        made = reporting.report(*options.folders, output=options.output, published=options.published)
    print(made.text(), flush=True)
    if options.track is not None:
        _track(made, options.track)
    if options.open:
        webbrowser.open(made.path.resolve().as_uri())
    return 0


def _track(made: reporting.Report, mode: TrackingMode) -> None:
    folder = files_folder(made.path)
    name = re.sub(r"[^\w.-]", "-", f"{made.store.name}-report")
    config = next((run.config for run in made.store.runs if run.config.get("project")), {})
    tracker = make_tracker(mode, folder, name, made.store.name, config.get("project"), config.get("entity"))
    assert tracker is not None
    others = sorted(path for path in folder.iterdir() if path.is_file() and path.name != RUN_ID)
    tracker.log_report(
        made.path, others, tracked_numbers(made.table), tracked_columns(made.table), tracked_rows(made.table)
    )
    tracker.finalize("success")
    print(f"Weights & Biases: run {name} of group {made.store.name}, {mode}" + _hint(mode, folder))


def _hint(mode: TrackingMode, folder: Path) -> str:
    return f"; upload it with: wandb sync {folder / 'wandb'}/offline-run-*" if mode == "offline" else ""
