"""Results in a run's folder: saved one by one, then summed up by kind in tables, figures, the summary and trackers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from lightning.pytorch.utilities import rank_zero_warn

from app.common.errors import UserError
from app.common.files import plain_names, write_figure, write_text
from app.common.progress import track
from app.common.reading import read_json
from app.result import Measurement, Result
from app.results.attacks.canaries import CanaryRecord
from app.results.attacks.factor_recovery import FactorRecord
from app.results.attacks.membership import AttackRecord
from app.results.attacks.reconstruction import ReconstructionRecord
from app.results.run.fairness import FairnessResult, NewcomersResult
from app.results.run.folder import RunFolder
from app.results.run.tracking import RoundLogger

RESULT_KINDS: tuple[type[Result], ...] = (
    *(FairnessResult, NewcomersResult),
    *(AttackRecord, ReconstructionRecord, FactorRecord, CanaryRecord, Measurement),
)
"""Kinds of results that a reader of the folder finds, in the order of the summary."""


def summaries(folder: RunFolder) -> dict[str, dict[str, Any]]:
    """Parts of `summary.json` that the results in a run's folder make up."""
    found = {kind: kind.load_all(folder.path) for kind in RESULT_KINDS}
    return {kind.part: kind.summary(results) for kind, results in found.items() if results}


def conclude(folder: RunFolder, new: Sequence[Result], when: str = "", tracker: RoundLogger | None = None) -> None:
    """Bring figures, tables, summary and tracker up to date.

    Args:
        folder: the run's folder, in which the new results are saved.
        new: results of one kind, at least one.
        when: after which round they were obtained, in words; empty for the end of the run.
        tracker: the run in Weights & Biases; None where it is not tracked.
    """
    kind, in_memory = type(new[0]), {result.label: result for result in new}
    everything = [in_memory.get(result.label, result) for result in kind.load_all(folder.path)]
    try:
        about = f"{kind.kind}{', ' + when if when else ''}: {folder.name}"
        figures = _draw(folder, new, everything, about) if folder.figures or not kind.redrawn else {}
        if everything:
            for name, text in kind.files(everything):
                write_text(folder.path / name, text)
            folder.update_summary(kind.part, kind.summary(everything))
    except OSError as error:
        raise UserError.of(
            f"cannot write {folder.path / kind.folder}: {error.strerror or error}",
            "tables and figures are not up to date; the results themselves are kept",
            "free some space, then repeat the attack with `rampart attack`",
        ) from error
    if tracker is not None:
        tracker.log_results(kind, new, everything, figures)


def replay(folder: RunFolder, tracker: RoundLogger, rounds: float = math.inf) -> None:
    """Tell a tracker what the folder holds: the first rounds as the run told them, all results, and the summary."""
    costs = {cost["round"]: cost for cost in folder.read_lines("cost.jsonl", rounds)}
    withheld = folder.withheld()
    for metrics in folder.read_lines("metrics.jsonl", rounds):
        cost = {f"cost/{name}": value for name, value in costs.get(metrics["round"], {}).items()}
        tracked = {name: value for name, value in (metrics | cost).items() if name not in withheld}
        tracker.log_metrics({name: math.nan if value is None else value for name, value in tracked.items()})
    for kind in RESULT_KINDS:
        figures = sorted((folder.path / kind.folder).glob("*.png"))
        named = {path.relative_to(folder.path).as_posix(): str(path) for path in figures}
        try:
            if results := kind.load_all(folder.path):
                tracker.log_results(kind, results, results, named)
        except UserError as error:
            rank_zero_warn(f"results of {kind.kind} are not tracked: {error}")
    if folder.finished:
        tracker.finish(read_json(folder.path / "summary.json"), withheld)


def _draw(folder: RunFolder, new: Sequence[Result], everything: Sequence[Result], title: str) -> dict[str, str]:
    """Write figures; returns their paths by name within the run's folder."""
    kind, figures = type(new[0]), {}
    for result in track(new, "drawing results", "results"):
        with plain_names():
            drawn = list(result.draw(f"{result.label}: {folder.name}"))
        for name, figure in drawn:
            path = folder.path / kind.folder / name
            write_figure(path, figure)
            figures[path.relative_to(folder.path).as_posix()] = str(path)
    with plain_names():
        overview = list(kind.overview(everything, title)) if everything else []
    for name, figure in overview:
        write_figure(folder.path / name, figure)
        figures[name] = str(folder.path / name)
    return figures
