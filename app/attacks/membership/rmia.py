"""Zarifzadeh et al. 2024, RMIA: likelihood ratios of a sample against those of a population of non-members."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from app.attacks.context import AttackContext, ShadowKind
from app.attacks.membership.base import MembershipAttack, Threat
from app.attacks.membership.lira import refuse_few, shadow_values
from app.attacks.models import AttackedModel, Ids, Shadow
from app.common.errors import UserError
from app.common.ranges import Count, Fraction, Multiple
from app.metrics.membership import Array, MembershipScores
from app.metrics.roc import roc_curve

OFFSETS = tuple(step / 10 for step in range(11))
"""Values of `a` that are tried."""

USUAL_OFFSET = 0.3
"""Value of `a` where it cannot be tuned, close to that of the paper's experiments on CIFAR-10."""

FINE = 1000
"""Population size from which the score is fine enough for low false positive rates."""


class RMIA(MembershipAttack):
    """Share of the population Z, 0 to 1, that a sample x dominates: p(x|target)/p(x) > gamma * p(z|target)/p(z).

    Args:
        gamma: how many times larger the ratio of a sample must be than that of a population sample; 1 or more.
        queries: per sample and model: the image, and random augmentations of it as in training. A sample dominates
            another by the vote of at least half of them; the population is queried once.
    """

    shadows: ClassVar[ShadowKind]

    def __init__(self, gamma: Multiple = 1.0, queries: Count = 1) -> None:
        self._gamma, self._queries = gamma, queries

    def _material(self, samples: Ids, context: AttackContext) -> tuple[list[Shadow], Ids]:
        """Shadows, and the part of the population that no model was trained on."""
        refuse_empty(context.knowledge.population)
        shadows = context.shadows(self.shadows)
        return shadows, unseen_population(context, samples, shadows)


class RMIAOffline(RMIA):
    """p(x) from models without the sample, with a linear correction for models trained on it.

    Args:
        gamma: how many times larger the ratio of a sample must be than that of a population sample; 1 or more.
        a: p(x) = ((1 + a) p_out(x) + 1 - a) / 2, from 0 to 1: 1 where models with the sample respond like models
            without it. Without a number, the value with the largest AUC on a shadow, by one query.
        queries: per sample and model: the image, and random augmentations of it as in training. A sample dominates
            another by the vote of at least half of them; the population is queried once.
    """

    name = "rmia-offline"
    threat = Threat(
        sees="probability of the true class",
        data="in-distribution, disjoint from the members, and a population",
        trains="shadow models",
    )
    shadows = "out"

    def __init__(self, gamma: Multiple = 1.0, a: Fraction | None = None, queries: Count = 1) -> None:
        super().__init__(gamma, queries)
        self._a = a

    def scores(self, target: AttackedModel, samples: Ids, context: AttackContext) -> Array:
        shadows, population = self._material(samples, context)
        a = tuned_offset(context, shadows, population, self._gamma) if self._a is None else self._a
        views = context.views(self._queries)
        own = voted([offline_ratios(signals_of(context, target, samples, shadows, view), a) for view in views])
        return dominance(own, offline_ratios(signals_of(context, target, population, shadows), a), self._gamma)


class RMIAOnline(RMIA):
    """p(x) from models of which half were trained on the sample."""

    name = "rmia-online"
    threat = Threat(
        sees="probability of the true class",
        data="in-distribution, a population, and the audited samples",
        trains="shadow models on them",
    )
    shadows = "in-out"

    def scores(self, target: AttackedModel, samples: Ids, context: AttackContext) -> Array:
        shadows, population = self._material(samples, context)
        views = context.views(self._queries)
        own = voted([online_ratios(signals_of(context, target, samples, shadows, view)) for view in views])
        # No model was trained on the population, so its p(z) is the mean over all of them.
        return dominance(own, offline_ratios(signals_of(context, target, population, shadows), 1.0), self._gamma)


@dataclass(frozen=True, eq=False)
class Signals:
    """Logarithms of the true class's probability: of the target (samples,) and of the shadows (models, samples).

    `inside` (models, samples) tells whether the shadow was trained on the sample.
    """

    target: Array
    shadows: Array
    inside: NDArray[np.bool_]

    def select(self, rows: NDArray[np.bool_]) -> Signals:
        return Signals(self.target[rows], self.shadows[:, rows], self.inside[:, rows])

    def mean_gain(self, chosen: NDArray[np.bool_]) -> Array:
        """(samples,) logarithm of the chosen models' mean probability, minus that of the target's; exactly 0 if equal.

        At least one model is chosen (models, samples) per sample.
        """
        apart = np.where(chosen, self.shadows - self.target, -np.inf)
        top = apart.max(axis=0)
        return np.asarray(top + np.log(np.exp(apart - top).sum(axis=0) / chosen.sum(axis=0)))


