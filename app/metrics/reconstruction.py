"""How alike reconstructed images and true ones are, one reconstruction for one image, beside what a guess would reach.

Images are (number, channels, height, width) on the pixel scale, where 0 is black and 1 is white.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from app.metrics.image_similarity import HIGHEST_PSNR, pearson_matrix, psnr, psnr_matrix, ssim
from app.metrics.intervals import Estimate, wilson

RECOVERED = 0.98
"""Pearson correlation from which an image counts as recovered."""

UNMATCHED = -1
"""Position of the candidate of an image that has none."""

MID_GREY = 0.5

TIE = 1e-9
"""Weight of PSNR in matching: it decides only between candidates of equal correlation, as scaled copies are."""


@dataclass(frozen=True)
class ImageScore:
    """How alike one true image and its reconstruction are.

    Attributes:
        client: who trained on it.
        sample: its sample id.
        label: its class.
        pearson: -1 to 1 on uncut values; 0 without a reconstruction.
        psnr: dB on values cut to 0 to 1; without a reconstruction, that of a mid-grey image.
        ssim: -1 to 1 on values cut to 0 to 1; 0 without a reconstruction.
        candidate: position of its reconstruction among the candidates, UNMATCHED where there is none.
    """

    client: int
    sample: int
    label: int
    pearson: float
    psnr: float
    ssim: float
    candidate: int

    @property
    def recovered(self) -> bool:
        """Whether the reconstruction shows the image."""
        return self.pearson >= RECOVERED


@dataclass(frozen=True)
class Similarity:
    """Likeness of all images and their reconstructions; every mean is over all true images, matched or not.

    Attributes:
        pearson_mean: mean Pearson correlation.
        pearson_best: of the best image.
        psnr_mean: dB, data range 1.
        psnr_best: dB, data range 1.
        ssim_mean: mean structural similarity.
        ssim_best: of the best image.
        recovered: images with a Pearson correlation of RECOVERED or more.
        of: number of true images, 1 or more.
    """

    pearson_mean: float
    pearson_best: float
    psnr_mean: float
    psnr_best: float
    ssim_mean: float
    ssim_best: float
    recovered: int
    of: int

    @classmethod
    def over(cls, scores: Sequence[ImageScore]) -> Similarity:
        """Means, best values and the number recovered, of 1 or more images in any order."""
        pearson, psnr_, ssim_ = ([getattr(score, name) for score in scores] for name in ("pearson", "psnr", "ssim"))
        return cls(
            *(_mean(pearson), max(pearson), _mean(psnr_), max(psnr_), _mean(ssim_), max(ssim_)),
            *(sum(score.recovered for score in scores), len(scores)),
        )

    @property
    def recovered_share(self) -> Estimate:
        """Share of images recovered, 0 to 1, with Wilson's interval."""
        return Estimate(self.recovered / self.of, wilson(self.recovered, self.of))


@dataclass(frozen=True)
class Null:
    """What images reach that were not taken from anything the attack read."""

    name: str
    similarity: Similarity


@dataclass(frozen=True)
class Reconstruction:
    """Scores of one attack.

    Attributes:
        oracle: every image with the candidate that suits best, chosen by somebody who knows the truth.
        blind: the same, of the candidates alone that the attacker would show.
        nulls: what guesses reach when they are chosen like `oracle`.
        candidates: number of candidates.
        per_image: scores behind `oracle`, in the order of the true images.
    """

    oracle: Similarity
    blind: Similarity
    nulls: tuple[Null, ...]
    candidates: int
    per_image: tuple[ImageScore, ...]

    @property
    def strongest_null(self) -> Null | None:
        """The guess with the largest mean correlation; None where nothing was guessed."""
        return max(self.nulls, key=lambda null: null.similarity.pearson_mean, default=None)

    @property
    def beats_guessing(self) -> bool | None:
        """Whether the mean correlation exceeds that of the strongest guess; None where nothing was guessed."""
        strongest = self.strongest_null
        return None if strongest is None else self.oracle.pearson_mean > strongest.similarity.pearson_mean


