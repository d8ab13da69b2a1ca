"""Worlds for attacks that train networks, made once per session."""

import math
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch

from app.attacks.context import AttackContext, ShadowSet
from app.attacks.controls import Toy, make_toy
from app.attacks.membership.yeom import Yeom
from app.attacks.model_query import ModelQuery
from app.attacks.models import AttackedModel, Shadow, Snapshot
from app.attacks.public_knowledge import PublicKnowledge
from app.attacks.shadows.central import ShadowJob, initial_vector, train_centrally
from app.attacks.shadows.shadow_store import CentralShadows
from app.federation.local_training import LocalTraining
from app.metrics.membership import NO_CLIENT, MembershipScores
from app.metrics.roc import roc_curve
from app.models.cnn import CNN
from datamodules.store import ImageStore

SHADOWS = 4


@dataclass(frozen=True)
class World:
    """A toy with its shadows and the answers asked for so far."""

    toy: Toy
    source: object
    query: ModelQuery

    @property
    def target(self):
        """The attacked model."""
        return self.toy.memorised

    def context(self, target=None, source=None):
        """A lab for one target, with shadows of its own if wanted."""
        return AttackContext(self.toy.knowledge, self.query, source or self.source, target or self.target)

    def auc(self, attack, target=None, truth=None, source=None):
        """Area under the curve of an attack on the audited samples."""
        model = target or self.target
        scores = attack.scores(model, self.toy.samples, self.context(model, source))
        return area(scores, self.toy.truth if truth is None else truth)

    def yeom(self):
        """Area under the curve of the loss."""
        return self.auc(Yeom())


def area(scores, truth):
    """Area under the ROC curve."""
    return roc_curve(MembershipScores.of(scores, truth)).auc


def chance(truth):
    """Three standard deviations of the area of scores that know nothing."""
    members, others = int(truth.sum()), int((~truth).sum())
    return 3 * math.sqrt((members + others + 1) / (12 * members * others))


@cache
def memorised():
    """Target and shadows fit their members perfectly."""
    toy = make_toy(0)
    return World(toy, CentralShadows(toy.knowledge, toy.audited, SHADOWS), ModelQuery(toy.knowledge))


@cache
def learning():
    """Target and shadows are caught in the middle of training: the loss alone leaves a lot to find."""
    toy = make_toy(0)
    local = replace(toy.knowledge.local, epochs=1)
    knowledge = replace(toy.knowledge, local=local, learning_rates=(0.05,) * 10)
    (snapshots,) = train_centrally(knowledge, [ShadowJob(0, 1.0, toy.members)], (2, 6, 10), 1, 1)
    target = AttackedModel("learning", NO_CLIENT, len(toy.members), snapshots)
    return World(
        replace(toy, knowledge=knowledge, memorised=target),
        CentralShadows(knowledge, toy.audited, 6),
        ModelQuery(knowledge),
    )


class Changed:
    """Shadows of another source, each one changed."""

    def __init__(self, source, change):
        self.source, self.change = source, change

    def shadows(self, target, kind, first=None):
        """The changed shadows."""
        made = self.source.shadows(target, kind, first)
        return ShadowSet(tuple(map(self.change, made.shadows)))


def swapped(shadow):
    """A shadow that calls its members non-members."""
    return Shadow(shadow.model, shadow.nonmembers, shadow.members)


def frozen(model):
    """A model that was the same in all rounds."""
    snapshots = tuple(replace(model.last, round=round_) for round_ in model.rounds)
    return replace(model, key=f"{model.key}-frozen", snapshots=snapshots)


@cache
def images(statistics):
    """Public knowledge about a small convolutional network with batch norm, and images to distil it on."""
    generator = torch.Generator().manual_seed(0)
    store = ImageStore(
        torch.rand(240, 8, 8, 1, generator=generator),
        torch.randint(0, 4, (240,), generator=generator),
        torch.full((1,), 0.5),
        torch.full((1,), 0.3),
        4,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = CNN(store.shape, u=4, statistics=statistics)
    return PublicKnowledge(
        net, store, LocalTraining(), (0.1,), auxiliary=np.arange(100), population=np.arange(100, 228), batch_size=32
    )


def random_model(knowledge, key, rates=(1.0,)):
    """A model with random values in every round."""
    seen = [
        Snapshot(number, rate, initial_vector(knowledge, rate, number)) for number, rate in enumerate(rates, start=1)
    ]
    return AttackedModel(key, NO_CLIENT, 50, tuple(seen))


class Given:
    """Shadows that are there already."""

    def __init__(self, *shadows):
        self.made = shadows

    def shadows(self, target, kind, first=None):
        """All of them, or the first few."""
        return ShadowSet(self.made[:first])


def counted(monkeypatch, module, name):
    """Calls of a module's function from now on."""
    calls, real = [], getattr(module, name)
    monkeypatch.setattr(module, name, lambda *given, **named: calls.append(given) or real(*given, **named))
    return calls
