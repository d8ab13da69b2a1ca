"""Targets of membership attacks, models with given responses, and the measures of an attack's success."""

import math
from dataclasses import dataclass, replace
from functools import cache, partial
from types import SimpleNamespace

import numpy as np
import torch
from torch.optim import SGD

from app.attacks.context import AttackContext, ShadowSet
from app.attacks.controls import make_toy, toy_uploads
from app.attacks.model_query import ModelQuery
from app.attacks.models import AttackedModel, Responses, Shadow, Snapshot
from app.attacks.public_knowledge import PublicKnowledge
from app.attacks.shadows.central import ShadowJob, initial_vector, train_centrally
from app.attacks.shadows.shadow_store import CentralShadows
from app.federation.local_training import LocalTraining
from app.metrics.membership import NO_CLIENT, MembershipScores
from app.metrics.roc import roc_curve, tpr_at_fpr
from app.models.cnn import CNN
from app.models.mlp import MLP
from datamodules.store import ImageStore

NOBODY = np.empty(0, dtype=np.int64)
"""No samples."""


def area(scores, truth):
    """Area under the ROC curve, 0 to 1."""
    return roc_curve(MembershipScores.of(scores, truth)).auc


def found(scores, truth, fpr=0.01):
    """True positive rate at a false positive rate."""
    return tpr_at_fpr(roc_curve(MembershipScores.of(scores, truth)), fpr).tpr


def looped_area(scores, truth):
    """The same area from its definition: pairs won, ties counting one half."""
    wins = 0.0
    members, others = scores[truth].tolist(), scores[~truth].tolist()
    for member in members:
        for other in others:
            wins += 1.0 if member > other else 0.5 if member == other else 0.0
    return wins / (truth.sum() * (~truth).sum())


def chance_bound(truth):
    """Three standard deviations of the area of scores that know nothing."""
    inside, outside = int(truth.sum()), int((~truth).sum())
    return 3 * math.sqrt((inside + outside + 1) / (12 * inside * outside))


def plain_softmax(logits):
    """Probabilities straight from the definition, row by row."""
    rows = []
    for row in np.asarray(logits).tolist():
        highest = max(row)
        weights = [math.exp(value - highest) for value in row]
        total = sum(weights)
        rows.append([weight / total for weight in weights])
    return np.array(rows)


@dataclass(frozen=True)
class AttackCase:
    """A target, its audited samples with the truth, and the attacker's means.

    Attributes:
        knowledge: public knowledge.
        target: the attacked model.
        samples: audited ids.
        truth: whether each was trained on.
        source: of shadows.
        query: shared, so that responses are computed once.
    """

    knowledge: PublicKnowledge
    target: AttackedModel
    samples: np.ndarray
    truth: np.ndarray
    source: object
    query: ModelQuery

    @property
    def members(self):
        return self.samples[self.truth]

    @property
    def nonmembers(self):
        return self.samples[~self.truth]

    def context(self, target=None, source=None):
        """A fresh context, without notes."""
        model, shadows = target or self.target, source or self.source
        return AttackContext(self.knowledge, self.query, shadows, model, uploads=partial(toy_uploads, model, shadows))

    def scores(self, attack, target=None, source=None):
        """Scores of an attack on the target, or on another model."""
        return attack.scores(target or self.target, self.samples, self.context(target, source))

    def auc(self, attack, target=None, source=None, truth=None):
        """Area under the ROC curve of an attack on the audited samples."""
        return area(self.scores(attack, target, source), self.truth if truth is None else truth)

    def attacking(self, attack, kind, number=0):
        """Scores and truth of an attack on a shadow."""
        shadow = self.context().shadows(kind)[number]
        scores = attack.scores(shadow.model, shadow.samples, self.context().attacking(shadow))
        return scores, shadow.trained_on(shadow.samples)


@cache
def toy():
    """Random labels, one model that has memorised its members and one that was never trained."""
    return make_toy(0)


def memorised_case(shadows, folder=None):
    """The memorised toy with so many shadows of each kind."""
    source = CentralShadows(toy().knowledge, toy().audited, shadows, folder)
    truth = np.isin(toy().samples, toy().members)
    return AttackCase(toy().knowledge, toy().memorised, toy().samples, truth, source, ModelQuery(toy().knowledge))


@cache
def memorised_toy():
    """The memorised toy with 4 shadows, for attacks that train a network."""
    return memorised_case(4)


@cache
def learning_toy():
    """Target and 6 shadows in the middle of their training, where the loss alone is a weak attack."""
    local = replace(toy().knowledge.local, epochs=1)
    knowledge = replace(toy().knowledge, local=local, learning_rates=(0.05,) * 10)
    (snapshots,) = train_centrally(knowledge, [ShadowJob(0, 1.0, toy().members, 1)], (2, 6, 10), 1)
    target = AttackedModel("learning", NO_CLIENT, len(toy().members), snapshots)
    source = CentralShadows(knowledge, toy().audited, 6)
    truth = np.isin(toy().samples, toy().members)
    return AttackCase(knowledge, target, toy().samples, truth, source, ModelQuery(knowledge))


