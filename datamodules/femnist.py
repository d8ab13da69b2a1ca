"""FEMNIST: handwritten digits and letters with the writer of each (LEAF)."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from app.errors import Problem, UserError, raise_all
from datamodules.base import FederatedDataModule, RawData
from datamodules.leaf import SIDE, Handwriting, read_leaf
from datamodules.partitions import Partition, Staircase

CLASSES = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")


class FEMNIST(FederatedDataModule):
    """FEMNIST: digits and letters in 62 classes, 28x28 grey, each with its writer.

    White paper is 1 and ink is 0, as LEAF has it. Unless told otherwise, clients are the groups of writers of MaPP-FL.

    Args:
        source: an .npz file with images, labels, writers and split (0 train, 1 test), or a folder as LEAF writes it,
            with train/*.json and test/*.json.
        drop_duplicates: keep one of identical images of a writer, the training one first. LEAF stores the first image
            of nearly every writer twice, which may put a training image into the test set.
        shared: settings of every data module.
    """

    def __init__(self, source: str = "data/femnist.npz", drop_duplicates: bool = False, **shared: Any) -> None:
        super().__init__(**shared)
        self.source = source
        self.drop_duplicates = drop_duplicates

    def usual_partition(self) -> Partition:
        """MaPP-FL's ten clients of 3, 6, ..., 27 writers and the rest."""
        return Staircase()

    def load(self) -> RawData:
        """Training part as the pool, test part as the common test set."""
        path = Path(self.source)
        if not path.exists():
            raise UserError.of(
                f"no FEMNIST at {path}",
                "there is no data to train on",
                "let --data.source name an .npz file with writers, or LEAF's folder with train/ and test/",
            )
        data = read_leaf(path) if path.is_dir() else read_npz(path)
        if self.drop_duplicates:
            data = without_duplicates(data)
        return _raw(data)


def read_npz(path: Path) -> Handwriting:
    """Samples of an .npz file with images, labels, writers, split and, if it likes, writer_names."""
    try:
        with np.load(path, allow_pickle=False) as file:
            missing = [key for key in ("images", "labels", "writers", "split") if key not in file]
            found = {key: file[key] for key in file.files if not key.startswith("aux_")} if not missing else {}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        remedy = "let --data.source name an .npz file or LEAF's folder"
        raise UserError.of(f"{path} cannot be read: {error}", "there is no data to train on", remedy) from error
    raise_all(_npz_problems(path, missing, found))
    writers = found["writers"].astype(np.int64)
    names = found.get("writer_names", np.arange(writers.max(initial=-1) + 1))
    labels = found["labels"].astype(np.int64)
    return Handwriting(found["images"], labels, writers, found["split"] == 1, tuple(str(name) for name in names))


def _npz_problems(path: Path, missing: Sequence[str], found: dict[str, np.ndarray]) -> list[Problem]:
    consequence = "the samples cannot be dealt to writers"
    if missing:
        remedy = "save these arrays with numpy.savez: images, labels, writers, split"
        return [Problem(f"{path} has no {', '.join(missing)}", consequence, remedy)]
    problems = []
    images = found["images"]
    if images.dtype != np.uint8 or images.shape[1:] != (SIDE, SIDE):
        cause = f"images in {path} are {images.dtype} of shape {images.shape}"
        problems.append(Problem(cause, "they are no FEMNIST images", f"save them as uint8 (n, {SIDE}, {SIDE})"))
    lengths = {key: len(found[key]) for key in ("images", "labels", "writers", "split")}
    if len(set(lengths.values())) > 1:
        cause = f"arrays in {path} differ in length: {lengths}"
        problems.append(Problem(cause, consequence, "save one label, writer and split per image"))
    highest = int(found["writers"].max(initial=0))
    if "writer_names" in found and len(found["writer_names"]) <= highest:
        cause = f"writers in {path} go up to {highest}, writer_names has {len(found['writer_names'])}"
        problems.append(Problem(cause, "some writers have no name", "save one name per writer, or no writer_names"))
    return problems


def without_duplicates(data: Handwriting) -> Handwriting:
    """One of each group of samples with the same writer, label and pixels, a training one where there is one."""
    order = np.argsort(data.test, kind="stable")
    keys = np.column_stack([data.writers, data.labels]).astype(np.int64).view(np.uint8)
    rows = np.column_stack([keys, data.images.reshape(len(data.images), -1)])[order]
    first = np.unique(np.ascontiguousarray(rows).view(f"V{rows.shape[1]}").ravel(), return_index=True)[1]
    kept = np.sort(order[first])
    columns = {name: getattr(data, name)[kept] for name in ("images", "labels", "writers", "test")}
    return replace(data, **columns)


def _raw(data: Handwriting) -> RawData:
    images = torch.from_numpy(np.ascontiguousarray(data.images)).unsqueeze(-1)
    labels, owners = torch.from_numpy(data.labels), torch.from_numpy(data.writers)
    test = torch.from_numpy(data.test)
    return RawData.divided(
        images, labels, test, owners, class_names=CLASSES, mean=(0.9652,), std=(0.1559,), owner_names=data.writer_names
    )
