"""The attacks of the taxonomy of integration methods, as its code has them.

The attacker owns the data of all other clients. Shadows and students have the server's width, whatever the target's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from scipy.special import logit, ndtr
from torch import Tensor, nn
from torch.optim import SGD, Adam

from app.attacks.audit_context import AuditContext
from app.attacks.membership import attack_net
from app.attacks.membership.base import Threat
from app.attacks.membership.distillation import Distillation, distil
from app.attacks.membership.trajectory import HIDDEN
from app.attacks.model_query import ModelQuery
from app.attacks.models import AttackedModel, Ids, Responses, Snapshot
from app.attacks.protocols.papers import LabelledSets, legacy_order, unit_scores
from app.attacks.shadows.cache import ShadowCache
from app.attacks.shadows.central import ShadowJob
from app.attacks.shadows.shadow_store import ShadowOrder, train_or_find
from app.common.errors import UserError
from app.common.seeding import derive_key
from app.common.wording import counted
from app.federation.local_training import LocalTraining
from app.metrics.membership import Array
from app.models.base import ScalableNet
from app.models.norms import uses_batch_statistics

if TYPE_CHECKING:
    from app.attacks.protocols.taxonomy import Taxonomy

BATCH = 128
"""Samples per step of every training, and per query; members and non-members are queried separately."""

Confidence = Literal["true", "max"]
"""Probability of the true class, as the paper says (App. B-B), or the largest one, as its code has it."""


@dataclass(frozen=True, eq=False)
class TaxonomyScores:
    """Scores of the evaluated samples on any scale, the same from 0 to 1, and of known samples from 0 to 1."""

    ranks: Array
    evaluated: Array
    known: Array


class TaxonomyContext:
    """The run under attack: queries of target networks, and of shadows and students, which have running statistics.

    Notes are those of the attack that is running.
    """

    def __init__(self, audit: AuditContext, settings: Taxonomy) -> None:
        self.audit, self.settings = audit, settings
        self.notes: list[str] = []
        recipe = LocalTraining(epochs=settings.shadow_epochs, batch_size=BATCH, optimizer=partial(Adam, lr=1e-3))
        # One round of many epochs, since every round has a new optimiser.
        own = replace(
            audit.knowledge, prototype=_with_averages(audit.knowledge.prototype), local=recipe, learning_rates=(1e-3,)
        )
        self.targets, self.shadows = audit.query, ModelQuery(own)
        self._cache = ShadowCache(audit.cache)

    def auxiliary(self, client: int) -> Ids:
        """Members of all other clients, one client after the other."""
        others = [own for other, own in enumerate(self.audit.truth.members) if other != client]
        if sum(map(len, others)) < 8:
            raise UserError.of(
                f"the clients beside client {client} have {counted(sum(map(len, others)), 'sample')}",
                "the attacker of this paper trains its shadows on them",
                "use more clients, or --attacks.membership.protocol audit",
            )
        return np.concatenate(others)

    def train(self, sets: Sequence[Ids], purpose: str, client: int) -> list[AttackedModel]:
        """Models of the server's width, one per training set."""
        seed = derive_key(self.audit.knowledge.seed, f"taxonomy-{purpose}", client)
        jobs = [ShadowJob(number, 1.0, samples, seed) for number, samples in enumerate(sets)]
        (models,) = train_or_find(self.shadows.knowledge, [ShadowOrder(jobs, (1,))], self._cache)
        return models


def yeom(context: TaxonomyContext, model: AttackedModel, sets: LabelledSets) -> TaxonomyScores:
    """Losses (App. B-A), scaled to 0 .. 1 separately for known and for evaluated samples."""
    losses, known = _halves(responses(context.targets, model.last, _parts(sets)).losses, sets)
    return TaxonomyScores(-losses, unit_scores(losses), unit_scores(known))


def lira(context: TaxonomyContext, model: AttackedModel, sets: LabelledSets) -> TaxonomyScores:
    """Offline LiRA (App. B-B): the target's confidence among those of shadows without the sample."""
    settings, auxiliary, parts = context.settings, context.auxiliary(model.client), _parts(sets)
    if len(auxiliary) <= settings.shadow_size:
        context.notes.append(
            f"all shadows are trained on the same samples: there are no {settings.shadow_size} to draw"
        )
    drawn = [legacy_order(auxiliary, number)[: settings.shadow_size] for number in range(settings.shadows)]
    shadows = context.train(drawn, "lira", model.client)
    values = [confidences(responses(context.shadows, shadow.last, parts), settings.conf) for shadow in shadows]
    target = confidences(responses(context.targets, model.last, parts), settings.conf)
    scores = normal_cdf(target, np.stack(values))
    evaluated, known = _halves(scores, sets)
    return TaxonomyScores(evaluated, evaluated, known)


