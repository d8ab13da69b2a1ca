"""Model inversion of the released model or of a client's upload: images that the model takes for its classes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from app.attacks.adaptive.base import Adaptation
from app.attacks.adaptive.factor_choice import FactorChoice
from app.attacks.audit_context import AuditContext
from app.attacks.model_query import ModelQuery
from app.attacks.models import AttackedModel, Snapshot, TargetKind
from app.attacks.protocols.base import few
from app.attacks.protocols.target_selection import TargetSelection, seen_models
from app.attacks.public_knowledge import no_samples
from app.attacks.reconstruction.base import (
    Candidates,
    ReconstructionConditions,
    ReconstructionFinding,
    Truth,
    attempted,
    pixel_bounds,
    to_pixels,
)
from app.attacks.reconstruction.inversion.deep_inversion import DeepInversion
from app.attacks.reconstruction.inversion.evaluator import Evaluator, train_evaluator
from app.attacks.reconstruction.inversion.gradient_matching import OptimisedImages
from app.attacks.reconstruction.inversion.mi_face import MIFace, Prior
from app.attacks.reconstruction.inversion.uploads import PassiveAttack
from app.attacks.reconstruction.scoring import assess
from app.attacks.responses import Ids
from app.attacks.targets import Models
from app.errors import Problem, raise_all
from app.metrics.inversion import InversionScores, LabelledImages, inversion_scores
from app.metrics.membership import NO_CLIENT, NotAvailable
from app.seeding import torch_generator

TRUTH = (
    "truth: mean of the training images of each class; only the gap between the nearest training image and the nearest "
    "other one is leakage"
)


@dataclass(frozen=True, eq=False)
class InvertedModel:
    """One model under inversion.

    Attributes:
        conditions: who attacks what.
        model: the model, or why there is none.
        members: ids that it was trained on: the truth, for the evaluator.
    """

    conditions: ReconstructionConditions
    model: Snapshot | NotAvailable
    members: Ids


def inverted_models(
    world: AuditContext, attack: str, target: TargetKind, client: int | None
) -> Iterator[InvertedModel]:
    """What an attack of that name inverts.

    Args:
        world: the run under attack.
        attack: name of the attack.
        target: the released model, or what a client sent.
        client: the client; None for the one with the most samples of those that were heard in the last kept round.
    """
    if target == "global":
        yield _released(world, attack)
        return
    yield _upload(world, attack, client)
    if "hidden-choice" in world.knowledge.traits:
        yield _upload(world, attack, client, FactorChoice())


def _released(world: AuditContext, attack: str) -> InvertedModel:
    rounds, members = world.knowledge.rounds, np.sort(np.concatenate(world.truth.members))
    clients = world.clients
    conditions = ReconstructionConditions(
        attack, attack, "anybody outside", "the released model", rounds, clients, (TRUTH,)
    )
    if not world.final:
        return InvertedModel(conditions, NotAvailable("the model has not been released yet"), members)
    return InvertedModel(conditions, Snapshot(rounds, 1.0, world.transcript.external_view().released()), members)


def _upload(world: AuditContext, attack: str, client: int | None, *adaptations: Adaptation) -> InvertedModel:
    models = seen_models(world, TargetSelection("uploads", world.knowledge.rounds, False, adaptations), ())
    chosen = client if client is not None else _usual(world, models)
    model = _model(models, chosen)
    round_ = world.knowledge.rounds if isinstance(model, NotAvailable) else model.round
    clients = () if chosen is None else (chosen,)
    label = "-".join([attack, "uploads" if chosen is None else f"client-{chosen}"])
    conditions = ReconstructionConditions(attack, label, "curious server", "one upload", round_, clients, (TRUTH,))
    for one in adaptations:
        conditions = conditions.adapted(one.name, one.what)
    members = [world.truth.members[one] for one in clients if one in world.clients]
    return InvertedModel(conditions, model, np.sort(np.concatenate([no_samples(), *members])))


def _model(models: Models, client: int | None) -> Snapshot | NotAvailable:
    if client is None:
        return NotAvailable("; ".join(few([one.reason for one in models.values() if isinstance(one, NotAvailable)], 2)))
    found = models.get(client, NotAvailable(f"there is no client {client} in any round"))
    return found if isinstance(found, NotAvailable) else found.last


def _usual(world: AuditContext, models: Models) -> int | None:
    """The client with the most samples of those whose last upload is the most recent; None without any upload."""
    heard = {client: model for client, model in models.items() if isinstance(model, AttackedModel)}
    return max(heard, key=lambda client: (heard[client].last.round, heard[client].size, -client), default=None)


MOST_PER_SET = 5000
"""Most training images, and most others, that a reconstruction is compared with."""


class ModelInversion(PassiveAttack):
    """MI-Face: for every class an image that the model is sure of, with priors for small and smooth images."""

    name = "mi-face"

    def __init__(
        self,
        steps: int = 500,
        restarts: int = 1,
        l2: float = 1e-2,
        tv: float = 1e-2,
        prior: Prior = "black",
        target: TargetKind = "global",
        client: int | None = None,
    ) -> None:
        """Set up the attack.

        Args:
            steps: descent steps per restart, at least 1.
            restarts: searches, at least 1, of which the best counts.
            l2: weight of the squared length of an image, 0 or more.
            tv: weight of the total variation, 0 or more.
            prior: what the search begins with: a black image, the mean of the attacker's own images, or noise.
            target: `global` for the released model, or `uploads` for what one client sent last, as the server sees it;
                where clients hide which factors they use, as it was sent and with a guess of them.
            client: whose upload; without one, the client with the most samples of those that were heard last.
        """
        self.search = MIFace(steps, restarts, l2=l2, tv=tv, prior=prior)
        self._aim(target, client)

    def _aim(self, target: TargetKind, client: int | None) -> None:
        raise_all(_aim_problems(target, client))
        self.target, self.client = target, client

    def findings(self, world: AuditContext) -> Iterator[ReconstructionFinding]:
        """An image per class, beside the mean of the class's training images: one result for every reading."""
        oracle = ModelQuery(world.knowledge)
        for subject in inverted_models(world, self.name, self.target, self.client):
            yield self._of(world, oracle, subject)

    def _of(self, world: AuditContext, oracle: ModelQuery, subject: InvertedModel) -> ReconstructionFinding:
        conditions, model = subject.conditions, subject.model
        if isinstance(model, NotAvailable):
            return ReconstructionFinding(conditions, model)
        net = oracle.network(model)
        if (reason := self.search.obstacle(net)) is not None:
            return ReconstructionFinding(conditions, NotAvailable(reason))
        return attempted(conditions, lambda: self._inverted(world, conditions, net, subject.members))

    def _inverted(
        self, world: AuditContext, conditions: ReconstructionConditions, net: torch.nn.Module, members: np.ndarray
    ) -> ReconstructionFinding:
        labels = world.knowledge.store.labels[torch.from_numpy(members)].unique().cpu()
        found = self._images(world, net, labels)
        pixels = to_pixels(world.knowledge.store, found.images.double()).cpu()
        candidates, truth = Candidates(pixels, -found.losses.cpu()), _class_means(world, members, labels)
        details = _details(world, members, found, pixels, labels)
        return ReconstructionFinding(conditions, *assess(candidates, truth, world.knowledge), details)

    def _images(self, world: AuditContext, net: torch.nn.Module, labels: Tensor) -> OptimisedImages:
        public = world.knowledge
        low, high = pixel_bounds(public.store)
        own = public.store.batch(torch.from_numpy(public.auxiliary[:MOST_PER_SET]), public.dtype)[0]
        start = own.mean(dim=0) if len(own) else None
        draw = torch_generator(public.seed, self.name)
        return self.search.images(net, labels, public.store.shape, low, high, start, draw, progress=True)


