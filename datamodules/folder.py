"""A user's own images: a folder per client, or a table with the client of each image."""

from __future__ import annotations

import csv
import io
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from app.common.errors import Problem, raise_all
from app.common.ranges import Count, Inside
from app.common.wording import counted
from datamodules.base import FederatedDataModule, RawData
from datamodules.checks import first_few
from datamodules.partitions import Natural, Partition
from datamodules.split import common_test_mask

MANY_IMAGES = 2000
"""Images beyond which reading shows a progress bar."""

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"}
COLUMNS = ("path", "label", "client")
DELIMITERS = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a bar"}


class ImageFolder(FederatedDataModule):
    """Your own images: root/<client>/<class>/<image>, or a csv table with the columns path, label and client.

    Images are scaled to one square size and kept in memory as bytes. By default, each client of the folder
    or table is a client of the federation.

    Args:
        root: folder with one folder per client, in it one per class; not used with a table.
        table: csv file in UTF-8 with the columns path (relative to the file), label, client; None reads `root`.
        image_size: height and width in pixels that images are scaled to, at least 1.
        grayscale: one grey channel instead of three colours.
        test_fraction: share of the images, the same for every seed, that forms the common test set, in (0, 1).
    """

    own_statistics = True

    def __init__(
        self,
        root: str = "data/images",
        table: str | None = None,
        image_size: Count = 32,
        grayscale: bool = False,
        test_fraction: Inside = 0.2,
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        self.root = root
        self.table = table
        self.image_size = image_size
        self.grayscale = grayscale
        self.test_fraction = test_fraction

    def usual_partition(self) -> Partition:
        return Natural()

    def load(self) -> RawData:
        entries, problems = list_folder(Path(self.root)) if self.table is None else list_table(Path(self.table))
        images, unreadable = read_images(entries, self.image_size, self.grayscale)
        raise_all(problems + unreadable)
        warn_of_single_labels(entries)
        class_names, labels = _numbered([entry.label for entry in entries])
        owner_names, owners = _numbered([entry.client for entry in entries])
        test = torch.from_numpy(common_test_mask(labels.numpy(), self.test_fraction))
        mean, std = channel_statistics(images[~test])
        return RawData.divided(
            images, labels, test, owners, class_names=class_names, mean=mean, std=std, owner_names=owner_names
        )


@dataclass(frozen=True)
class ImageEntry:
    """One image: its file, class name and client name."""

    path: Path
    label: str
    client: str
    source: str  # the file, or the row of the table that lists it


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
            files = sorted(f for f in label.iterdir() if f.suffix.lower() in SUFFIXES and not _is_resource(f))
            empty += [] if files else [str(label)]
            entries += [ImageEntry(file, label.name, client.name, str(file)) for file in files]
    remedy = "add images or remove the folders"
    return entries, [
        *_problems("client folders without class folders: ", bare, "these clients would have no samples", layout),
        *_problems("folders without images: ", empty, "clients would lack classes without notice", remedy),
    ]


def list_table(table: Path) -> tuple[list[ImageEntry], list[Problem]]:
    """Images of a csv file with the columns path (relative to the file), label and client."""
    if not table.is_file():
        remedy = "let --data.table name a csv file with the columns path, label, client"
        return [], [Problem(f"no table {table}", "there is no data to train on", remedy)]
    try:
        text = table.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        return [], [_encoding_problem(table, error)]
    rows, columns = _rows(table, text)
    missing = [name for name in COLUMNS if name not in columns]
    if missing:
        cause = f"{table} has no column {', '.join(missing)}; its columns are {first_few(columns) or 'none'}"
        return [], [Problem(cause, "images cannot be dealt to clients", "name the columns path, label, client")]
    if not rows:
        return [], [Problem(f"{table} has no rows", "there is no data to train on", "list one image per row")]
    return _entries(table, rows)


def _encoding_problem(table: Path, error: UnicodeDecodeError) -> Problem:
    """A table in another encoding, such as the Latin-1 or Windows-1252 that spreadsheets write."""
    line = error.object.count(b"\n", 0, error.start) + 1
    return Problem(
        f"{table} is not encoded in UTF-8: line {line} holds the byte 0x{error.object[error.start]:02x}",
        "names with accents would be misread",
        "save it as UTF-8 (in a spreadsheet: 'CSV UTF-8'), or convert it: "
        f"iconv -f ISO-8859-1 -t UTF-8 {table.name} > utf8.csv",
    )


def _rows(table: Path, text: str) -> tuple[list[dict[str, str]], list[str]]:
    """Rows and column names of a table; the delimiter is the one that finds the most of the needed columns."""

    def columns(delimiter: str) -> list[str]:
        return next(csv.reader(text.splitlines(), delimiter=delimiter, skipinitialspace=True), [])

    delimiter = max(DELIMITERS, key=lambda mark: len(set(COLUMNS) & set(columns(mark))))
    if delimiter != ",":
        warnings.warn(
            f"{table}: the delimiter is {DELIMITERS[delimiter]}, not a comma; it is read that way", stacklevel=2
        )
    return list(csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True)), columns(
        delimiter
    )


