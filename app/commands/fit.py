"""`rampart fit`: train one federation, resume it, keep everything in its run folder."""

from __future__ import annotations

import logging
import math
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities import rank_zero_only
from tqdm import tqdm

from app.common.wording import TRAINED, counted
from app.configuration import Parser, expand, run_parser
from app.federation.promises import statements
from app.federation.reports import RoundReport
from app.metrics.fairness import Spread
from app.results.attacks.canaries import CanaryRecord
from app.results.run.checkpoints import newest_usable
from app.results.run.folder import RunFolder
from app.results.text_table import text_table
from app.run import Run, run_of


def fit(arguments: Sequence[str]) -> int:
    """Train a federation; returns the exit code."""
    quieten()
    parser = preload()
    config = parser.parse_args(expand(arguments))
    run = run_of(parser, config)
    assert run.folder is not None
    _announce(run.folder)
    try:
        run.fit()
    except SystemExit:  # how Lightning ends an interrupted run
        if not run.trainer.interrupted:
            raise
        name, until = run.folder.path.relative_to(config.run.root), config.run.until
        if until is not None and run.trainer.current_epoch >= until:
            _say(f"stopped after round {until}; without --run.until, the same command goes on")
            return 0
        _say(f"interrupted; the same command with --run.name {name} resumes the run")
        return 130
    _say(_closing(run, run.folder.path))
    if broken := [claim.text for one in run.results if isinstance(one, CanaryRecord) for claim in one.broken]:
        return _broken_promise(broken)
    learning = run.federation.learning
    if learning.rounds and not learning.no_update:
        return 0
    return _without_update(learning.warnings(run.federation), run.trainer.current_epoch)


def preload() -> Parser:
    """The parser of the command, which is made once per process, and before that of a run where runs are forked."""
    return run_parser("rampart fit", str(__doc__))


def _without_update(reasons: Sequence[str], rounds: int) -> int:
    """Say why no update of any client was used; returns the exit code."""
    if rounds and not reasons:  # resumed from a checkpoint of an earlier version, which does not tell
        return 0
    why = " ".join(reasons) or "no round was trained"
    rank_zero_only(print)(f"error: the model is still the initial one: {why}", file=sys.stderr)
    return 1


def _broken_promise(claims: Sequence[str]) -> int:
    """Say which promises the run's own measurement refutes; returns the exit code."""
    for claim in claims:
        rank_zero_only(print)(f"error: measured above claimed: {claim}", file=sys.stderr)
    return 1


CLOSING_FILES = {
    "accuracy.png": "accuracy.png and partition.png show the rounds and who owns what",
    "fairness.json": "fairness.json and everyone.csv (drawn: fairness.png) show how much clients differ",
    "privacy.json": "privacy.json states the privacy budgets and what channels hide, with their assumptions",
    "attacks/clients.csv": "attacks/ holds clients.csv, vulnerable.csv and all scores (drawn: leakage.png, roc.png)",
    "attacks/factors.png": "attacks/factors.png shows what uploads tell of factors, factors.json holds the numbers",
    "attacks/reconstruction": "attacks/reconstruction/ holds reconstructed images beside the originals, with scores",
}
"""What is said at the end about a file or folder of the run, where it is there."""


def _closing(run: Run, folder: Path) -> str:
    lines = [f"\nfinished after {counted(run.trainer.current_epoch, 'round')}: {folder}"]
    if rows := _closing_rows(run):
        lines.append(text_table((), rows, left=(0, 2), indent="  "))
    lines.append("  metrics.jsonl, clients.csv, cost.json and partition.csv are in that folder")
    lines.extend(f"  {text}" for name, text in CLOSING_FILES.items() if (folder / name).exists())
    if run.tracker is not None and run.tracker.offline:
        lines.append(f"  to upload it to Weights & Biases: wandb sync {folder}/wandb/offline-run-*")
    return "\n".join(lines)


def _closing_rows(run: Run) -> list[tuple[str, str, str]]:
    """Label, number and explanation of every result of the run."""
    federation = run.federation
    rows = [*_accuracies(federation.report)] if hasattr(federation, "_round") else []  # else no round was left to train
    rows += [row for result in run.results for row in result.closing_rows()]
    lines = [statement.line() for statement in statements(federation)]
    lines += [statement.line() for statement in federation.hooks.channel_statements()]
    return [*rows, *(("privacy", "", line) for line in lines)]


def _accuracies(report: RoundReport) -> Iterator[tuple[str, str, str]]:
    if report.server.total:
        yield "server accuracy", f"{report.server.accuracy:.2%}", f"on {counted(report.server.total, 'test sample')}"
    for name, where in (("trained_own", "their own test sets"), ("trained_common", "the common test set")):
        spread = Spread.of(getattr(client, name) for client in report.clients)
        if not math.isnan(spread.mean):
            yield TRAINED, f"{spread.mean:.2%}", f"on {where}, worst {spread.worst:.2%}"


@rank_zero_only
def _announce(folder: RunFolder) -> None:
    checkpoint = newest_usable(folder.checkpoints)
    _say(f"run {folder.path}" + (f", resuming from {checkpoint.name}" if checkpoint else ""))


@rank_zero_only
def _say(text: str) -> None:
    print(text, flush=True, file=sys.stdout)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """A warning without its place in the code, which leaves the progress bar intact."""
    tqdm.write(f"warning: {message}", file=sys.stderr)


def quieten() -> None:
    """Silence messages of libraries that do not concern the user, and shorten warnings."""
    for name in ("lightning.pytorch.utilities.rank_zero", "lightning.pytorch.accelerators.cuda", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.showwarning = _show_warning
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    warnings.filterwarnings("ignore", message=".*exists and is not empty.*")
    warnings.filterwarnings("ignore", message=".*sync_dist=True.*")  # these metrics are summed before they are logged
    warnings.filterwarnings("ignore", message=".*Consider setting `persistent_workers=True`.*")
