"""Scores reconstructed images against the images that the attacked clients trained on, beside what could be guessed."""

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
from app.federation.parameters import ParameterSpace
from app.metrics.image_similarity import CHUNK, standardised
from app.metrics.reconstruction import RECOVERED, Reconstruction, legacy_scores, matched_images, score_reconstruction
from app.models.norms import uses_batch_statistics
from app.seeding import torch_generator
from datamodules.split import Membership


def attackers_choice(candidates: Candidates, count: int) -> Tensor:
    """Positions of the candidates that an attacker without the truth would show, the surest first.

    Candidates that show what one chosen before them shows (Pearson RECOVERED or more) are passed over, and so are
    images without any contrast. Of equally sure ones, the one with the strongest contrast comes first.

    Args:
        candidates: all that were found.
        count: how many to show at most, 0 or more.
    """
    rows = torch.cat([standardised(part) for part in candidates.images.split(CHUNK)])
    open_ = rows.any(dim=1)
    chosen: list[int] = []
    for place in _ranked(candidates):
        if len(chosen) == count:
            break
        if open_[place]:
            chosen.append(place)
            open_ &= rows @ rows[place] < RECOVERED
    return torch.tensor(chosen, dtype=torch.int64)


def guesses_without_updates(truth: Truth, others: Tensor, other_labels: Tensor, count: int) -> dict[str, Tensor]:
    """Images that can be had without reading any update, by name; none that would be the truth itself or is empty.

    `batch mean` is the mean of the true images; a single image has none, as it would be its own mean. `class mean` is,
    for every true image, the mean of the attacker's own images of its class, or of all of them where that class is
    absent. `best of M others` are single images of the attacker's own.

    Args:
        truth: what the clients trained on.
        others: (images, channels, height, width) that the attacker owns, on the pixel scale; none of the true ones.
        other_labels: (images,) their classes.
        count: most of them that are offered as guesses; the number of candidates makes both choices equally rich.
    """
    nulls = {}
    if len(truth) > 1:
        nulls["batch mean"] = truth.images.mean(dim=0, keepdim=True).expand_as(truth.images)
    if len(others):
        means = {label: _mean_of(others, other_labels == label) for label in truth.labels.unique().tolist()}
        nulls["class mean"] = torch.stack([means[label] for label in truth.labels.tolist()])
    if guesses := min(count, len(others)):
        nulls[f"best of {guesses} others"] = others[:guesses]
    return nulls


def _ranked(candidates: Candidates) -> list[int]:
    rows = candidates.images.flatten(1).double()
    contrast = (rows - rows.mean(dim=1, keepdim=True)).norm(dim=1)
    order = np.lexsort((-contrast.cpu().numpy(), -candidates.confidence.double().cpu().numpy()))
    ranked: list[int] = order.tolist()
    return ranked


def _mean_of(images: Tensor, wanted: Tensor) -> Tensor:
    return (images[wanted] if bool(wanted.any()) else images).mean(dim=0)


MOST_OTHERS = 4000
"""Most images of the attacker's own that guesses are taken from."""


def trained_on(membership: Membership, public: PublicKnowledge, clients: Iterable[int], round_: int) -> Truth:
    """Images that clients train on in a round (0-based), augmented the way they saw them first.

    Args:
        membership: who owns what.
        public: for the training recipe and the seed that batches are keyed by.
        clients: whose images.
        round_: 0-based round.
    """
    parts = [_of_client(membership, public, client, round_) for client in clients]
    images, labels, owners, samples = (torch.cat(column) for column in zip(*parts, strict=True))
    return Truth(images, labels, owners, samples)