def _entries(table: Path, rows: list[dict[str, str]]) -> tuple[list[ImageEntry], list[Problem]]:
    blank = [str(line) for line, row in enumerate(rows, 2) if not all(row[name] for name in COLUMNS)]
    entries = [
        ImageEntry(table.parent / row["path"], row["label"].strip(), row["client"].strip(), f"row {line} of {table}")
        for line, row in enumerate(rows, 2)
        if all(row[name] for name in COLUMNS) and not _is_resource(Path(row["path"]))
    ]
    absent = [str(entry.path) for entry in entries if not entry.path.is_file()]
    without, fill = "these images have no class or no client", "fill in path, label and client"
    missing = f"{counted(len(absent), 'missing file')} in {table}: "
    return [entry for entry in entries if entry.path.is_file()], [
        *_problems(f"{table} has blank cells in row ", blank, without, fill),
        *_problems(missing, absent, "the clients would lack them", "correct the paths, which start at the table"),
    ]


def _problems(cause: str, names: Sequence[str], consequence: str, remedy: str) -> list[Problem]:
    return [Problem(f"{cause}{first_few(names)}", consequence, remedy)] if names else []


def _folders(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".") and p.name != "__MACOSX")


def _is_resource(path: Path) -> bool:
    """Whether a file is one that macOS keeps beside another for its attributes: `._x.png` beside `x.png`."""
    return path.name.startswith("._")


def warn_of_single_labels(entries: Sequence[ImageEntry]) -> None:
    """Name labels that a single image has, such as misspelt ones."""
    counts = Counter(entry.label for entry in entries)
    single = [f"{entry.label} ({entry.source})" for entry in entries if counts[entry.label] == 1]
    if single:
        warnings.warn(
            f"{counted(len(single), 'label')} with 1 image: {first_few(single)}. Each becomes a class that is "
            "either never trained or never tested. Remedy: correct the label, add images or remove the image.",
            stacklevel=2,
        )


def read_images(entries: Sequence[ImageEntry], size: int, grayscale: bool) -> tuple[Tensor, list[Problem]]:
    """(n, size, size, channels) uint8 images, and the problem of the files that are no images."""
    images = torch.zeros(len(entries), size, size, 1 if grayscale else 3, dtype=torch.uint8)
    broken = []
    for place, entry in enumerate(tqdm(entries, "reading images", disable=len(entries) <= MANY_IMAGES)):
        try:
            with Image.open(entry.path) as picture:
                scaled = picture.convert("L" if grayscale else "RGB").resize((size, size), Image.Resampling.BILINEAR)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
            broken.append(str(entry.path))
            continue
        images[place] = torch.from_numpy(np.array(scaled)).view(images.shape[1:])
    cause = f"{counted(len(broken), 'unreadable image')}: "
    return images, _problems(cause, broken, "the clients would lack them", "replace or remove these files")


def channel_statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel of uint8 images, on the 0..1 scale; 1 where a channel is constant."""
    values = torch.arange(256, dtype=torch.float64) / 255
    means, stds = [], []
    for channel in images.unbind(-1):
        weights = torch.bincount(channel.flatten(), minlength=256).double()
        weights /= weights.sum()
        mean = (weights * values).sum()
        means.append(float(mean))
        stds.append(float((weights * (values - mean) ** 2).sum().sqrt()) or 1.0)
    return tuple(means), tuple(stds)


def _numbered(names: Sequence[str]) -> tuple[tuple[str, ...], Tensor]:
    """The distinct names, whole numbers in the order of their value, and the place of each name among them."""
    distinct = sorted(set(names), key=lambda name: (0, int(name), name) if name.isdecimal() else (1, 0, name))
    place = {name: number for number, name in enumerate(distinct)}
    return tuple(distinct), torch.tensor([place[name] for name in names], dtype=torch.int64)
