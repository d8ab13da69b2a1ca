"""Files of reconstructions: images as arrays, everything else as JSON, and a picture, all by the result's label."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from app.attacks.reconstruction.base import ImagePairs, ReconstructionConditions, ReconstructionFinding
from app.errors import UserError
from app.files import json_text, npz_bytes, replace_all, write_figure
from app.metrics.intervals import Interval
from app.metrics.membership import NotAvailable
from app.metrics.reconstruction import Reconstruction
from app.results.run.files import restored, result_path, unreadable

PREFIX = "attacks/reconstruction"
"""Folder within the run's, and first part of every name in summaries."""


@dataclass(frozen=True)
class ReconstructionRecord:
    """A finding without its images: what a reader of the run folder gets back.

    Attributes:
        conditions: who attacked what.
        result: the scores, or why there are none.
        details: further numbers by name.
        seconds: how long the attack took.
        failed: whether the attack broke down.
    """

    conditions: ReconstructionConditions
    result: Reconstruction | NotAvailable
    details: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    failed: bool = False

    @classmethod
    def of(cls, finding: ReconstructionFinding) -> ReconstructionRecord:
        """The record of a finding."""
        return cls(finding.conditions, finding.result, dict(finding.details), finding.seconds, finding.failed)

    @property
    def label(self) -> str:
        """Name of the result, unique in its folder."""
        return self.conditions.label

    @property
    def numbers(self) -> dict[str, float]:
        """Every number that is available, by name; `share` is a fraction, `psnr` in dB with data range 1."""
        found = dict(_numbers(self.result)) if isinstance(self.result, Reconstruction) else {}
        found |= {f"details/{name}": value for name, value in self.details.items()} | {"seconds": self.seconds}
        return {name: number for name, number in found.items() if math.isfinite(number)}


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


class ReconstructionFiles:
    """Reconstructions from one run; a later result of the same label takes the place of the earlier one."""

    def __init__(self, folder: Path) -> None:
        """Keep results in a folder, which is made when the first one comes.

        Args:
            folder: `attacks/reconstruction` in the run folder.
        """
        self.folder = folder

    def write(self, finding: ReconstructionFinding) -> None:
        """Keep a finding: images in `<label>.npz` where there are any, the rest in `<label>.json`."""
        record = ReconstructionRecord.of(finding)
        text, images, picture = (self._path(record.label, kind) for kind in ("json", "npz", "png"))
        contents = {} if finding.pairs is None else {images: _packed(finding.pairs)}
        plain = {"label": record.label, "numbers": record.numbers, **asdict(record)}
        contents[text] = json_text(plain).encode()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_all(contents)
            for path in {images, picture} - set(contents):  # of an earlier result
                path.unlink(missing_ok=True)
        except OSError as error:
            raise UserError.of(
                f"cannot write {text}: {error.strerror or error}",
                "this result is lost; those that were written before are kept",
                "free some space, then repeat the attack",
            ) from error

    def write_picture(self, label: str, figure: Figure) -> Path:
        """Keep the picture of a result in `<label>.png`; returns its path."""
        path = self._path(label, "png")
        write_figure(path, figure)
        return path

    def images(self, label: str) -> KeptImages:
        """Images of one result.

        Raises:
            UserError: where there are none, or they cannot be read.
        """
        path = self._path(label, "npz")
        try:
            with np.load(path, allow_pickle=False) as arrays:
                return KeptImages(arrays["originals"], arrays["reconstructions"], arrays["keys"])
        except FileNotFoundError as error:
            cause = f"{self.folder} holds no images of {label}"
            remedy = f"run that attack on this run first; {label}.json says why, if it gave none"
            raise UserError.of(cause, "there is nothing to show", remedy) from error
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            raise unreadable(path, error) from error

    def records(self) -> list[ReconstructionRecord]:
        """All results, by label."""
        return sorted(map(read_reconstruction, self.paths()), key=lambda record: record.label)

    def paths(self) -> list[Path]:
        """Files of all results, images left out, by name."""
        return sorted(self.folder.glob("*.json"))

    def summary(self) -> dict[str, float]:
        """All available numbers of all results under `attacks/reconstruction/<label>/<name>`."""
        return {
            f"{PREFIX}/{record.label}/{name}": number
            for record in self.records()
            for name, number in record.numbers.items()
        }

    def _path(self, label: str, kind: str) -> Path:
        return result_path(self.folder, label, kind)


def _numbers(found: Reconstruction) -> Iterator[tuple[str, float]]:
    """Names and values of all that was measured."""
    for name in ("pearson", "psnr", "ssim"):
        for front, similarity in (("", found.oracle), ("blind_", found.blind)):
            yield f"{front}{name}", getattr(similarity, f"{name}_mean")
            yield f"{front}{name}_best", getattr(similarity, f"{name}_best")
    for front, similarity in (("", found.oracle), ("blind_", found.blind)):
        share = similarity.recovered_share
        yield from ((f"{front}recovered", similarity.recovered), (f"{front}share", share.value))
        if isinstance(share.interval, Interval):
            yield from ((f"{front}share_low", share.interval.low), (f"{front}share_high", share.interval.high))
    yield from (("images", found.oracle.of), ("candidates", found.candidates))
    if strongest := found.strongest_null:
        yield "strongest_null", strongest.similarity.pearson_mean
    yield from ((f"null/{null.name}", null.similarity.pearson_mean) for null in found.nulls)


def _packed(pairs: ImagePairs) -> bytes:
    """The images and their keys as the content of an npz file."""
    truth = pairs.truth
    keys = np.stack([part.cpu().numpy() for part in (truth.clients, truth.samples, truth.labels)], axis=1)
    originals, found = (images.float().cpu().numpy() for images in (truth.images, pairs.reconstructions))
    return npz_bytes({"originals": originals, "reconstructions": found, "keys": keys.astype(np.int64)})


def read_reconstruction(path: Path) -> ReconstructionRecord:
    """One result from its file.

    Raises:
        UserError: where it cannot be read.
    """
    try:
        record: ReconstructionRecord = restored(ReconstructionRecord, json.loads(path.read_text()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise unreadable(path, error) from error
    return record
