"""Files of a run's representations: features of members and non-members in the released model and in its attack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from app.common.array_files import read_arrays
from app.result import PlainTable, Result, unreadable

ARRAYS = ("features", "labels", "members", "samples")


@dataclass(frozen=True, eq=False, repr=False)
class RepresentedSamples(Result):
    """Penultimate-layer features of some samples in the released model."""

    features: NDArray[np.float32]  # (samples, width) float32, inputs of the last linear layer
    labels: NDArray[np.int64]  # (samples,) int64, classes as the run has them
    members: NDArray[np.bool_]  # (samples,) bool, whether some client trained on the sample
    samples: NDArray[np.int64]  # (samples,) int64, sample ids

    kind = "representations"
    folder = "."
    part = "representations"
    compressed = True
    label = "representations"

    @property
    def numbers(self) -> Mapping[str, float]:
        return {"members": float(self.members.sum()), "nonmembers": float((~self.members).sum())}

    def record(self) -> dict[str, Any]:
        return {}

    def arrays(self) -> Mapping[str, Any]:
        return {name: getattr(self, name) for name in ARRAYS}

    @classmethod
    def text(cls, results: Sequence[Self]) -> str:
        return ""

    @classmethod
    def table(cls, results: Sequence[Self]) -> PlainTable:
        return PlainTable(("members", "nonmembers"), [list(one.numbers.values()) for one in results])

    @classmethod
    def paths(cls, run: Path) -> list[Path]:
        return []  # the arrays are all there is: `read_representations`


class AttackRepresentations(RepresentedSamples):
    """The same of the network that attacks the released model: what its last layer reads of evaluated samples."""

    kind = "representations in the attack network"
    part = "attack_representations"
    label = "attack-representations"


def read_representations(
    folder: Path, kind: type[RepresentedSamples] = RepresentedSamples
) -> RepresentedSamples | None:
    """Representations of one kind in a run's folder; None where there are none.

    Raises:
        UserError: where the file cannot be read.
    """
    path = kind.path(folder, kind.label, "npz")
    if not path.is_file():
        return None
    try:
        return kind(**read_arrays(path, ARRAYS))
    except (OSError, ValueError, KeyError, BadZipFile) as error:
        raise unreadable(path, error) from error
