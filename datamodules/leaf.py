"""Reading what LEAF writes: json files of writers with their images as lists of numbers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from app.errors import Problem, raise_all

SIDE = 28


@dataclass(frozen=True, eq=False)
class Handwriting:
    """Samples with their writers.

    Attributes:
        images: (n, 28, 28) uint8, 255 = white paper.
        labels: (n,) int64: digits 0-9, capitals 10-35, small letters 36-61.
        writers: (n,) int64 positions in writer_names.
        test: (n,) bool, True for the common test set.
        writer_names: LEAF's names.
    """

    images: np.ndarray
    labels: np.ndarray
    writers: np.ndarray
    test: np.ndarray
    writer_names: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class _Writer:
    """One writer's samples in one file."""

    name: str
    test: bool
    images: np.ndarray
    labels: np.ndarray


def read_leaf(folder: Path) -> Handwriting:
    """Samples of train/*.json and test/*.json, white = 1 there, rounded to the 256 grey values LEAF starts from."""
    problems: list[Problem] = []
    writers: list[_Writer] = []
    for part in ("train", "test"):
        files = sorted((folder / part).glob("*.json"))
        if not files:
            remedy = "let --data.source name the folder that holds train/ and test/"
            problems.append(Problem(f"no .json file in {folder / part}", f"there is no {part} set", remedy))
        for file in files:
            problems += _read_file(file, part == "test", writers)
    raise_all(problems)
    return _joined(writers)


def _joined(writers: list[_Writer]) -> Handwriting:
    sizes = [len(writer.labels) for writer in writers]
    names, numbers = np.unique([writer.name for writer in writers], return_inverse=True)
    return Handwriting(
        images=np.concatenate([writer.images for writer in writers]),
        labels=np.concatenate([writer.labels for writer in writers]),
        writers=np.repeat(numbers.astype(np.int64), sizes),
        test=np.repeat([writer.test for writer in writers], sizes),
        writer_names=tuple(names.tolist()),
    )


def _read_file(file: Path, test: bool, writers: list[_Writer]) -> list[Problem]:
    """Append the writers of one file; return what is wrong with it."""
    remedy = "make the file again with LEAF's preprocess.sh, or take it out of the folder"
    try:
        users: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))["user_data"]
        pairs = [(name, user["x"], user["y"]) for name, user in users.items()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        cause = f"{file} is no LEAF file: {type(error).__name__} {error}"
        return [Problem(cause, "its writers would be missing", remedy)]
    problems = []
    for name, pixels, labels in pairs:
        try:
            writers.append(_Writer(name, test, _grey(pixels, len(labels)), np.array(labels, dtype=np.int64)))
        except (ValueError, TypeError) as error:
            problems.append(Problem(f"writer {name} in {file}: {error}", "its samples cannot be used", remedy))
    return problems


def _grey(pixels: list[list[float]], count: int) -> np.ndarray:
    """(count, 28, 28) uint8 from `count` lists of 784 numbers in 0..1; ValueError where they are not."""
    if len(pixels) != count:
        raise ValueError(f"{len(pixels)} images and {count} labels")
    values = np.array(pixels, dtype=np.float32).reshape(count, SIDE, SIDE)
    if not np.all((values >= 0) & (values <= 1)):
        raise ValueError("pixels outside 0..1")
    return np.rint(values * 255).astype(np.uint8)
