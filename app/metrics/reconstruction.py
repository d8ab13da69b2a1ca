"""Scores of reconstructed images: one-to-one matching with the true images, and baselines that read no update.

Images are (number, channels, height, width) on the pixel scale, where 0 is black and 1 is white.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from app.metrics.image_similarity import HIGHEST_PSNR, pearson_matrix, psnr, psnr_matrix, ssim
from app.metrics.intervals import Estimate, wilson

RECOVERED = 0.98
"""Pearson correlation from which an image counts as recovered."""

UNMATCHED = -1
"""In place of a position, for an image without a matched candidate."""


@dataclass(frozen=True)
class ImageScore:
    """Similarity of one true image and its reconstruction."""

    client: int  # client that trained on it
    sample: int  # sample id
    label: int  # class
    pearson: float  # -1 to 1, on unclipped values; 0 without a reconstruction
    psnr: float  # dB, on values clipped to 0..1; without a reconstruction, that of a mid-grey image
    ssim: float  # -1 to 1, on values clipped to 0..1; 0 without a reconstruction
    candidate: int  # position of its reconstruction among the candidates, or UNMATCHED

    @property
    def recovered(self) -> bool:
        return self.pearson >= RECOVERED


@dataclass(frozen=True)
class Similarity:
    """Similarity of the reconstructions: mean over all true images, matched or not, and that of the best image."""

    pearson_mean: float
    pearson_best: float
    psnr_mean: float
    psnr_best: float
    ssim_mean: float
    ssim_best: float
    recovered: int  # number of images with a Pearson correlation of RECOVERED or more
    of: int  # number of true images, 1 or more

    @classmethod
    def over(cls, scores: Sequence[ImageScore]) -> Similarity:
        pearson, psnr_, ssim_ = ([getattr(score, name) for score in scores] for name in ("pearson", "psnr", "ssim"))
        return cls(
            *(fmean(pearson), max(pearson), fmean(psnr_), max(psnr_), fmean(ssim_), max(ssim_)),
            *(sum(score.recovered for score in scores), len(scores)),
        )

    @property
    def recovered_share(self) -> Estimate:
        """Share of images recovered, 0 to 1, with Wilson's interval."""
        return Estimate(self.recovered / self.of, wilson(self.recovered, self.of))


@dataclass(frozen=True)
class Null:
    """Similarity that images reach which do not depend on any update."""

    name: str
    similarity: Similarity


@dataclass(frozen=True)
class Reconstruction:
    """Scores of one attack."""

    oracle: Similarity  # best match: every image with its best candidate, chosen with knowledge of the truth
    blind: Similarity  # attacker's choice: the same, but only among the candidates that the attacker would choose
    nulls: tuple[Null, ...]  # best match of baselines that read no update
    candidates: int  # number of candidates
    per_image: tuple[ImageScore, ...]  # scores of the best match, in the order of the true images

    @property
    def strongest_null(self) -> Null | None:
        """The baseline with the largest mean correlation; None without baselines."""
        return max(self.nulls, key=lambda null: null.similarity.pearson_mean, default=None)

    @property
    def beats_guessing(self) -> bool | None:
        """Whether the mean correlation exceeds that of the strongest baseline; None without baselines."""
        strongest = self.strongest_null
        return None if strongest is None else self.oracle.pearson_mean > strongest.similarity.pearson_mean


@dataclass(frozen=True)
class LegacyScores:
    """Scores as the published code computes them: best over all images and candidates; NaN without candidates."""

    pearson: float  # largest correlation of any image and any candidate
    psnr: float  # dB, largest of any image and any candidate, which need not be those of `pearson`
    recovered: int  # images with a candidate of correlation RECOVERED or more; one candidate may count for several


def score_reconstruction(
    truth: Tensor,
    keys: Sequence[tuple[int, int, int]],
    candidates: Tensor,
    chosen: Tensor,
    nulls: Mapping[str, Tensor],
) -> Reconstruction:
    """Score candidates against the true images, matched one to one.

    The assignment maximises the sum of the correlations (Hungarian method). Candidates with a correlation of 0 or less
    are not assigned, so that a further candidate never lowers the sum.

    Args:
        truth: (n, channels, height, width), n at least 1.
        keys: client, sample and label of each true image; pairs of client and sample are unique.
        candidates: (m, channels, height, width), finite, m 0 or more.
        chosen: positions of the attacker's choice, unique; only the first n count.
        nulls: images of the baselines, by name.
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
    """The reconstruction of every image in `per_image` scores, clipped to 0..1; NaN where there is none."""
    matched = torch.full((len(scores), *candidates.shape[1:]), torch.nan)
    for row, score in enumerate(scores):
        if score.candidate != UNMATCHED:
            matched[row] = candidates[score.candidate].float().clamp(0, 1)
    return matched


def legacy_scores(truth: Tensor, candidates: Tensor) -> LegacyScores:
    """Scores as published, on unclipped values, of (n, ...) true images and (m, ...) candidates."""
    if not len(candidates):
        return LegacyScores(math.nan, math.nan, 0)
    best = pearson_matrix(truth, candidates).max(dim=1).values
    return LegacyScores(best.max().item(), psnr_matrix(truth, candidates).max().item(), int((best >= RECOVERED).sum()))


def _matched_scores(truth: Tensor, keys: Sequence[tuple[int, int, int]], candidates: Tensor) -> tuple[ImageScore, ...]:
    """Scores of every image with the candidate that is assigned to it."""
    clipped, offered = truth.double().clamp(0, 1), candidates.clamp(0, 1)
    pearson = pearson_matrix(truth, candidates)
    # a little PSNR breaks ties between candidates of equal correlation, such as scaled copies
    worth = torch.where(pearson > 0, pearson + 1e-9 * psnr_matrix(clipped, offered) / HIGHEST_PSNR, 0.0)
    images, places = (torch.from_numpy(part) for part in linear_sum_assignment(worth.cpu().numpy(), maximize=True))
    matched = pearson[images, places] > 0
    images, places = images[matched], places[matched]
    none = torch.zeros(len(truth), dtype=torch.float64)
    columns = (
        none.index_put((images,), pearson[images, places]),
        psnr(clipped, torch.full_like(clipped, 0.5)).index_put((images,), psnr(clipped[images], offered[places])),
        none.index_put((images,), ssim(clipped[images], offered[places])),
        torch.full((len(truth),), UNMATCHED).index_put((images,), places),
    )
    rows = zip(keys, *(column.tolist() for column in columns), strict=True)
    return tuple(ImageScore(client, sample, label, *values) for (client, sample, label), *values in rows)
