"""Model inversion of the released model or of a client's upload: images that the model assigns to its classes."""

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
from app.attacks.models import AttackedModel, Ids, Snapshot, TargetKind
from app.attacks.protocols.base import few
from app.attacks.protocols.target_selection import TargetSelection, seen_models
from app.attacks.public_knowledge import PublicKnowledge, no_samples
from app.attacks.reconstruction.base import (
    Candidates,
    ReconstructionConditions,
    ReconstructionFinding,
    Truth,
    attempted,
    pixel_bounds,
    to_pixels,
    upload_reader,
)
from app.attacks.reconstruction.inversion.deep_inversion import DeepInversion
from app.attacks.reconstruction.inversion.evaluator import Evaluator, train_evaluator
from app.attacks.reconstruction.inversion.gradient_matching import OptimisedImages
from app.attacks.reconstruction.inversion.mi_face import MIFace, Prior
from app.attacks.reconstruction.inversion.uploads import PassiveAttack
from app.attacks.reconstruction.scoring import assess
from app.attacks.targets import Models
from app.common.errors import UserError
from app.common.ranges import Count, NonNegative, Whole
from app.common.seeding import torch_generator
from app.metrics.inversion import LabelledImages, inversion_scores
from app.metrics.membership import NO_CLIENT, NotAvailable

TRUTH = (
    "truth: mean of the training images of each class; only the gap between the nearest training image and the nearest "
    "other one is leakage"
)


@dataclass(frozen=True, eq=False)
class InvertedModel:
    """A model to invert, or why there is none; `members` are its training samples, for the evaluation only."""

    conditions: ReconstructionConditions
    model: Snapshot | NotAvailable
    members: Ids


def inverted_models(
    audit: AuditContext, attack: str, target: TargetKind, client: int | None
) -> Iterator[InvertedModel]:
    """The released model or a client's upload; with a hidden choice of factors twice, as sent and recovered.

    A client of None stands for the one with the most samples among those with the latest upload.
    """
    if target == "global":
        yield _released(audit, attack)
        return
    yield _upload(audit, attack, client)
    if "hidden-choice" in audit.knowledge.traits:
        yield _upload(audit, attack, client, FactorChoice())


def _released(audit: AuditContext, attack: str) -> InvertedModel:
    rounds, members = audit.knowledge.rounds, np.sort(np.concatenate(audit.truth.members))
    conditions = ReconstructionConditions(
        attack, attack, "anybody outside", "the released model", rounds, audit.clients, (TRUTH,)
    )
    if not audit.final:
        return InvertedModel(conditions, NotAvailable("the model has not been released yet"), members)
    return InvertedModel(conditions, Snapshot(rounds, 1.0, audit.transcript.external_view().released()), members)


def _upload(audit: AuditContext, attack: str, client: int | None, *adaptations: Adaptation) -> InvertedModel:
    models = seen_models(audit, TargetSelection("uploads", audit.knowledge.rounds, False, adaptations), ())
    chosen = client if client is not None else _usual(models)
    model = _model(models, chosen)
    round_ = audit.knowledge.rounds if isinstance(model, NotAvailable) else model.round
    clients = () if chosen is None else (chosen,)
    label = "-".join([attack, "uploads" if chosen is None else f"client-{chosen}"])
    adversary = upload_reader(audit, round_)
    conditions = ReconstructionConditions(attack, label, adversary, "one upload", round_, clients, (TRUTH,))
    for one in adaptations:
        conditions = conditions.adapted(one.name, one.what)
    members = [audit.truth.members[one] for one in clients if one in audit.clients]
    return InvertedModel(conditions, model, np.sort(np.concatenate([no_samples(), *members])))


def _model(models: Models, client: int | None) -> Snapshot | NotAvailable:
    if client is None:
        return NotAvailable("; ".join(few([one.reason for one in models.values() if isinstance(one, NotAvailable)], 2)))
    model = models.get(client, NotAvailable(f"there is no client {client} in any round"))
    return model if isinstance(model, NotAvailable) else model.last


def _usual(models: Models) -> int | None:
    """The client with the most samples among those with the latest upload; None without any upload."""
    sent = {client: model for client, model in models.items() if isinstance(model, AttackedModel)}
    return max(sent, key=lambda client: (sent[client].last.round, sent[client].size, -client), default=None)


MOST_PER_SET = 5000
"""Largest number of training images, and of others, that a reconstruction is compared with."""