def offline_ratios(signals: Signals, a: float) -> Array:
    """log p(x|target) - log p(x) with p(x) = ((1 + a) p_out(x) + 1 - a) / 2 from the models without x.

    With a = 1, p(x) is the mean of those models. Refused where a sample is in every shadow.
    """
    outside = ~signals.inside
    refuse_few(outside.sum(axis=0), 1, len(outside), "left out by")
    gain = signals.mean_gain(outside)
    if a == 1:
        return -gain
    without = math.log((1 + a) / 2) + gain + signals.target
    return signals.target - np.logaddexp(without, math.log((1 - a) / 2))


def online_ratios(signals: Signals) -> Array:
    """log p(x|target) - log p(x) with p(x) halfway between the mean of the models with x and of those without it.

    With as many models of both kinds, p(x) is the mean of all. With one model less of one kind, as where a shadow is
    attacked, their plain mean would reveal the kind of the missing model, and so the members. Refused where a sample is
    in every shadow, or in none.
    """
    inside, models = signals.inside, len(signals.inside)
    refuse_few(inside.sum(axis=0), 1, models, "in")
    refuse_few((~inside).sum(axis=0), 1, models, "left out by")
    return math.log(2) - np.logaddexp(signals.mean_gain(inside), signals.mean_gain(~inside))


def voted(ratios: Sequence[Array]) -> Array:
    """(samples,) the largest bound that at least half of the queries' ratios (samples,) reach: the upper median.

    A sample dominates another by the vote of at least half of its queries where this ratio does.
    """
    return np.asarray(np.sort(ratios, axis=0)[len(ratios) // 2])


def dominance(ratios: Array, population: Array, gamma: float = 1.0) -> Array:
    """Share of the population whose ratio, times gamma, lies below the sample's: 0 to 1, a multiple of 1 / population.

    Ratios are logarithms; there is at least one of the population, and gamma is 1 or more.
    """
    return np.searchsorted(np.sort(population), ratios - math.log(gamma), side="left") / population.size


def tuned_offset(context: AttackContext, shadows: Sequence[Shadow], population: Ids, gamma: float) -> float:
    """The `a` with the largest AUC of an attack on the first shadow; the middle one of equally good values.

    The usual value, with a note, where there are too few shadows.
    """
    if not shadows:
        return USUAL_OFFSET  # refused later, with the reason
    attacked, rest = shadows[0], shadows[1:]
    signals = signals_of(context, attacked.model, attacked.samples, rest)
    usable = ~np.all(signals.inside, axis=0, keepdims=True)[0]
    truth = attacked.trained_on(attacked.samples)[usable]
    if truth.all() or not truth.any():
        context.note(f"a = {USUAL_OFFSET}: there are too few shadows to tune it (--shadows.count)")
        return USUAL_OFFSET
    known, others = signals.select(usable), signals_of(context, attacked.model, population, rest)
    shares = [dominance(offline_ratios(known, a), offline_ratios(others, a), gamma) for a in OFFSETS]
    areas = [roc_curve(MembershipScores.of(own, truth)).auc for own in shares]
    best = np.flatnonzero(np.array(areas) == max(areas))
    return OFFSETS[best[len(best) // 2]]


def signals_of(
    context: AttackContext, model: AttackedModel, samples: Ids, shadows: Sequence[Shadow], view: int = 0
) -> Signals:
    """Signals of a model and its shadows on samples; the view is that of `ModelQuery.responses`."""
    values, inside = shadow_values(attrgetter("true_log_probabilities"), samples, shadows, context.query, view)
    return Signals(context.query.responses(model, samples, view=view).true_log_probabilities, values, inside)


def unseen_population(context: AttackContext, samples: Ids, shadows: Sequence[Shadow]) -> Ids:
    """The population without audited samples and members of shadows, with a note; refused where nothing is left."""
    population = context.knowledge.population
    seen = np.isin(population, np.concatenate([samples, *(shadow.members for shadow in shadows)]))
    if seen.any():
        context.note(f"{seen.sum()} of {len(population)} samples of the population are audited or trained on: left out")
    refuse_empty(population[~seen])
    if (left := int((~seen).sum())) < FINE:
        context.note(f"RMIA's score has steps of 1/{left}: --data.holdout.population with {FINE} or more is finer")
    return population[~seen]


def refuse_empty(population: Ids) -> None:
    """Raise where the attacker has no population."""
    if len(population) == 0:
        raise UserError.of(
            "the attacker has no population of samples that no model is trained on",
            "RMIA has nothing to compare the audited samples with",
            "keep some out of training with --data.holdout.population, such as 0.1",
        )