def tmia(context: TaxonomyContext, model: AttackedModel, sets: LabelledSets) -> TaxonomyScores:
    """tMIA (App. B-C): an attack network, trained on one shadow, on losses of a student and of the target."""
    members, nonmembers, rest = quarters(context, model.client)
    (shadow,) = context.train([members], "tmia", model.client)
    training = _trajectories(context, context.shadows, shadow.last, rest, [members, nonmembers])
    attacked = _trajectories(context, context.targets, model.last, rest, _parts(sets))
    truth = torch.arange(len(training)) < len(members)
    net = attack_net.fit(
        lambda: nn.Sequential(attack_net.dense(training.shape[1], *HIDDEN, 2), SoftmaxGap()),
        [training],
        truth.to(training.device),
        epochs=context.settings.attack_epochs,
        batch_size=BATCH,
        optimizer=partial(SGD, lr=0.005, momentum=0.9, weight_decay=1e-4),
        loss="bce",
        seed=derive_key(context.audit.knowledge.seed, "taxonomy-attack-net", model.client),
    )
    evaluated, known = _halves((attack_net.predict(net, [attacked]) + 1) / 2, sets)
    return TaxonomyScores(evaluated, evaluated, known)


ATTACKS: dict[str, Callable[[TaxonomyContext, AttackedModel, LabelledSets], TaxonomyScores]]
ATTACKS = {"yeom": yeom, "lira": lira, "tmia": tmia}

_KNOWS = "labelled members of the target"
THREATS = {
    "yeom": Threat(sees="loss on the sample", data=_KNOWS, trains="nothing"),
    "lira": Threat(sees="probabilities", data=f"{_KNOWS}, all other clients' data", trains="shadow models"),
    "tmia": Threat(
        sees="answers to any query",
        data=f"{_KNOWS}, all other clients' data",
        trains="a shadow, students of target and shadow, attack network",
    ),
}


class SoftmaxGap(nn.Module):
    """Probability of the member class minus that of the other, -1 to 1.

    The paper's attack network ends in a softmax whose outputs are used as logits in the cross-entropy; of two logits
    only the difference matters, so this difference is the logit of a binary cross-entropy.
    """

    def forward(self, logits: Tensor) -> Tensor:
        chances = logits.softmax(1)
        return chances[:, 1] - chances[:, 0]


def responses(query: ModelQuery, snapshot: Snapshot, parts: Sequence[Ids]) -> Responses:
    """Responses to the parts, each queried by itself."""
    return Responses.joined([query.in_order(snapshot, part, BATCH) for part in parts])


def confidences(answers: Responses, conf: Confidence) -> Array:
    """(samples,) logit of the true class's probability, or of the largest one, clipped as in the code."""
    if conf == "true":
        return answers.margins
    return np.asarray(logit(np.clip(answers.probabilities.max(axis=1), 1e-4, 1 - 1e-4)))


def normal_cdf(target: Array, shadows: Array) -> Array:
    """(samples,) in [0, 1]: normal distribution function at the target's value (samples,).

    Mean and deviation are those of the shadows (models, samples); where all of them agree, it is a step function.
    """
    away, spread = target - shadows.mean(axis=0), shadows.std(axis=0)
    steps = np.where(away == 0, 0.0, np.copysign(np.inf, away))
    return np.asarray(ndtr(np.where(spread > 0, away / np.where(spread > 0, spread, 1.0), steps)))


def quarters(context: TaxonomyContext, client: int) -> tuple[Ids, Ids, Ids]:
    """Members and non-members of tMIA's shadow, a quarter of the attacker's data each; the rest for distillation."""
    auxiliary = context.auxiliary(client)
    if not context.settings.ordered_quarters:
        np.random.default_rng(context.audit.knowledge.seed).shuffle(auxiliary)
    quarter = len(auxiliary) // 4
    return auxiliary[:quarter], auxiliary[quarter : 2 * quarter], auxiliary[2 * quarter :]


def _trajectories(
    context: TaxonomyContext, query: ModelQuery, teacher: Snapshot, data: Ids, parts: Sequence[Ids]
) -> Tensor:
    """(samples, epochs + 1) losses of a student after every epoch, and of its teacher."""
    settings = Distillation(context.settings.student_epochs, BATCH, 1e-2, 0.0, 0.0, context.settings.teacher_mode)
    stages = distil(query.knowledge, teacher, context.shadows.knowledge, data, settings, 1.0)
    losses = [responses(context.shadows, stage, parts).losses for stage in stages]
    losses.append(responses(query, teacher, parts).losses)
    return torch.from_numpy(np.stack(losses, axis=1)).float().to(context.audit.knowledge.device)


def _parts(sets: LabelledSets) -> list[Ids]:
    return [sets.members, sets.nonmembers, sets.known_members, sets.known_nonmembers]


def _halves(values: Array, sets: LabelledSets) -> tuple[Array, Array]:
    count = len(sets.members) + len(sets.nonmembers)
    return values[:count], values[count:]


def _with_averages(net: ScalableNet) -> ScalableNet:
    """The network with running statistics, which the paper's shadows and students have, unlike its targets."""
    if not (uses_batch_statistics(net) and "statistics" in net.hparams):
        return net
    like = next(net.parameters())
    with torch.random.fork_rng(devices=[]):
        return type(net)(**{**net.hparams, "statistics": "running"}).to(like.device, like.dtype)
