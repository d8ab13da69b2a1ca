"""Finding a user's images: which file, which class, which client, and everything that is wrong with the list."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from app.errors import Problem
from datamodules.partitions.base import first_few

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"}
COLUMNS = ("path", "label", "client")


@dataclass(frozen=True)
class ImageEntry:
    """One image: its file, class name and client name."""

    path: Path
    label: str
    client: str


def list_folder(root: Path) -> tuple[list[ImageEntry], list[Problem]]:
    """Images under root/<client>/<class>/, in alphabetical order."""
    layout = "put images in <root>/<client>/<class>/ and let --data.root name <root>"
    if not root.is_dir():
        return [], [Problem(f"no folder {root}", "there is no data to train on", layout)]
    clients = _folders(root)
    entries, bare, empty = [], [], [] if clients else [str(root)]
    for client in clients:
        classes = _folders(client)
        bare += [] if classes else [str(client)]
        for label in classes:
            files = sorted(file for file in label.iterdir() if file.suffix.lower() in SUFFIXES)
            empty += [] if files else [str(label)]
            entries += [ImageEntry(file, label.name, client.name) for file in files]
    problems = []
    if bare:
        cause = f"client folders without class folders: {first_few(bare)}"
        problems.append(Problem(cause, "these clients would have no samples", layout))
    if empty:
        cause = f"folders without images: {first_few(empty)}"
        problems.append(Problem(cause, "clients would lack classes without notice", "add images or remove the folders"))
    return entries, problems


def list_table(table: Path) -> tuple[list[ImageEntry], list[Problem]]:
    """Images of a csv file with the columns path (relative to the file), label and client."""
    if not table.is_file():
        remedy = "let --data.table name a csv file with the columns path, label, client"
        return [], [Problem(f"no table {table}", "there is no data to train on", remedy)]
    with table.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        missing = [name for name in COLUMNS if name not in (reader.fieldnames or [])]
        rows = list(reader)
    if missing:
        cause = f"{table} has no column {', '.join(missing)}"
        return [], [Problem(cause, "images cannot be dealt to clients", "name the columns path, label, client")]
    if not rows:
        return [], [Problem(f"{table} has no rows", "there is no data to train on", "list one image per row")]
    return _entries(table, rows)


def _entries(table: Path, rows: list[dict[str, str]]) -> tuple[list[ImageEntry], list[Problem]]:
    blank = [str(line) for line, row in enumerate(rows, 2) if not all(row[name] for name in COLUMNS)]
    filled = [row for row in rows if all(row[name] for name in COLUMNS)]
    entries = [ImageEntry(table.parent / row["path"], row["label"].strip(), row["client"].strip()) for row in filled]
    absent = [str(entry.path) for entry in entries if not entry.path.is_file()]
    problems = []
    if blank:
        cause = f"{table} has blank cells in row {first_few(blank)}"
        problems.append(Problem(cause, "these images have no class or no client", "fill in path, label and client"))
    if absent:
        cause = f"{len(absent)} missing file{'s' * (len(absent) > 1)} in {table}: {first_few(absent)}"
        problems.append(Problem(cause, "the clients would lack them", "correct the paths, which start at the table"))
    return [entry for entry in entries if entry.path.is_file()], problems


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
