"""Cells as jobs: the command of each."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from app.experiments.folder import ComparisonFolder, State
from app.experiments.matrix import Combination, PlannedRun
from app.experiments.parsed import ParsedRun
from app.experiments.processes import Job

FIT = (sys.executable, "-P", "-m", "app.cli", "fit")
"""`rampart fit`; modules in the working folder do not get in the way of ours."""


def make_job(
    cell: PlannedRun,
    folder: ComparisonFolder,
    parsed: Mapping[Combination, ParsedRun],
    group: str,
    program: Sequence[str] = FIT,
) -> Job:
    """The job of a cell.

    Args:
        cell: the cell.
        folder: where its run is kept.
        parsed: what each combination is run with.
        group: name of the comparison, by which trackers group its runs.
        program: command that takes the arguments of `rampart fit`.
    """
    run = parsed[cell.combination]
    quiet = () if "--trainer.enable_progress_bar" in cell.arguments else ("--trainer.enable_progress_bar", "false")
    place = ("--run.root", str(folder.path), "--run.name", cell.name, "--group", group)
    begun = folder.state(cell.name) is State.PARTLY
    asked = (run.config.get("model") or {}).get("workers")
    return Job(
        name=cell.name,
        combination=cell.combination,
        command=(*program, *cell.arguments, *quiet, *place),
        log=folder.log(cell.name),
        lock=folder.run_lock(cell.name),
        summary=folder.run(cell.name) / "summary.json",
        rounds=run.rounds,
        begun=begun,
        workers=asked or (folder.saved_workers(cell.name) if begun else None),
        home=Path.cwd(),
    )
