"""What runs, attacks and reports write to a run's folder: when a run is overwritten, nothing else is deleted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from app.files import PART
from app.progress import PROGRESS_LOG

TEMPORARY = f".*{PART}"
RESULTS = ("*.json", "*.npz", "*.csv", "*.png")

FOLDERS = {
    "checkpoints": ("*.ckpt", "*.ckpt.sha256"),
    "transcript": ("*.npz", "sealed"),
    "attacks": RESULTS,
    "results": RESULTS,
    "report": ("*.csv", "*.md", "*.tex", "*.svg", "*.png", "wandb-run-id"),
    "wandb": ("*",),
    "lightning_logs": ("*",),
}
"""Folders of a run, with the names of its files in them and in folders below."""

FILES = (
    *("metrics.jsonl", "cost.jsonl", "ledger.jsonl", "wandb-run-id", "report.html"),
    PROGRESS_LOG,
    *("representations.npz", "attack-representations.npz"),
    *(f"{name}.json" for name in ("cost", "plan", "privacy", "fairness", "newcomers")),
    *(f"{name}.csv" for name in ("clients", "partition", "everyone", "newcomers")),
    *(f"{name}.png" for name in ("accuracy", "privacy", "partition", "fairness", "newcomers")),
    *(TEMPORARY, "config.yaml"),
)
"""Names of files in the folder itself; the last one marks it as a run."""


def delete_run(folder: Path) -> list[str]:
    """Delete the files of a run and folders that are then empty; returns the names of what is left, sorted.

    Links are deleted where a file of that name would be, and never followed.

    Raises:
        OSError: where something cannot be deleted.
    """
    (folder / "summary.json").unlink(missing_ok=True)  # from here on the run is not finished
    for path in [*_in_folders(folder), *_in(folder, FILES)]:
        path.unlink(missing_ok=True)
    for name in FOLDERS:
        for place, _, _ in os.walk(folder / name, topdown=False):
            if not any(os.scandir(place)):
                Path(place).rmdir()
    return sorted(path.name for path in folder.iterdir())


def delete_temporary(folder: Path) -> None:
    """Delete what a process was writing when it was killed."""
    for path in [*_in_folders(folder, (TEMPORARY,)), *_in(folder, (TEMPORARY,))]:
        path.unlink(missing_ok=True)


def _in_folders(folder: Path, patterns: tuple[str, ...] | None = None) -> Iterator[Path]:
    for name, usual in FOLDERS.items():
        if not (folder / name).is_symlink():
            for place, _, _ in os.walk(folder / name):
                yield from _in(Path(place), patterns or (*usual, TEMPORARY))


def _in(folder: Path, patterns: tuple[str, ...]) -> Iterator[Path]:
    """Files and links in a folder whose names match, in the order of the patterns."""
    names = [entry.name for entry in os.scandir(folder) if entry.is_symlink() or not entry.is_dir()]
    yield from (folder / name for pattern in patterns for name in names if fnmatchcase(name, pattern))
