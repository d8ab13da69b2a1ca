"""Results of reconstructions: images as arrays, everything else as JSON, and figures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from app.attacks.reconstruction.base import ImagePairs, ReconstructionConditions, ReconstructionFinding
from app.metrics.intervals import Interval
from app.metrics.membership import NotAvailable
from app.metrics.reconstruction import Reconstruction
from app.result import IN_MEMORY, PlainTable, Result
from app.results.attacks.reconstruction_figures import draw_reconstructions, draw_summary
from app.results.attacks.reconstruction_report import rows, table


@dataclass(frozen=True, eq=False)
class KeptImages:
    """Images of one result, as they lie in its file."""

    originals: NDArray[np.float32]  # (n, channels, height, width) float32, on the pixel scale
    reconstructions: NDArray[np.float32]  # the same shape; nan where there is none
    keys: NDArray[np.int64]  # (n, 3) int64: client, sample id, class

    @classmethod
    def of(cls, pairs: ImagePairs) -> KeptImages:
        truth = pairs.truth
        keys = np.stack([part.cpu().numpy() for part in (truth.clients, truth.samples, truth.labels)], axis=1)
        originals, reconstructions = (tensor.float().cpu().numpy() for tensor in (truth.images, pairs.reconstructions))
        return cls(originals, reconstructions, keys.astype(np.int64))


@dataclass(frozen=True, eq=False, repr=False)
class ReconstructionRecord(Result):
    """Result of one attack that reconstructs images."""

    kind = "reconstruction"
    folder = "attacks/reconstruction"
    part = "reconstruction"
    shows_data = True
    redrawn = True

    conditions: ReconstructionConditions
    result: Reconstruction | NotAvailable  # the scores, or why there are none
    details: dict[str, float] = field(default_factory=dict)  # further numbers by name
    seconds: float = 0.0
    failed: bool = False  # whether the attack failed with an error
    # training images and reconstructions of a result that was not loaded
    pairs: ImagePairs | None = field(default=None, metadata=IN_MEMORY)

    @classmethod
    def of(cls, finding: ReconstructionFinding) -> ReconstructionRecord:
        return cls(**{each.name: getattr(finding, each.name) for each in fields(cls)})

    @property
    def label(self) -> str:
        return self.conditions.label

    @property
    def numbers(self) -> dict[str, float]:
        """Every number that is available, by name; `share` is a fraction, `psnr` in dB with data range 1."""
        numbers = dict(_numbers(self.result)) if isinstance(self.result, Reconstruction) else {}
        numbers |= {f"details/{name}": value for name, value in self.details.items()} | {"seconds": self.seconds}
        return {name: number for name, number in numbers.items() if math.isfinite(number)}

    @property
    def images(self) -> KeptImages:
        """Images of a result that was loaded from its file."""
        return KeptImages(**self.stored_arrays([part.name for part in fields(KeptImages)]))

    def arrays(self) -> Mapping[str, Any] | None:
        return None if self.pairs is None else vars(KeptImages.of(self.pairs))

    def draw(self, title: str) -> Iterator[tuple[str, Figure]]:
        if self.pairs is not None and isinstance(self.result, Reconstruction):
            yield f"{self.label}.png", draw_reconstructions(self, title)

    @classmethod
    def text(cls, results: Sequence[Self]) -> str:
        return table(results)

    @classmethod
    def table(cls, results: Sequence[Self]) -> PlainTable:
        return rows(results)

    @classmethod
    def overview(cls, results: Sequence[Self], title: str) -> Iterator[tuple[str, Figure]]:
        yield f"{cls.folder}.png", draw_summary(results, title)


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