@dataclass(frozen=True)
class LegacyScores:
    """Scores of one trial as published: best values over images, each image with any candidate; NaN without candidates.

    Attributes:
        pearson: largest correlation of any image and any candidate.
        psnr: dB, largest of any image and any candidate, which need not be those of `pearson`.
        recovered: images that some candidate shows; one candidate may count for several.
    """

    pearson: float
    psnr: float
    recovered: int


def score_reconstruction(
    truth: Tensor,
    keys: Sequence[tuple[int, int, int]],
    candidates: Tensor,
    chosen: Tensor,
    nulls: Mapping[str, Tensor],
) -> Reconstruction:
    """Score candidates against the true images, one for one.

    Candidates are assigned so that the sum of the correlations is largest. An image stays without one rather than being
    given one with a correlation of 0 or less, so that a further candidate never lowers the sum.

    Args:
        truth: (n, channels, height, width), n at least 1.
        keys: client, sample and label of each true image; no two alike in client and sample.
        candidates: (m, channels, height, width), finite, m 0 or more.
        chosen: positions of the candidates that the attacker would show, no two alike; only the first n count.
        nulls: images that were guessed, by name.
    """
    assert len(truth) == len(keys) == len({key[:2] for key in keys}) > 0
    assert len(chosen.unique()) == len(chosen), "one candidate would serve two images"
    scores = _matched_scores(truth, keys, candidates)
    shown = candidates[chosen[: len(truth)].to(candidates.device, torch.int64)]
    return Reconstruction(
        oracle=Similarity.over(scores),
        blind=Similarity.over(_matched_scores(truth, keys, shown)),
        nulls=tuple(Null(name, Similarity.over(_matched_scores(truth, keys, null))) for name, null in nulls.items()),
        candidates=len(candidates),
        per_image=scores,
    )


def matched_images(candidates: Tensor, scores: Sequence[ImageScore]) -> Tensor:
    """The reconstruction of every image, cut to 0 to 1; nan where there is none.

    Args:
        candidates: (m, channels, height, width) that were judged.
        scores: `per_image` of the result.
    """
    found = torch.full((len(scores), *candidates.shape[1:]), torch.nan)
    for row, score in enumerate(scores):
        if score.candidate != UNMATCHED:
            found[row] = candidates[score.candidate].float().clamp(0, 1)
    return found


def legacy_scores(truth: Tensor, candidates: Tensor) -> LegacyScores:
    """Best values as published: per image the best of all candidates, of the images the best, on uncut values.

    Args:
        truth: (n, channels, height, width), n at least 1.
        candidates: (m, channels, height, width), finite, m 0 or more.
    """
    if not len(candidates):
        return LegacyScores(math.nan, math.nan, 0)
    best = pearson_matrix(truth, candidates).max(dim=1).values
    return LegacyScores(best.max().item(), psnr_matrix(truth, candidates).max().item(), int((best >= RECOVERED).sum()))


def _matched_scores(truth: Tensor, keys: Sequence[tuple[int, int, int]], candidates: Tensor) -> tuple[ImageScore, ...]:
    """Every image with the candidate it is given."""
    cut, offered = truth.double().clamp(0, 1), candidates.clamp(0, 1)
    pearson = pearson_matrix(truth, candidates)
    worth = torch.where(pearson > 0, pearson + TIE * psnr_matrix(cut, offered) / HIGHEST_PSNR, 0.0)
    images, places = (torch.from_numpy(part) for part in linear_sum_assignment(worth.cpu().numpy(), maximize=True))
    given = pearson[images, places] > 0
    images, places = images[given], places[given]
    none = torch.zeros(len(truth), dtype=torch.float64)
    columns = (
        none.index_put((images,), pearson[images, places]),
        psnr(cut, torch.full_like(cut, MID_GREY)).index_put((images,), psnr(cut[images], offered[places])),
        none.index_put((images,), ssim(cut[images], offered[places])),
        torch.full((len(truth),), UNMATCHED).index_put((images,), places),
    )
    rows = zip(keys, *(column.tolist() for column in columns), strict=True)
    return tuple(ImageScore(client, sample, label, *values) for (client, sample, label), *values in rows)


def _mean(values: Sequence[float]) -> float:
    """Exact before it is rounded, so that it does not depend on the order."""
    return math.fsum(values) / len(values)
