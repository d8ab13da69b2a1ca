"""A small world with known leakage, on which every attack is tried before its numbers are believed.

Gaussian inputs with random labels: nothing can be learnt but the samples themselves, so a network that fits them has
memorised them, and one that was never trained knows nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch.optim import SGD

from app.attacks.models import AttackedModel, Snapshot
from app.attacks.public import Public
from app.attacks.responses import Ids
from app.attacks.shadows.central import Job, initial_vector, train_centrally
from app.federation.local import LocalTraining
from app.metrics.membership import NO_CLIENT
from app.models.mlp import MLP
from app.seeding import derive_key, numpy_generator
from datamodules.store import ImageStore

AUDITED, AUXILIARY, POPULATION = 400, 400, 1000
CLASSES, PIXELS = 10, (4, 8)
TWINS = AUDITED + AUXILIARY + POPULATION
ROUNDS = (2, 6, 10)
"""Rounds whose models the toy's adversary has seen."""


@dataclass(frozen=True, eq=False)
class Toy:
    """The small world.

    Attributes:
        public: its network, recipe and data; labels are random.
        memorised: a model that fits its 200 members perfectly.
        untrained: a model with random values.
        members: ids of the memorised model's members.
        nonmembers: as many from the same source.
    """

    public: Public
    memorised: AttackedModel
    untrained: AttackedModel
    members: Ids
    nonmembers: Ids

    @property
    def samples(self) -> Ids:
        """Audited samples, ascending."""
        return np.arange(AUDITED)

    @property
    def truth(self) -> np.ndarray:
        """Whether each audited sample is a member (bool)."""
        return np.isin(self.samples, self.members)

    @property
    def audited(self) -> Mapping[int, Ids]:
        """Audited samples by client, as the makers of shadows want them."""
        return {NO_CLIENT: self.samples}

    @property
    def twins(self) -> Ids:
        """Ids of the members' images with a wrong label each, in the order of the members."""
        return TWINS + np.arange(len(self.members))

    @property
    def audited_with_twins(self) -> Mapping[int, Ids]:
        """Members and their twins by client."""
        return {NO_CLIENT: np.concatenate([self.members, self.twins])}


def make_toy(seed: int = 0) -> Toy:
    """Draw the data and train the model; takes about a second."""
    members = np.sort(numpy_generator(seed, "toy-members").permutation(AUDITED)[: AUDITED // 2])
    public = _public(seed, members)
    nonmembers = np.setdiff1d(np.arange(AUDITED), members)
    (snapshots,) = train_centrally(public, [Job(0, 1.0, members)], ROUNDS, derive_key(seed, "toy-target"), 1)
    empty = initial_vector(public, 1.0, derive_key(seed, "toy-untrained"))
    untrained = tuple(Snapshot(round_, 1.0, empty) for round_ in ROUNDS)
    return Toy(
        public=public,
        memorised=AttackedModel(f"toy-memorised-{seed}", NO_CLIENT, len(members), snapshots),
        untrained=AttackedModel(f"toy-untrained-{seed}", NO_CLIENT, len(members), untrained),
        members=members,
        nonmembers=nonmembers,
    )


def _public(seed: int, members: Ids) -> Public:
    count = TWINS
    generator = numpy_generator(seed, "toy-data")
    images = torch.from_numpy(generator.normal(size=(count, *PIXELS, 1))).float()
    labels = torch.from_numpy(generator.integers(0, CLASSES, count))
    wrong = (labels[members] + torch.from_numpy(generator.integers(1, CLASSES, len(members)))) % CLASSES
    images, labels = torch.cat([images, images[members]]), torch.cat([labels, wrong])
    store = ImageStore(images, labels, torch.zeros(1), torch.ones(1), CLASSES)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_key(seed, "toy-network"))
        net = MLP(store.shape, hidden=(128,))
    return Public(
        prototype=net,
        store=store,
        local=LocalTraining(epochs=8, batch_size=20, optimizer=partial(SGD, lr=0.1, momentum=0.9)),
        learning_rates=(0.1,) * ROUNDS[-1],
        auxiliary=np.arange(AUDITED, AUDITED + AUXILIARY),
        population=np.arange(AUDITED + AUXILIARY, count),
        seed=seed,
    )