def noisy_case(seed=0, side=500):
    """Ten Gaussian classes with 30 % random labels: some samples are hard for every model, so a loss alone misleads."""
    rng = np.random.default_rng(seed)
    count = 3 * side + 1000
    classes = rng.integers(0, 10, count)
    pixels = rng.normal(size=(10, 32))[classes] + rng.normal(size=(count, 32))
    labels = np.where(rng.random(count) < 0.3, rng.integers(0, 10, count), classes)
    images = torch.from_numpy(pixels.reshape(count, 4, 8, 1)).float()
    store = ImageStore(images, torch.from_numpy(labels), torch.zeros(1), torch.ones(1), 10)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = MLP(store.shape, hidden=(128,))
    knowledge = PublicKnowledge(
        prototype=net,
        store=store,
        local=LocalTraining(epochs=10, batch_size=40, optimizer=partial(SGD, lr=0.1, momentum=0.9)),
        learning_rates=(0.1,),
        auxiliary=np.arange(2 * side, 3 * side),
        population=np.arange(3 * side, count),
        seed=seed,
    )
    samples = np.arange(2 * side)
    members = np.sort(rng.permutation(samples)[:side])
    (snapshots,) = train_centrally(knowledge, [ShadowJob(0, 1.0, members, seed)], (1,), 1)
    target = AttackedModel("noisy", NO_CLIENT, side, snapshots)
    source = CentralShadows(knowledge, {NO_CLIENT: samples}, 16)
    return AttackCase(knowledge, target, samples, np.isin(samples, members), source, ModelQuery(knowledge))


class FakeQuery:
    """Responses from tables of logits instead of networks.

    Attributes:
        tables: logits of all ids by key of the model.
        labels: of all ids.
    """

    def __init__(self, tables, labels):
        self.tables, self.labels = tables, np.asarray(labels)

    def responses(self, model, samples, snapshot=-1, view=0):
        """Rows of the model's table."""
        return Responses(np.asarray(self.tables[model.key], dtype=np.float64)[samples], self.labels[samples])


class FixedShadows:
    """Hands out existing shadows, the same for every target and kind."""

    def __init__(self, *shadows):
        self._shadows = shadows

    def prepare(self, targets, kind):
        """They exist."""

    def shadows(self, target, kind, first=None):
        return ShadowSet(self._shadows[:first])


class ChangedShadows:
    """Shadows of another source, each one changed."""

    def __init__(self, source, change):
        self.source, self.change = source, change

    def prepare(self, targets, kind):
        """They exist."""

    def shadows(self, target, kind, first=None):
        return ShadowSet(tuple(map(self.change, self.source.shadows(target, kind, first).shadows)))


def fake_model(key):
    """A model that only has a name."""
    return AttackedModel(key, NO_CLIENT, 1, ())


def fake_context(tables, labels, shadows, classes, population=()):
    """A context over tables of logits.

    Args:
        tables: logits of all ids by key; `target` is the attacked model.
        labels: of all ids.
        shadows: members and non-members by key.
        classes: number of classes.
        population: ids.
    """
    made = [Shadow(fake_model(key), np.asarray(inside), np.asarray(out)) for key, (inside, out) in shadows.items()]
    knowledge = SimpleNamespace(seed=0, classes=classes, population=np.asarray(population, dtype=np.int64))
    return AttackContext(knowledge, FakeQuery(tables, labels), FixedShadows(*made), fake_model("target"))


def logits_with_probability(probabilities, labels, classes):
    """Logits whose softmax has these probabilities of the true classes, the rest spread evenly."""
    probabilities = np.asarray(probabilities, dtype=np.float64)
    logits = np.repeat(np.log((1 - probabilities) / (classes - 1))[:, None], classes, axis=1)
    logits[np.arange(len(logits)), labels] = np.log(probabilities)
    return logits


def swapped(shadow):
    """A shadow that calls its members non-members."""
    return Shadow(shadow.model, shadow.nonmembers, shadow.members)


def frozen(model):
    """A model that was the same in all rounds."""
    snapshots = tuple(replace(model.last, round=round_) for round_ in model.rounds)
    return replace(model, key=f"{model.key}-frozen", snapshots=snapshots)


@cache
def batch_norm_knowledge(statistics):
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
    snapshots = [
        Snapshot(number, rate, initial_vector(knowledge, rate, number)) for number, rate in enumerate(rates, start=1)
    ]
    return AttackedModel(key, NO_CLIENT, 50, tuple(snapshots))


def counted(monkeypatch, module, name):
    """Calls of a module's function from now on."""
    calls, real = [], getattr(module, name)
    monkeypatch.setattr(module, name, lambda *args, **options: calls.append(args) or real(*args, **options))
    return calls
