"""Scores reconstructed images against the training images of the attacked clients, beside baselines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from app.attacks.public_knowledge import PublicKnowledge
from app.attacks.reconstruction.active.observations import IsolatedUpdate
from app.attacks.reconstruction.base import (
    Candidates,
    ImagePairs,
    ReconstructionConditions,
    ReconstructionFinding,
    Truth,
    attempted,
    to_pixels,
)
from app.attacks.reconstruction.inversion.extraction import ImageExtraction
from app.common.seeding import torch_generator
from app.federation.parameters import ParameterSpace
from app.metrics.image_similarity import CHUNK, standardised
from app.metrics.reconstruction import RECOVERED, Reconstruction, legacy_scores, matched_images, score_reconstruction
from app.models.norms import uses_batch_statistics
from datamodules.split import Membership

MOST_OTHERS = 4000
"""Largest number of the attacker's own images that baselines are made of."""


def attackers_choice(candidates: Candidates, count: int) -> Tensor:
    """Positions of at most `count` candidates that an attacker without the truth would choose, the surest first.

    Constant images are skipped, and so are near-duplicates (Pearson RECOVERED or more) of candidates already chosen. Of
    equally sure candidates, the one with the strongest contrast comes first.
    """
    rows = torch.cat([standardised(part) for part in candidates.images.split(CHUNK)])
    eligible = rows.any(dim=1)
    chosen: list[int] = []
    for place in _by_confidence(candidates):
        if len(chosen) == count:
            break
        if eligible[place]:
            chosen.append(place)
            eligible &= rows @ rows[place] < RECOVERED
    return torch.tensor(chosen, dtype=torch.int64)


def _by_confidence(candidates: Candidates) -> list[int]:
    rows = candidates.images.flatten(1).double()
    contrast = (rows - rows.mean(dim=1, keepdim=True)).norm(dim=1)
    return list(map(int, np.lexsort((-contrast.cpu().numpy(), -candidates.confidence.double().cpu().numpy()))))


def guesses_without_updates(truth: Truth, others: Tensor, other_labels: Tensor, count: int) -> dict[str, Tensor]:
    """Baselines that read no update, by name.

    `batch mean` is the mean of the true images; not of a single image, which would be its own mean. `class mean` is,
    for every true image, the mean of the attacker's own images of its class, or of all of them where that class is
    absent. `best of M others` are single images of the attacker.

    Args:
        truth: training images of the clients.
        others: (images, channels, height, width) of the attacker, on the pixel scale; none of the true ones.
        other_labels: (images,) their classes.
        count: largest M; the number of candidates, for an equally rich choice.
    """
    nulls = {}
    if len(truth) > 1:
        nulls["batch mean"] = truth.images.mean(dim=0, keepdim=True).expand_as(truth.images)
    if len(others):
        same = {label: others[other_labels == label] for label in truth.labels.unique().tolist()}
        means = {label: (own if len(own) else others).mean(dim=0) for label, own in same.items()}
        nulls["class mean"] = torch.stack([means[label] for label in truth.labels.tolist()])
    if guesses := min(count, len(others)):
        nulls[f"best of {guesses} others"] = others[:guesses]
    return nulls


def trained_on(membership: Membership, knowledge: PublicKnowledge, clients: Iterable[int], round_: int) -> Truth:
    """Images that clients train on in a round (0-based), with the augmentation of their first use in it."""
    parts = [_of_client(membership, knowledge, client, round_) for client in clients]
    images, labels, owners, samples = (torch.cat(column) for column in zip(*parts, strict=True))
    return Truth(images, labels, owners, samples)


