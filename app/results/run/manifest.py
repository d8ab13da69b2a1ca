"""Files that runs, attacks and reports have made in a run's folder: when a run is overwritten, no other is deleted.

`app.common.files` lists every file before it is made, so that the list is whole whenever a process is killed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from app.common.errors import UserError
from app.common.files import LIST, PART, listing_folder, write_text
from app.common.reading import read_text

TEMPORARY = re.compile(rf"\.[0-9a-f]{{16}}{re.escape(PART)}")

FOLDERS = ("checkpoints", "transcript", "attacks", "results", "report")
"""Folders of a run in which temporary files may lie."""

TAKEN_FOR_OWN = (
    *("summary.json", "config.yaml", "metrics.jsonl", "cost.jsonl", "ledger.jsonl", "clients.csv"),
    *("checkpoints/*.ckpt", "transcript/*", "attacks/*.json", "results/*.json"),
)
"""Files that a new run would go on with or count among its results; `*` stands for folders, too."""

RUN_ID = "wandb-run-id"
"""File beside the folder `wandb` that holds the run's id in Weights & Biases."""


def start_list(folder: Path) -> None:
    """Let files be listed from now on that are made in a run's folder."""
    if not (folder / LIST).exists():
        write_text(folder / LIST, "")


def delete_run(folder: Path) -> list[str]:
    """Delete the listed files of a run and folders that are then empty; returns the names of what is left, sorted.

    Raises:
        UserError: where a new run would take a file for its own that the list does not name; nothing is deleted.
        OSError: where something cannot be deleted.
    """
    listed = _listed(folder)
    _refuse_unlisted(folder, listed)
    paths = [folder / name for name in listed]
    for path in (path for path in paths if path.name == RUN_ID):
        _delete_tracked(path)
    # without its summary a run is not finished, and its settings mark the folder as a run
    for name in ("summary.json", *sorted(listed - {"summary.json", "config.yaml"}), "config.yaml"):
        if name in listed:
            (folder / name).unlink(missing_ok=True)
    for place in sorted({parent for path in paths for parent in path.parents}, reverse=True):
        if folder in place.parents and place.is_dir() and not any(place.iterdir()):
            place.rmdir()
    write_text(folder / LIST, "")
    return sorted(path.name for path in folder.iterdir() if path.name != LIST)


def delete_temporary(folder: Path) -> None:
    """Delete what a process was writing when it was killed."""
    for name in _files(folder):
        if TEMPORARY.fullmatch(PurePosixPath(name).name):
            (folder / name).unlink(missing_ok=True)


def _listed(folder: Path) -> set[str]:
    """Names of the files that the program has made; a line that leads to another place than this run is passed over."""
    try:
        lines = read_text(folder / LIST).splitlines()
    except FileNotFoundError:  # of a version that kept no list
        return set()
    names = set()
    for line in lines:
        try:
            name = json.loads(line)
        except ValueError:  # cut short by a crash
            continue
        if isinstance(name, str) and _is_within(folder, name):
            names.add(name)
    return names


def _is_within(folder: Path, name: str) -> bool:
    plain = name == PurePosixPath(name).as_posix() and not name.startswith("/") and ".." not in name.split("/")
    return plain and "\0" not in name and listing_folder(folder / name) == folder.resolve()


def _refuse_unlisted(folder: Path, listed: set[str]) -> None:
    unlisted = sorted(set(_files(folder)) - listed)
    mistaken = [name for name in unlisted if any(fnmatchcase(name, pattern) for pattern in TAKEN_FOR_OWN)]
    if mistaken:
        more = f" and {len(mistaken) - 3} more" if len(mistaken) > 3 else ""
        raise UserError.of(
            f"{folder} holds files that its list of files ({LIST}) does not name: {', '.join(mistaken[:3])}{more}",
            "the new run would take them for its own, and they are not deleted, since they may be yours",
            f"move or delete them, or all of {folder}, yourself; or choose another --run.name",
        )


def _files(folder: Path) -> Iterator[str]:
    """Files in a run's folder and in those of its own folders, by path within it; links are not followed."""
    yield from (entry.name for entry in os.scandir(folder) if not entry.is_dir(follow_symlinks=False))
    for name in FOLDERS:
        for place, _, files in os.walk(folder / name):
            inner = Path(place).relative_to(folder)
            yield from ((inner / file).as_posix() for file in files)


def _delete_tracked(id_file: Path) -> None:
    """Delete the folders of a run in Weights & Biases, whose names end with its id, and links that led to them."""
    try:
        tracked = read_text(id_file).strip()
    except OSError:
        return
    place = id_file.parent / "wandb"
    if not tracked or place.is_symlink() or not place.is_dir():
        return
    for entry in list(place.iterdir()):
        if re.fullmatch(rf"(offline-)?run-[\d_]+-{re.escape(tracked)}", entry.name) and not entry.is_symlink():
            shutil.rmtree(entry)
    for entry in list(place.iterdir()):
        if entry.is_symlink() and not entry.exists():
            entry.unlink()
    if not any(place.iterdir()):
        place.rmdir()
