"""Model inversion of a released model: what does it take its classes to look like, and is that a training image?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from app.attacks.models import Snapshot
from app.attacks.query import Oracle
from app.attacks.reconstruction.deep_inversion import DeepInversion
from app.attacks.reconstruction.evaluator import Evaluator, train_evaluator
from app.attacks.reconstruction.findings import Conditions, ReconstructionFinding, attempted
from app.attacks.reconstruction.gradient_matching import Matched
from app.attacks.reconstruction.images import Candidates, Truth, pixel_bounds, to_pixels
from app.attacks.reconstruction.judging import assess
from app.attacks.reconstruction.model_inversion import MIFace, Prior
from app.attacks.reconstruction.passive import PassiveAttack
from app.attacks.world import World
from app.metrics.inversion import InversionScores, LabelledImages, inversion_scores
from app.metrics.membership import NO_CLIENT, NotAvailable
from app.seeding import torch_generator

MOST_PER_SET = 5000
"""Most training images, and most others, that a reconstruction is compared with."""


class ModelInversion(PassiveAttack):
    """MI-Face: for every class an image that the released model is sure of, with priors for small and smooth images."""

    name = "mi-face"

    def __init__(
        self,
        steps: int = 500,
        restarts: int = 1,
        l2: float = 1e-2,
        tv: float = 1e-2,
        prior: Prior = "black",
    ) -> None:
        """Set up the attack.

        Args:
            steps: descent steps per restart, at least 1.
            restarts: searches, at least 1, of which the best counts.
            l2: weight of the squared length of an image, 0 or more.
            tv: weight of the total variation, 0 or more.
            prior: what the search begins with: a black image, the mean of the attacker's own images, or noise.
        """
        self.search = MIFace(steps, restarts, l2=l2, tv=tv, prior=prior)

    def findings(self, world: World) -> Iterator[ReconstructionFinding]:
        """One result: an image per class, beside the mean of the class's training images."""
        members = np.sort(np.concatenate(world.truth.members))
        clients = tuple(world.clients)
        notes = (
            "truth: mean of the training images of each class; only the gap between the nearest training image and the "
            "nearest other one is leakage",
        )
        conditions = Conditions(
            self.name, self.name, "anybody outside", "the released model", world.public.rounds, clients, notes
        )
        if not world.final:
            yield ReconstructionFinding(conditions, NotAvailable("the model has not been released yet"))
            return
        vector = world.transcript.external_view().released()
        net = Oracle(world.public).network(Snapshot(world.public.rounds, 1.0, vector))
        if (reason := self.search.obstacle(net)) is not None:
            yield ReconstructionFinding(conditions, NotAvailable(reason))
            return
        yield attempted(conditions, lambda: self._inverted(world, conditions, net, members))

    def _inverted(
        self, world: World, conditions: Conditions, net: torch.nn.Module, members: np.ndarray
    ) -> ReconstructionFinding:
        labels = world.public.store.labels[torch.from_numpy(members)].unique().cpu()
        found = self._images(world, net, labels)
        pixels = to_pixels(world.public.store, found.images.double()).cpu()
        candidates, truth = Candidates(pixels, -found.losses.cpu()), _class_means(world, members, labels)
        details = _details(world, members, found, pixels, labels)
        return ReconstructionFinding(conditions, *assess(candidates, truth, world.public), details)

    def _images(self, world: World, net: torch.nn.Module, labels: Tensor) -> Matched:
        public = world.public
        low, high = pixel_bounds(public.store)
        own = public.store.batch(torch.from_numpy(public.auxiliary[:MOST_PER_SET]), public.dtype)[0]
        start = own.mean(dim=0) if len(own) else None
        draw = torch_generator(public.seed, self.name)
        return self.search.images(net, labels, public.store.shape, low, high, start, draw, progress=True)


class DeepInversionAttack(ModelInversion):
    """DeepInversion: also matches the statistics that batch norm has kept of the training images."""

    name = "deep-inversion"

    def __init__(
        self, steps: int = 500, restarts: int = 1, l2: float = 1e-2, tv: float = 1e-2, statistics: float = 1.0
    ) -> None:
        """Set up the attack.

        Args:
            steps: descent steps per restart, at least 1.
            restarts: searches, at least 1, of which the best counts.
            l2: weight of the squared length of an image, 0 or more.
            tv: weight of the total variation, 0 or more.
            statistics: weight of the distance from batch norm's running statistics, 0 or more.
        """
        self.search = DeepInversion(steps, restarts, l2=l2, tv=tv, statistics=statistics)


def _class_means(world: World, members: np.ndarray, labels: Tensor) -> Truth:
    """The mean training image of each class, keyed by its class instead of a sample."""
    images, classes = world.public.store.batch(torch.from_numpy(members), torch.float64)
    pixels, classes = to_pixels(world.public.store, images).cpu(), classes.cpu()
    means = torch.stack([pixels[classes == label].mean(dim=0) for label in labels])
    return Truth(means, labels, torch.full_like(labels, NO_CLIENT), labels)


def _details(world: World, members: np.ndarray, found: Matched, pixels: Tensor, labels: Tensor) -> dict[str, float]:
    """How much nearer the reconstructions are to training images than to others, and whether they show their class."""
    evaluator = train_evaluator(world.public)
    predicted = evaluator.predict(found.images) if isinstance(evaluator, Evaluator) else None
    scores = inversion_scores(
        LabelledImages(pixels, labels),
        _pictured(world, members),
        _pictured(world, np.concatenate([*world.truth.nonmembers, world.public.auxiliary])),
        predicted,
    )
    return _numbers(scores) if isinstance(scores, InversionScores) else {}


def _pictured(world: World, ids: np.ndarray) -> LabelledImages:
    images, labels = world.public.store.batch(torch.from_numpy(ids[:MOST_PER_SET]), torch.float64)
    return LabelledImages(to_pixels(world.public.store, images).cpu(), labels.cpu())


def _numbers(scores: InversionScores) -> dict[str, float]:
    numbers = {"to_class_mean": scores.to_mean, "to_member": scores.to_member, "to_other": scores.to_other}
    for name, estimate in (("gap", scores.gap), ("recognised", scores.accuracy)):
        if isinstance(estimate, NotAvailable):
            continue
        numbers[name] = estimate.value
        if not isinstance(estimate.interval, NotAvailable):
            numbers |= {f"{name}_low": estimate.interval.low, f"{name}_high": estimate.interval.high}
    return numbers