def _of_client(
    membership: Membership, knowledge: PublicKnowledge, client: int, round_: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    ids = torch.from_numpy(membership.members[client])
    images, labels = knowledge.store.batch(ids, torch.float64)
    order = torch_generator(knowledge.seed, "batches", round_, client)
    crops = torch_generator(knowledge.seed, "augmentation", round_, client)
    used = torch.zeros(len(ids), dtype=torch.bool)
    for positions in knowledge.local.batches(len(ids), order, 2 if uses_batch_statistics(knowledge.prototype) else 1):
        if knowledge.augment is not None:
            views = knowledge.augment(images[positions].to(knowledge.dtype), crops).to(images.dtype)
            new = ~used[positions]
            images[positions[new]] = views[new]
        used[positions] = True
    pixels, trained = to_pixels(knowledge.store, images).cpu(), ids[used]
    return pixels[used], labels.cpu()[used], torch.full_like(trained, client), trained


def assess(candidates: Candidates, truth: Truth, knowledge: PublicKnowledge) -> tuple[Reconstruction, ImagePairs]:
    """Scores of the candidates beside those of the baselines, and the images for the figures."""
    own = torch.from_numpy(knowledge.auxiliary[:MOST_OTHERS])
    others, labels = knowledge.store.batch(own, torch.float64)
    nulls = guesses_without_updates(truth, to_pixels(knowledge.store, others).cpu(), labels.cpu(), len(candidates))
    keys = list(zip(truth.clients.tolist(), truth.samples.tolist(), truth.labels.tolist(), strict=True))
    images = candidates.images.double().cpu()
    result = score_reconstruction(truth.images, keys, images, attackers_choice(candidates, len(truth)), nulls)
    return result, ImagePairs(truth, matched_images(images, result.per_image).clamp(0, 1))


@dataclass(frozen=True, eq=False)
class ReconstructionScorer:
    """Extracts images from updates and scores them against the training images."""

    extraction: ImageExtraction
    knowledge: PublicKnowledge
    membership: Membership  # training samples of every client; for the evaluation only
    legacy: bool = False  # whether to add the scores of the published evaluation

    def findings(
        self, conditions: ReconstructionConditions, update: IsolatedUpdate, details: Mapping[str, float]
    ) -> Iterator[ReconstructionFinding]:
        """The result, with further numbers in `details`, and that of an adapted attacker where uploads are pruned."""
        conditions = replace(conditions, clients=update.clients)  # some of the attacked clients may have dropped out
        yield attempted(conditions, lambda: self._finding(conditions, update, details))
        if "pruned-uploads" in self.knowledge.traits:
            adapted = conditions.adapted("refilled", "zeroed weights taken for unmoved")
            yield attempted(adapted, lambda: self._finding(adapted, update.refilled(), details))

    def _finding(
        self, conditions: ReconstructionConditions, update: IsolatedUpdate, details: Mapping[str, float]
    ) -> ReconstructionFinding:
        truth = trained_on(self.membership, self.knowledge, update.clients, update.round)
        space = ParameterSpace(self.knowledge.prototype)
        candidates = self.extraction.candidates(update, self.knowledge, space, truth.labels)
        legacy = self._legacy_details(update.round, conditions.clients, candidates) if self.legacy else {}
        return ReconstructionFinding(conditions, *assess(candidates, truth, self.knowledge), {**details, **legacy})

    def _legacy_details(self, round_: int, attacked: Sequence[int], candidates: Candidates) -> dict[str, float]:
        """Scores as in the published code, against the client that happened to be trained last.

        That code overwrites the true images with those of every client in turn, in random order.
        """
        participants = self.knowledge.plan(round_).participants
        draw = torch_generator(self.knowledge.seed, "legacy order", round_)
        last = participants[int(torch.randperm(len(participants), generator=draw)[-1])]
        truth = trained_on(self.membership, self.knowledge, [last], round_)
        scores = legacy_scores(truth.images, candidates.images.double().cpu())
        return {
            "legacy_pearson": scores.pearson,
            "legacy_psnr": scores.psnr,
            "legacy_recovered": float(scores.recovered),
            "legacy_right_client": float(last in attacked),
        }
