"""Files of reconstructions: images as arrays, everything else as JSON, and a figure, all by the result's label."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from app.attacks.reconstruction.base import ImagePairs, ReconstructionConditions, ReconstructionFinding
from app.files import write_figure
from app.metrics.intervals import Interval
from app.metrics.membership import NotAvailable
from app.metrics.reconstruction import Reconstruction
from app.results.run.files import ResultFiles

PREFIX = "attacks/reconstruction"
"""Folder within the run's, and first part of every name in summaries."""


@dataclass(frozen=True)
class ReconstructionRecord:
    """A finding without its images: what a reader of the run folder gets back.

    Attributes:
        result: the scores, or why there are none.
        details: further numbers by name.
        failed: whether the attack failed with an error.
    """

    conditions: ReconstructionConditions
    result: Reconstruction | NotAvailable
    details: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    failed: bool = False

    @classmethod
    def of(cls, finding: ReconstructionFinding) -> ReconstructionRecord:
        return cls(finding.conditions, finding.result, dict(finding.details), finding.seconds, finding.failed)

    @property
    def label(self) -> str:
        return self.conditions.label

    @property
    def numbers(self) -> dict[str, float]:
        """Every number that is available, by name; `share` is a fraction, `psnr` in dB with data range 1."""
        numbers = dict(_numbers(self.result)) if isinstance(self.result, Reconstruction) else {}
        numbers |= {f"details/{name}": value for name, value in self.details.items()} | {"seconds": self.seconds}
        return {name: number for name, number in numbers.items() if math.isfinite(number)}


@dataclass(frozen=True, eq=False)
class KeptImages:
    """Images of one result, as they lie in its file.

    Attributes:
        originals: (n, channels, height, width) float32, on the pixel scale.
        reconstructions: the same shape; nan where there is none.
        keys: (n, 3) int64: client, sample id, class.
    """

    originals: NDArray[np.float32]
    reconstructions: NDArray[np.float32]
    keys: NDArray[np.int64]

    @classmethod
    def of(cls, pairs: ImagePairs) -> KeptImages:
        truth = pairs.truth
        keys = np.stack([part.cpu().numpy() for part in (truth.clients, truth.samples, truth.labels)], axis=1)
        originals, reconstructions = (tensor.float().cpu().numpy() for tensor in (truth.images, pairs.reconstructions))
        return cls(originals, reconstructions, keys.astype(np.int64))


class ReconstructionFiles(ResultFiles[ReconstructionRecord]):
    """Results of reconstructions: the folder `attacks/reconstruction` of a run, images as arrays."""

    kind = ReconstructionRecord
    prefix = PREFIX
    arrays_name = "images"

    def write(self, finding: ReconstructionFinding) -> None:
        arrays = None if finding.pairs is None else vars(KeptImages.of(finding.pairs))
        self.save(ReconstructionRecord.of(finding), arrays)

    def write_figure(self, label: str, figure: Figure) -> Path:
        """Keep the figure of a result in `<label>.png`; returns its path."""
        path = self.path(label, "png")
        write_figure(path, figure)
        return path

    def images(self, label: str) -> KeptImages:
        return KeptImages(**self.arrays(label, [part.name for part in fields(KeptImages)]))


def _numbers(result: Reconstruction) -> Iterator[tuple[str, float]]:
    for name in ("pearson", "psnr", "ssim"):
        for front, similarity in (("", result.oracle), ("blind_", result.blind)):
            yield f"{front}{name}", getattr(similarity, f"{name}_mean")
            yield f"{front}{name}_best", getattr(similarity, f"{name}_best")
    for front, similarity in (("", result.oracle), ("blind_", result.blind)):
        share = similarity.recovered_share
        yield from ((f"{front}recovered", similarity.recovered), (f"{front}share", share.value))
        if isinstance(share.interval, Interval):
            yield from ((f"{front}share_low", share.interval.low), (f"{front}share_high", share.interval.high))
    yield from (("images", result.oracle.of), ("candidates", result.candidates))
    if strongest := result.strongest_null:
        yield "strongest_null", strongest.similarity.pearson_mean
    yield from ((f"null/{null.name}", null.similarity.pearson_mean) for null in result.nulls)