class DeepInversionAttack(ModelInversion):
    """DeepInversion: also matches the statistics that batch norm has kept of the training images."""

    name = "deep-inversion"

    def __init__(
        self,
        steps: int = 500,
        restarts: int = 1,
        l2: float = 1e-2,
        tv: float = 1e-2,
        statistics: float = 1.0,
        target: TargetKind = "global",
        client: int | None = None,
    ) -> None:
        """Set up the attack.

        Args:
            steps: descent steps per restart, at least 1.
            restarts: searches, at least 1, of which the best counts.
            l2: weight of the squared length of an image, 0 or more.
            tv: weight of the total variation, 0 or more.
            statistics: weight of the distance from batch norm's running statistics, 0 or more.
            target: `global` for the released model, or `uploads` for what one client sent last.
            client: whose upload; without one, the client with the most samples of those that were heard last.
        """
        self.search = DeepInversion(steps, restarts, l2=l2, tv=tv, statistics=statistics)
        self._aim(target, client)


def _aim_problems(target: TargetKind, client: int | None) -> Iterator[Problem]:
    if target not in ("global", "uploads"):
        yield Problem(
            f"model inversion has no target {target!r}", "nothing would be attacked", "choose global or uploads"
        )
    elif client is not None and target == "global":
        cause = f"client {client} is to be attacked, but the target is the released model"
        yield Problem(cause, "the client would be ignored", "set target to uploads, or leave client out")


def _class_means(world: AuditContext, members: np.ndarray, labels: Tensor) -> Truth:
    """The mean training image of each class, keyed by its class instead of a sample."""
    images, classes = world.knowledge.store.batch(torch.from_numpy(members), torch.float64)
    pixels, classes = to_pixels(world.knowledge.store, images).cpu(), classes.cpu()
    means = torch.stack([pixels[classes == label].mean(dim=0) for label in labels])
    return Truth(means, labels, torch.full_like(labels, NO_CLIENT), labels)


def _details(
    world: AuditContext, members: np.ndarray, found: OptimisedImages, pixels: Tensor, labels: Tensor
) -> dict[str, float]:
    """How much nearer the reconstructions are to training images than to others, and whether they show their class."""
    evaluator = train_evaluator(world.knowledge)
    predicted = evaluator.predict(found.images) if isinstance(evaluator, Evaluator) else None
    scores = inversion_scores(
        LabelledImages(pixels, labels),
        _pictured(world, members),
        _pictured(world, np.concatenate([*world.truth.nonmembers, world.knowledge.auxiliary])),
        predicted,
    )
    return _numbers(scores) if isinstance(scores, InversionScores) else {}


def _pictured(world: AuditContext, ids: np.ndarray) -> LabelledImages:
    images, labels = world.knowledge.store.batch(torch.from_numpy(ids[:MOST_PER_SET]), torch.float64)
    return LabelledImages(to_pixels(world.knowledge.store, images).cpu(), labels.cpu())


def _numbers(scores: InversionScores) -> dict[str, float]:
    numbers = {"to_class_mean": scores.to_mean, "to_member": scores.to_member, "to_other": scores.to_other}
    for name, estimate in (("gap", scores.gap), ("recognised", scores.accuracy)):
        if isinstance(estimate, NotAvailable):
            continue
        numbers[name] = estimate.value
        if not isinstance(estimate.interval, NotAvailable):
            numbers |= {f"{name}_low": estimate.interval.low, f"{name}_high": estimate.interval.high}
    return numbers
