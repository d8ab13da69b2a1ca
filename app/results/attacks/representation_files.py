"""File of a run's representations: penultimate-layer features of members and non-members in the released model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from app.files import npz_bytes, replace_all
from app.results.run.files import unreadable
from app.results.run.folder import cannot_write

NAME = "representations.npz"
"""File within the run's folder."""


@dataclass(frozen=True, eq=False)
class RepresentedSamples:
    """Penultimate-layer features of some samples.

    Attributes:
        features: (samples, width) float32, inputs of the last linear layer.
        labels: (samples,) int64, classes as the run has them.
        members: (samples,) bool, whether some client trained on the sample.
        samples: (samples,) int64, sample ids.
    """

    features: NDArray[np.float32]
    labels: NDArray[np.int64]
    members: NDArray[np.bool_]
    samples: NDArray[np.int64]


ARRAYS = ("features", "labels", "members", "samples")


def write_representations(folder: Path, represented: RepresentedSamples) -> Path:
    """Keep representations in a run's folder, which exists; returns the file's path."""
    path = folder / NAME
    try:
        replace_all({path: npz_bytes({name: getattr(represented, name) for name in ARRAYS}, compressed=True)})
    except OSError as error:
        raise cannot_write(path, error) from error
    return path


def read_representations(folder: Path) -> RepresentedSamples | None:
    """Representations in a run's folder; None where there are none.

    Raises:
        UserError: where the file cannot be read.
    """
    path = folder / NAME
    if not path.is_file():
        return None
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return RepresentedSamples(*(arrays[name] for name in ARRAYS))
    except (OSError, ValueError, KeyError, BadZipFile) as error:
        raise unreadable(path, error) from error