def _of_client(
    membership: Membership, public: PublicKnowledge, client: int, round_: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    ids = torch.from_numpy(membership.members[client])
    images, labels = public.store.batch(ids, torch.float64)
    order = torch_generator(public.seed, "batches", round_, client)
    crops = torch_generator(public.seed, "augmentation", round_, client)
    seen = torch.zeros(len(ids), dtype=torch.bool)
    for positions in public.local.batches(len(ids), order, 2 if uses_batch_statistics(public.prototype) else 1):
        if public.augment is not None:
            views = public.augment(images[positions].to(public.dtype), crops).to(images.dtype)
            new = ~seen[positions]
            images[positions[new]] = views[new]
        seen[positions] = True
    pixels, trained = to_pixels(public.store, images).cpu(), ids[seen]
    return pixels[seen], labels.cpu()[seen], torch.full_like(trained, client), trained


def legacy_details(
    membership: Membership,
    public: PublicKnowledge,
    participants: Sequence[int],
    round_: int,
    attacked: Sequence[int],
    candidates: Candidates,
) -> dict[str, float]:
    """Scores the way the attacks were published: against the client that happened to be trained last.

    The published code overwrites the true images with those of every client in turn, in random order.

    Args:
        membership: who owns what.
        public: for the training recipe and the seed.
        participants: clients of the round.
        round_: 0-based round.
        attacked: whose update was isolated.
        candidates: what the attack offers.
    """
    draw = torch_generator(public.seed, "legacy order", round_)
    last = participants[int(torch.randperm(len(participants), generator=draw)[-1])]
    scores = legacy_scores(trained_on(membership, public, [last], round_).images, candidates.images.double().cpu())
    return {
        "legacy_pearson": scores.pearson,
        "legacy_psnr": scores.psnr,
        "legacy_recovered": float(scores.recovered),
        "legacy_right_client": float(last in attacked),
    }


def assess(candidates: Candidates, truth: Truth, public: PublicKnowledge) -> tuple[Reconstruction, ImagePairs]:
    """Scores beside what anybody could have guessed, and the pictures that go with them.

    Args:
        candidates: what the attack offers.
        truth: what was trained on.
        public: for the attacker's own data, which guesses are made of.
    """
    own = torch.from_numpy(public.auxiliary[:MOST_OTHERS])
    others, labels = public.store.batch(own, torch.float64)
    nulls = guesses_without_updates(truth, to_pixels(public.store, others).cpu(), labels.cpu(), len(candidates))
    keys = list(zip(truth.clients.tolist(), truth.samples.tolist(), truth.labels.tolist(), strict=True))
    images = candidates.images.double().cpu()
    result = score_reconstruction(truth.images, keys, images, attackers_choice(candidates, len(truth)), nulls)
    return result, ImagePairs(truth, matched_images(images, result.per_image).clamp(0, 1))


@dataclass(frozen=True, eq=False)
class ReconstructionScorer:
    """Reads images from updates and sets them beside what was trained on.

    Attributes:
        reading: how the attacker reads images.
        public: what the attacker knows.
        membership: who trained on what; only for the judgement.
        legacy: whether to add the scores of the published evaluation.
    """

    reading: ImageExtraction
    public: PublicKnowledge
    membership: Membership
    legacy: bool = False

    def findings(
        self, conditions: ReconstructionConditions, update: IsolatedUpdate, details: Mapping[str, float]
    ) -> Iterator[ReconstructionFinding]:
        """The result; a second one where the defenses call for a smarter reading.

        Args:
            conditions: who attacked what.
            update: what was isolated, or read from an upload.
            details: numbers that are known already.
        """
        conditions = replace(conditions, clients=update.clients)  # some of those that were attacked may have stayed out
        yield attempted(conditions, lambda: self._judged(conditions, update, details))
        if "pruned-uploads" in self.public.traits:
            adapted = conditions.adapted("refilled", "zeroed weights taken for unmoved")
            yield attempted(adapted, lambda: self._judged(adapted, update.refilled(), details))

    def _judged(
        self, conditions: ReconstructionConditions, update: IsolatedUpdate, details: Mapping[str, float]
    ) -> ReconstructionFinding:
        public = self.public
        truth = trained_on(self.membership, public, update.clients, update.round)
        candidates = self.reading.candidates(update, public, ParameterSpace(public.prototype), truth.labels)
        numbers = dict(details)
        if self.legacy:
            assert public.plan_of is not None
            participants = public.plan_of(update.round).participants
            numbers |= legacy_details(
                self.membership, public, participants, update.round, conditions.clients, candidates
            )
        return ReconstructionFinding(conditions, *assess(candidates, truth, public), numbers)