class ModelInversion(PassiveAttack):
    """MI-Face: for every class a small and smooth image that the model classifies with confidence."""

    name = "mi-face"

    def __init__(
        self,
        steps: Count = 500,
        restarts: Count = 1,
        l2: NonNegative = 1e-2,
        tv: NonNegative = 1e-2,
        prior: Prior = "black",
        target: TargetKind = "global",
        client: Whole | None = None,
    ) -> None:
        """Set up the attack.

        Args:
            steps: gradient steps per restart, at least 1.
            restarts: optimisations, at least 1, of which the best counts.
            l2: weight of the squared norm of an image, 0 or more.
            tv: weight of the total variation, 0 or more.
            prior: starting point: a black image, the mean of the attacker's own images, or noise.
            target: `global` for the released model, or `uploads` for the last upload of one client, as the server sees
                it; where clients hide their choice of factors, as sent and with the recovered choice.
            client: client whose upload is attacked; without one, that with the most samples and the latest upload.
        """
        self._aim(MIFace(steps, restarts, l2=l2, tv=tv, prior=prior), target, client)

    def _aim(self, search: MIFace, target: TargetKind, client: int | None) -> None:
        self.search, self.target, self.client = search, target, client
        if target not in ("global", "uploads"):
            cause = f"model inversion has no target {target!r}"
            raise UserError.of(cause, "nothing would be attacked", "choose global or uploads")
        if client is not None and target == "global":
            cause = f"client {client} is to be attacked, but the target is the released model"
            raise UserError.of(cause, "the client would be ignored", "set target to uploads, or leave client out")

    def findings(self, audit: AuditContext) -> Iterator[ReconstructionFinding]:
        """One image per class, compared with the mean of the training images of the class."""
        query = ModelQuery(audit.knowledge)
        for inverted in inverted_models(audit, self.name, self.target, self.client):
            yield self._finding(audit, query, inverted)

    def _finding(self, audit: AuditContext, query: ModelQuery, inverted: InvertedModel) -> ReconstructionFinding:
        conditions, model = inverted.conditions, inverted.model
        if isinstance(model, NotAvailable):
            return ReconstructionFinding(conditions, model)
        net = query.network(model)
        if (reason := self.search.obstacle(net)) is not None:
            return ReconstructionFinding(conditions, NotAvailable(reason))
        return attempted(conditions, lambda: self._inverted(audit, net, inverted))

    def _inverted(self, audit: AuditContext, net: torch.nn.Module, inverted: InvertedModel) -> ReconstructionFinding:
        members, store = inverted.members, audit.knowledge.store
        labels = store.labels[torch.from_numpy(members)].unique().cpu()
        optimised = self._images(audit.knowledge, net, labels)
        pixels = to_pixels(store, optimised.images.double()).cpu()
        candidates, truth = Candidates(pixels, -optimised.losses.cpu()), _class_means(audit, members, labels)
        details = _details(audit, members, optimised.images, LabelledImages(pixels, labels))
        return ReconstructionFinding(inverted.conditions, *assess(candidates, truth, audit.knowledge), details)

    def _images(self, knowledge: PublicKnowledge, net: torch.nn.Module, labels: Tensor) -> OptimisedImages:
        store, draw = knowledge.store, torch_generator(knowledge.seed, self.name)
        own = store.batch(torch.from_numpy(knowledge.auxiliary[:MOST_PER_SET]), knowledge.dtype)[0]
        start = own.mean(dim=0) if len(own) else None
        return self.search.images(net, labels, store.shape, pixel_bounds(store), start, draw)


class DeepInversionAttack(ModelInversion):
    """DeepInversion: also matches the running statistics of batch normalisation."""

    name = "deep-inversion"

    def __init__(
        self,
        steps: Count = 500,
        restarts: Count = 1,
        l2: NonNegative = 1e-2,
        tv: NonNegative = 1e-2,
        statistics: NonNegative = 1.0,
        target: TargetKind = "global",
        client: Whole | None = None,
    ) -> None:
        """Set up the attack.

        Args:
            steps: gradient steps per restart, at least 1.
            restarts: optimisations, at least 1, of which the best counts.
            l2: weight of the squared norm of an image, 0 or more.
            tv: weight of the total variation, 0 or more.
            statistics: weight of the distance from the running statistics, 0 or more.
            target: `global` for the released model, or `uploads` for the last upload of one client.
            client: client whose upload is attacked; without one, that with the most samples and the latest upload.
        """
        self._aim(DeepInversion(steps, restarts, l2=l2, tv=tv, statistics=statistics), target, client)


def _class_means(audit: AuditContext, members: np.ndarray, labels: Tensor) -> Truth:
    """The mean training image of each class, with the class in place of the sample id."""
    own = _labelled_images(audit, members)
    means = torch.stack([own.images[own.labels == label].mean(dim=0) for label in labels])
    return Truth(means, labels, torch.full_like(labels, NO_CLIENT), labels)


def _details(
    audit: AuditContext, members: np.ndarray, optimised: Tensor, reconstructions: LabelledImages
) -> dict[str, float]:
    """Similarity to training images compared with other images, and accuracy of an independent classifier."""
    evaluator = train_evaluator(audit.knowledge)
    predicted = evaluator.predict(optimised) if isinstance(evaluator, Evaluator) else None
    others = np.concatenate([*audit.truth.nonmembers, audit.knowledge.auxiliary])
    trained, fresh = (_labelled_images(audit, ids[:MOST_PER_SET]) for ids in (members, others))
    scores = inversion_scores(reconstructions, trained, fresh, predicted)
    if isinstance(scores, NotAvailable):
        return {}
    numbers = {"to_class_mean": scores.to_mean, "to_member": scores.to_member, "to_other": scores.to_other}
    for name, estimate in (("gap", scores.gap), ("recognised", scores.accuracy)):
        if isinstance(estimate, NotAvailable):
            continue
        numbers[name] = estimate.value
        if not isinstance(estimate.interval, NotAvailable):
            numbers |= {f"{name}_low": estimate.interval.low, f"{name}_high": estimate.interval.high}
    return numbers


def _labelled_images(audit: AuditContext, ids: np.ndarray) -> LabelledImages:
    images, labels = audit.knowledge.store.batch(torch.from_numpy(ids), torch.float64)
    return LabelledImages(to_pixels(audit.knowledge.store, images).cpu(), labels.cpu())
