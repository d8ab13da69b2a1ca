"""Carlini et al. 2022, LiRA: likelihood ratio of a response under models trained with and without the sample."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from app.attacks.context import AttackContext, ShadowKind
from app.attacks.membership.base import MembershipAttack, Threat
from app.attacks.model_query import ModelQuery
from app.attacks.models import AttackedModel, Ids, Responses, Shadow
from app.common.errors import UserError
from app.common.ranges import Count
from app.metrics.membership import Array

Variance = Literal["auto", "global", "sample"]
"""One variance for all samples, or one for each; `auto` depends on the number of models."""


class LiRA(MembershipAttack):
    """Likelihood ratio of two Gaussians over phi, the logit of the true class's probability.

    Args:
        variance: `global` for one variance around all samples' own means, `sample` for one per sample, `auto` for
            `sample` from 32 models per sample on.
        queries: per sample and model: the image, and random augmentations of it as in training. The score is the mean
            over them, as of spherical Gaussians over the values of all queries, of which the paper has up to 162.
    """

    shadows: ClassVar[ShadowKind]

    def __init__(self, variance: Variance = "auto", queries: Count = 1) -> None:
        if variance not in get_args(Variance):
            remedy = f"choose one of {', '.join(get_args(Variance))}"
            raise UserError.of(f"variance is {variance!r}", "the Gaussians would have no spread", remedy)
        self._variance: Variance = variance
        self._queries = queries

    def phi(self, responses: Responses) -> Array:
        """(samples,) logit of the true class's probability, any finite number."""
        return responses.margins

    def scores(self, target: AttackedModel, samples: Ids, context: AttackContext) -> Array:
        shadows = context.shadows(self.shadows)
        compare = offline_scores if self.shadows == "out" else online_scores
        scores = []
        for view in context.views(self._queries):
            values, inside = shadow_values(self.phi, samples, shadows, context.query, view)
            own = self.phi(context.query.responses(target, samples, view=view))
            scores.append(compare(own, values, inside, self._variance))
        return np.asarray(np.mean(scores, axis=0))


class LiRAOffline(LiRA):
    """Distance of phi from the mean of models without the sample, in standard deviations."""

    name = "lira-offline"
    threat = Threat(sees="logits", data="in-distribution, disjoint from the members", trains="shadow models")
    shadows = "out"


class LiRAOnline(LiRA):
    """Logarithm of the likelihood ratio of phi, in nats: models with the sample against models without it."""

    name = "lira-online"
    threat = Threat(sees="logits", data="in-distribution, and the audited samples", trains="shadow models on them")
    shadows = "in-out"


def offline_scores(target: Array, shadows: Array, inside: NDArray[np.bool_], variance: Variance = "auto") -> Array:
    """z = (phi - mean) / spread under the Gaussian of the models without the sample.

    The paper's score, log Phi(z), gives the same ranking, but rounds to 0 for all z above 38, which would tie the
    likeliest members.

    Args:
        target: (samples,) phi of the attacked model.
        shadows: (models, samples) phi of the shadows.
        inside: (models, samples) whether the shadow was trained on the sample; such shadows are left out, and a sample
            in every shadow is refused.
        variance: one for all samples, or one for each.
    """
    return _fit(target, shadows, ~inside, variance, 1, "left out by")[0]


def online_scores(target: Array, shadows: Array, inside: NDArray[np.bool_], variance: Variance = "auto") -> Array:
    """log N(phi; with the sample) - log N(phi; without it), in nats; arguments as in `offline_scores`.

    Refused where fewer than 2 shadows have a sample, or fewer than 2 do not.
    """
    z, spread = _fit(target, shadows, inside, variance, 2, "in")
    other_z, other_spread = _fit(target, shadows, ~inside, variance, 2, "left out by")
    return (-0.5 * z**2 - np.log(spread)) - (-0.5 * other_z**2 - np.log(other_spread))


def shadow_values(
    value: Callable[[Responses], Array], samples: Ids, shadows: Sequence[Shadow], query: ModelQuery, view: int = 0
) -> tuple[Array, NDArray[np.bool_]]:
    """(models, samples) values of every shadow's responses, and whether the shadow was trained on the sample.

    The view is that of `ModelQuery.responses`.
    """
    shape = (len(shadows), len(samples))
    values = [value(query.responses(shadow.model, samples, view=view)) for shadow in shadows]
    inside = [shadow.trained_on(samples) for shadow in shadows]
    return np.reshape(values, shape).astype(np.float64), np.reshape(inside, shape).astype(np.bool_)


def refuse_few(counts: NDArray[np.int64], fewest: int, models: int, where: str) -> None:
    """Raise where a sample has fewer than `fewest` of the models `in` which or `left out by` which (`where`) it is."""
    poor = int((counts < fewest).sum())
    if poor:
        raise UserError.of(
            f"{poor} of {counts.size} samples are {where} fewer than {fewest} of the {models} shadows",
            "the attack has nothing to compare the target's response with",
            "raise --shadows.count, to 6 or more and an even number",
        )


def _fit(
    target: Array, shadows: Array, chosen: NDArray[np.bool_], variance: Variance, fewest: int, where: str
) -> tuple[Array, Array]:
    """The target's distance z from the mean of the chosen models, in standard deviations, and these, above 0."""
    counts = chosen.sum(axis=0)
    # 32 models, as in the paper; on average, rounded up: where a shadow is attacked, some samples have one model less
    enough = counts.size > 0 and math.ceil(counts.mean()) >= 32 and counts.min() >= 2
    own = variance == "sample" or (variance == "auto" and enough)
    refuse_few(counts, 2 if own or np.all(counts < 2) else fewest, len(shadows), where)
    # Measured from the target's value, so that equal values are exactly 0 apart instead of a rounding error.
    apart = np.where(chosen, shadows - target, 0.0)
    means = apart.sum(axis=0) / counts
    squares = np.where(chosen, apart - means, 0.0) ** 2
    if own:
        spread = np.sqrt(squares.sum(axis=0) / (counts - 1))
    else:
        spread = np.full(counts.size, math.sqrt(squares.sum() / (counts - 1).sum()))
    spread = np.maximum(spread, 1e-6)  # below the resolution of a logit in single precision
    return -means / spread, spread
