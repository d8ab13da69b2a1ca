"""Interface of reconstruction attacks, their candidate images, and the result of one attack."""

from __future__ import annotations

import time
from abc import ABC
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from app.attacks.audit_context import AuditContext
from app.attacks.findings import explained
from app.common.errors import Problem, UserError
from app.common.ranges import Checked
from app.metrics.membership import NotAvailable
from app.metrics.reconstruction import Reconstruction
from datamodules.store import ImageStore


@dataclass(frozen=True, eq=False)
class Candidates:
    """Reconstructed images that an attacker offers, in any order; independent of the truth."""

    images: Tensor  # (candidates, channels, height, width) finite, on the pixel scale, not clipped
    confidence: Tensor  # (candidates,) the attacker's confidence in each, the higher the surer

    def __post_init__(self) -> None:
        assert self.images.dim() == 4
        assert len(self.images) == len(self.confidence)
        assert bool(torch.isfinite(self.images).all())
        assert not bool(torch.isnan(self.confidence).any())

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True, eq=False)
class Truth:
    """Training images of the attacked clients, for the evaluation only."""

    images: Tensor  # (n, channels, height, width) on the pixel scale, n at least 1
    labels: Tensor  # (n,) int64 classes
    clients: Tensor  # (n,) int64 client ids
    samples: Tensor  # (n,) int64 sample ids; a pair of client and sample occurs once

    def __post_init__(self) -> None:
        assert len(self.images) == len(self.labels) == len(self.clients) == len(self.samples) > 0
        keys = set(zip(self.clients.tolist(), self.samples.tolist(), strict=True))
        assert len(keys) == len(self), "an image is in the truth twice"

    def __len__(self) -> int:
        return len(self.images)


def to_pixels(store: ImageStore, images: Tensor) -> Tensor:
    """Normalised images (..., channels, height, width) on the pixel scale, 0..1."""
    mean, std = (value.to(images).view(-1, 1, 1) for value in (store.mean, store.std))
    return images * std + mean


def pixel_bounds(store: ImageStore) -> tuple[Tensor, Tensor]:
    """(channels,) normalised values of a black and of a white pixel."""
    return store.black, (1 - store.mean) / store.std


ReconstructionAdversary = Literal[
    "malicious server", "curious server", "colluding server", "server with participants", "anybody outside"
]


def upload_reader(audit: AuditContext, round_: int) -> ReconstructionAdversary:
    """Who reads the uploads of a round (counted from 1): a server, one that a client helps with its key, or several."""
    if audit.colluders:
        return "server with participants"
    return "colluding server" if audit.transcript.opened(round_) else "curious server"


@dataclass(frozen=True)
class ReconstructionConditions:
    """Who attacked what."""

    attack: str
    label: str  # name of the result and of its files, unique within a run
    adversary: ReconstructionAdversary
    sees: str  # what the adversary reads, in words
    round: int  # round in which, or after which, it was read; counted from 1
    clients: tuple[int, ...]  # attacked clients, ascending
    notes: tuple[str, ...] = ()  # remarks for readers: deviations from the published attack, warnings

    def adapted(self, how: str, note: str) -> ReconstructionConditions:
        """Conditions of the same attack, adapted to a defense that the adversary knows."""
        return replace(self, label=f"{self.label}-{how}", notes=(*self.notes, note))


@dataclass(frozen=True, eq=False)
class ImagePairs:
    """Training images and their reconstructions, for the figures."""

    truth: Truth
    # (n, channels, height, width) best match of each training image, clipped to 0..1; NaN where an image has none
    reconstructions: Tensor


@dataclass(frozen=True, eq=False)
class ReconstructionFinding:
    """Result of one attack."""

    conditions: ReconstructionConditions
    result: Reconstruction | NotAvailable  # the scores, or why there are none
    pairs: ImagePairs | None = None  # training images and reconstructions; None where there are none
    # further numbers by name, such as the error of the isolated update
    details: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    failed: bool = False  # whether the attack raised an unexpected error


def attempted(
    conditions: ReconstructionConditions, attempt: Callable[[], ReconstructionFinding]
) -> ReconstructionFinding:
    """Result of an attempt with its duration; where it raises an error, a result with the reason."""
    started = time.perf_counter()
    try:
        finding = attempt()
    except Exception as error:  # the results of the other attacks must not be lost
        failed = not isinstance(error, UserError)
        finding = ReconstructionFinding(conditions, NotAvailable(explained(error)), failed=failed)
    return replace(finding, seconds=time.perf_counter() - started)


class ReconstructionAttack(Checked, ABC):
    """An attack that reconstructs training images: active (malicious server) or passive."""

    name: ClassVar[str]
    """Name in options and reports."""

    def problems(self) -> Iterator[Problem]:
        """Invalid settings."""
        yield from ()
