"""The truth of a reconstruction, and the judgement: candidates against what the attacked clients trained on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from app.attacks.public import Public
from app.attacks.reconstruction.choosing import choose, nulls_for
from app.attacks.reconstruction.findings import Pictures
from app.attacks.reconstruction.images import Candidates, Truth, to_pixels
from app.metrics.reconstruction import Reconstruction, judge, legacy_scores, matched_images
from app.models.norms import uses_batch_statistics
from app.seeding import torch_generator
from datamodules.split import Membership

MOST_OTHERS = 4000
"""Most images of the attacker's own that guesses are taken from."""


def trained_on(membership: Membership, public: Public, clients: Iterable[int], round_: int) -> Truth:
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
    membership: Membership, public: Public, client: int, round_: int
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
    public: Public,
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


def assess(candidates: Candidates, truth: Truth, public: Public) -> tuple[Reconstruction, Pictures]:
    """Scores beside what anybody could have guessed, and the pictures that go with them.

    Args:
        candidates: what the attack offers.
        truth: what was trained on.
        public: for the attacker's own data, which guesses are made of.
    """
    own = torch.from_numpy(public.auxiliary[:MOST_OTHERS])
    others, labels = public.store.batch(own, torch.float64)
    nulls = nulls_for(truth, to_pixels(public.store, others).cpu(), labels.cpu(), len(candidates))
    keys = list(zip(truth.clients.tolist(), truth.samples.tolist(), truth.labels.tolist(), strict=True))
    images = candidates.images.double().cpu()
    result = judge(truth.images, keys, images, choose(candidates, len(truth)), nulls)
    return result, Pictures(truth, matched_images(images, result.per_image).clamp(0, 1))
