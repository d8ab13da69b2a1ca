"""FEMNIST: handwritten digits and letters with the writer of each (LEAF)."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from app.common.errors import Problem, UserError, raise_all
from app.common.wording import counted
from datamodules.base import FederatedDataModule, RawData
from datamodules.partitions import Partition, Staircase

CLASSES = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
SIDE = 28
LEAF_COMMAND = "./preprocess.sh -s niid --sf 0.2 -k 300 -t user --smplseed 0 --spltseed 0"
"""How MaPP-FL and the taxonomy make FEMNIST, run in LEAF's folder data/femnist."""


class FEMNIST(FederatedDataModule):
    """FEMNIST: digits and letters in 62 classes, 28x28 grey, each with its writer.

    White paper is 1 and ink is 0, as LEAF has it. By default, clients are the groups of writers of MaPP-FL.

    Args:
        source: an .npz file with images, labels, writers and split (0 train, 1 test), or a folder as LEAF writes it,
            with train/*.json and test/*.json.
        drop_duplicates: keep one of identical images of a writer, the training one first. LEAF stores the first image
            of nearly every writer twice, which may put a training image into the test set.
        unseen_writers: refuse data whose test writers are also training writers: MaPP-FL tests on unseen writers
            (LEAF's `-t user`), and known handwriting is easier.
    """

    def __init__(
        self,
        source: str = "data/femnist.npz",
        drop_duplicates: bool = False,
        unseen_writers: bool = False,
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        self.source = source
        self.drop_duplicates = drop_duplicates
        self.unseen_writers = unseen_writers

    def usual_partition(self) -> Partition:
        return Staircase()

    def load(self) -> RawData:
        path = Path(self.source)
        if not path.exists():
            raise UserError.of(
                f"no FEMNIST at {path}",
                "there is no data to train on",
                "let --data.source name an .npz file with writers, or LEAF's folder with train/ and test/",
            )
        data = read_leaf(path) if path.is_dir() else read_npz(path)
        if self.unseen_writers:
            raise_all(_seen_writers(path, data))
        if self.drop_duplicates:
            data = without_duplicates(data)
        images = torch.from_numpy(np.ascontiguousarray(data.images)).unsqueeze(-1)
        labels, test, owners = (torch.from_numpy(array) for array in (data.labels, data.test, data.writers))
        described = {"class_names": CLASSES, "mean": (0.9652,), "std": (0.1559,), "owner_names": data.writer_names}
        return RawData.divided(images, labels, test, owners, **described)


@dataclass(frozen=True, eq=False)
class Handwriting:
    """Samples with their writers."""

    images: np.ndarray  # (n, 28, 28) uint8, 255 = white paper
    labels: np.ndarray  # (n,) int64: digits 0-9, capitals 10-35, small letters 36-61
    writers: np.ndarray  # (n,) int64 positions in writer_names
    test: np.ndarray  # (n,) bool, True for the common test set
    writer_names: tuple[str, ...]  # LEAF's names


_LeafWriter = tuple[str, bool, np.ndarray, np.ndarray]
"""Name of a writer, whether the samples are of the test set, images and labels."""


def read_npz(path: Path) -> Handwriting:
    """Samples of an .npz file with images, labels, writers, split and, optionally, writer_names."""
    try:
        with np.load(path, allow_pickle=False) as file:
            missing = [key for key in ("images", "labels", "writers", "split") if key not in file]
            arrays = {key: file[key] for key in file.files if not key.startswith("aux_")} if not missing else {}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        remedy = "let --data.source name an .npz file or LEAF's folder"
        raise UserError.of(f"{path} cannot be read: {error}", "there is no data to train on", remedy) from error
    raise_all(_npz_problems(path, missing, arrays))
    writers = arrays["writers"].astype(np.int64)
    names = arrays.get("writer_names", np.arange(writers.max(initial=-1) + 1))
    labels = arrays["labels"].astype(np.int64)
    return Handwriting(arrays["images"], labels, writers, arrays["split"] == 1, tuple(str(name) for name in names))


def _npz_problems(path: Path, missing: Sequence[str], arrays: dict[str, np.ndarray]) -> Iterator[Problem]:
    consequence = "the samples cannot be dealt to writers"
    if missing:
        remedy = "save these arrays with numpy.savez: images, labels, writers, split"
        yield Problem(f"{path} has no {', '.join(missing)}", consequence, remedy)
        return
    images = arrays["images"]
    if images.dtype != np.uint8 or images.shape[1:] != (SIDE, SIDE):
        cause = f"images in {path} are {images.dtype} of shape {images.shape}"
        yield Problem(cause, "they are no FEMNIST images", f"save them as uint8 (n, {SIDE}, {SIDE})")
    lengths = {key: len(arrays[key]) for key in ("images", "labels", "writers", "split")}
    if len(set(lengths.values())) > 1:
        cause = f"arrays in {path} differ in length: {lengths}"
        yield Problem(cause, consequence, "save one label, writer and split per image")
    highest = int(arrays["writers"].max(initial=0))
    if "writer_names" in arrays and len(arrays["writer_names"]) <= highest:
        cause = f"writers in {path} go up to {highest}, writer_names has {len(arrays['writer_names'])}"
        yield Problem(cause, "some writers have no name", "save one name per writer, or no writer_names")


def read_leaf(folder: Path) -> Handwriting:
    """Samples of train/*.json and test/*.json, white = 1 there, rounded to the 256 grey values LEAF starts from."""
    problems: list[Problem] = []
    writers: list[_LeafWriter] = []
    for part in ("train", "test"):
        files = sorted((folder / part).glob("*.json"))
        if not files:
            remedy = "let --data.source name the folder that holds train/ and test/"
            problems.append(Problem(f"no .json file in {folder / part}", f"there is no {part} set", remedy))
        for file in files:
            problems += _read_file(file, part == "test", writers)
    raise_all(problems)
    names, tests, images, labels = zip(*writers, strict=True)
    sizes = [len(own) for own in labels]
    distinct, numbers = np.unique(names, return_inverse=True)
    return Handwriting(
        images=np.concatenate(images),
        labels=np.concatenate(labels),
        writers=np.repeat(numbers.astype(np.int64), sizes),
        test=np.repeat(tests, sizes),
        writer_names=tuple(distinct.tolist()),
    )


def _read_file(file: Path, test: bool, writers: list[_LeafWriter]) -> Iterator[Problem]:
    """Append the writers of one file; yields its problems."""
    remedy = "make the file again with LEAF's preprocess.sh, or take it out of the folder"
    try:
        users: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))["user_data"]
        pairs = [(name, user["x"], user["y"]) for name, user in users.items()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        cause = f"{file} is no LEAF file: {type(error).__name__} {error}"
        yield Problem(cause, "its writers would be missing", remedy)
        return
    for name, pixels, labels in pairs:
        try:
            writers.append((name, test, _grey(pixels, len(labels)), np.array(labels, dtype=np.int64)))
        except (ValueError, TypeError) as error:
            yield Problem(f"writer {name} in {file}: {error}", "its samples cannot be used", remedy)


def _grey(pixels: list[list[float]], count: int) -> np.ndarray:
    """(count, 28, 28) uint8 from `count` lists of 784 numbers in 0..1; ValueError where they are not."""
    if len(pixels) != count:
        raise ValueError(f"{counted(len(pixels), 'image')} and {counted(count, 'label')}")
    values = np.array(pixels, dtype=np.float32).reshape(count, SIDE, SIDE)
    if not np.all((values >= 0) & (values <= 1)):
        raise ValueError("pixels outside 0..1")
    return np.rint(values * 255).astype(np.uint8)


def _seen_writers(path: Path, data: Handwriting) -> Iterator[Problem]:
    """Test writers who are training writers, too."""
    seen = np.intersect1d(data.writers[data.test], data.writers[~data.test])
    if len(seen):
        shown = ", ".join(data.writer_names[writer] for writer in seen[:3]) + (" ..." if len(seen) > 3 else "")
        yield Problem(
            f"{len(seen)} of {len(np.unique(data.writers[data.test]))} test writers in {path} are training writers, "
            f"too: {shown}",
            "the test set would measure known handwriting, and its accuracies would be above the papers', who test on "
            "unseen writers",
            f"make the data with LEAF: cd data/femnist && {LEAF_COMMAND}; or accept known writers with "
            "--data.unseen_writers false",
        )


def without_duplicates(data: Handwriting) -> Handwriting:
    """One of each group of samples with the same writer, label and pixels, a training one where there is one."""
    order = np.argsort(data.test, kind="stable")
    keys = np.column_stack([data.writers, data.labels]).astype(np.int64).view(np.uint8)
    rows = np.column_stack([keys, data.images.reshape(len(data.images), -1)])[order]
    first = np.unique(np.ascontiguousarray(rows).view(f"V{rows.shape[1]}").ravel(), return_index=True)[1]
    kept = np.sort(order[first])
    columns = {name: getattr(data, name)[kept] for name in ("images", "labels", "writers", "test")}
    return replace(data, **columns)
