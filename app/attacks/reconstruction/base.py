"""Interface of reconstruction attacks, the images they return, and the result of one attack."""

from __future__ import annotations

import time
from abc import ABC
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from app.attacks.findings import explained
from app.errors import Problem, UserError
from app.metrics.membership import NotAvailable
from app.metrics.reconstruction import Reconstruction
from datamodules.store import ImageStore


@dataclass(frozen=True, eq=False)
class Candidates:
    """What an attacker takes for training images, in any order. Nothing here may depend on the truth.

    Attributes:
        images: (candidates, channels, height, width) float, finite, on the pixel scale but not cut to it.
        confidence: (candidates,) float, how sure the attacker is of each, the higher the surer.
    """

    images: Tensor
    confidence: Tensor

    def __post_init__(self) -> None:
        assert self.images.dim() == 4
        assert len(self.images) == len(self.confidence)
        assert bool(torch.isfinite(self.images).all())
        assert not bool(torch.isnan(self.confidence).any())

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True, eq=False)
class Truth:
    """What the attacked clients trained on, known to the evaluator alone; every image has its owner and its number.

    Attributes:
        images: (n, channels, height, width) float, on the pixel scale, n at least 1.
        labels: (n,) int64 classes.
        clients: (n,) int64, who trained on it.
        samples: (n,) int64 sample ids; a pair of client and sample occurs once.
    """

    images: Tensor
    labels: Tensor
    clients: Tensor
    samples: Tensor

    def __post_init__(self) -> None:
        assert len(self.images) == len(self.labels) == len(self.clients) == len(self.samples) > 0
        keys = set(zip(self.clients.tolist(), self.samples.tolist(), strict=True))
        assert len(keys) == len(self), "an image is in the truth twice"

    def __len__(self) -> int:
        return len(self.images)


def to_pixels(store: ImageStore, images: Tensor) -> Tensor:
    """Normalised images (..., channels, height, width), as networks see them, on the pixel scale."""
    mean, std = (value.to(images).view(-1, 1, 1) for value in (store.mean, store.std))
    return images * std + mean


def to_inputs(store: ImageStore, images: Tensor) -> Tensor:
    """Images (..., channels, height, width) on the pixel scale as networks see them."""
    mean, std = (value.to(images).view(-1, 1, 1) for value in (store.mean, store.std))
    return (images - mean) / std


def pixel_bounds(store: ImageStore) -> tuple[Tensor, Tensor]:
    """(channels,) values of a black and of a white pixel, as networks see them."""
    return store.black, (1 - store.mean) / store.std


ReconstructionAdversary = Literal["malicious server", "curious server", "anybody outside"]


@dataclass(frozen=True)
class ReconstructionConditions:
    """Who attacked what.

    Attributes:
        attack: name of the attack; `label` is what its files are called.
        label: unique within a run, fit for a file name.
        adversary: who attacks.
        sees: what that adversary reads, in words.
        round: round in which, or after which, it read it; counted from 1.
        clients: whose images are attacked, ascending.
        notes: what must be known to read the numbers: settings that differ from the published attack, warnings.
    """

    attack: str
    label: str
    adversary: ReconstructionAdversary
    sees: str
    round: int
    clients: tuple[int, ...]
    notes: tuple[str, ...] = ()

    def adapted(self, how: str, note: str) -> ReconstructionConditions:
        """The same attack by somebody who knows the defense and reads what was sent in another way."""
        return replace(self, label=f"{self.label}-{how}", notes=(*self.notes, note))


@dataclass(frozen=True, eq=False)
class ImagePairs:
    """Training images and their reconstructions, for the figures.

    Attributes:
        truth: images that were trained on.
        reconstructions: (n, channels, height, width) best match of each training image, clipped to 0..1; NaN where an
            image has none.
    """

    truth: Truth
    reconstructions: Tensor


@dataclass(frozen=True, eq=False)
class ReconstructionFinding:
    """One result.

    Attributes:
        conditions: who attacked what.
        result: the scores, or why there are none; never a number in place of a result that does not exist.
        pairs: training images and reconstructions; None where there are none.
        details: further numbers by name, such as how well the update was isolated.
        seconds: how long the attack took.
        failed: whether it broke down, which is not the same as finding nothing.
    """

    conditions: ReconstructionConditions
    result: Reconstruction | NotAvailable
    pairs: ImagePairs | None = None
    details: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    failed: bool = False


def attempted(
    conditions: ReconstructionConditions, attempt: Callable[[], ReconstructionFinding]
) -> ReconstructionFinding:
    """What an attempt finds, with the seconds it took; where it breaks down, a result that says so."""
    started = time.perf_counter()
    try:
        found = attempt()
    except Exception as error:  # the results of the other attacks must not be lost
        failed = not isinstance(error, UserError)
        found = ReconstructionFinding(conditions, NotAvailable(explained(error)), failed=failed)
    return replace(found, seconds=time.perf_counter() - started)


class ReconstructionAttack(ABC):
    """An attack that brings training images back: by a server that deviates, or by somebody who only looks."""

    name: ClassVar[str]
    """What it is called."""

    def problems(self) -> Iterator[Problem]:
        """What is wrong with its settings."""
        yield from ()
