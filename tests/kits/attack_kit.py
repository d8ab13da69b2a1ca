"""Worlds to attack, models that answer what a test wants, and the numbers that attacks are judged by."""

import math
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import numpy as np
import torch
from torch.optim import SGD

from app.attacks.context import AttackContext, ShadowSet
from app.attacks.model_query import ModelQuery
from app.attacks.models import AttackedModel, Shadow
from app.attacks.public_knowledge import PublicKnowledge
from app.attacks.responses import Responses
from app.attacks.shadows.central import ShadowJob, train_centrally
from app.attacks.shadows.shadow_store import CentralShadows
from app.federation.local_training import LocalTraining
from app.metrics.membership import NO_CLIENT, MembershipScores
from app.metrics.roc import roc_curve, tpr_at_fpr
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
    for member in scores[truth]:
        for other in scores[~truth]:
            wins += 1.0 if member > other else 0.5 if member == other else 0.0
    return wins / (truth.sum() * (~truth).sum())


def chance_bound(truth):
    """Three standard deviations of the area of scores that know nothing."""
    inside, outside = int(truth.sum()), int((~truth).sum())
    return 3 * math.sqrt((inside + outside + 1) / (12 * inside * outside))


def plain_softmax(logits):
    """Probabilities straight from the definition, row by row."""
    rows = []
    for row in logits:
        weights = [math.exp(value - max(row)) for value in row]
        rows.append([weight / sum(weights) for weight in weights])
    return np.array(rows)


@dataclass
class World:
    """Something to attack.

    Attributes:
        knowledge: what everybody knows.
        target: the attacked model.
        samples: audited ids.
        truth: whether each was trained on.
        source: of shadows.
        query: shared, so that models answer once.
    """

    knowledge: PublicKnowledge
    target: AttackedModel
    samples: np.ndarray
    truth: np.ndarray
    source: CentralShadows
    query: ModelQuery

    def context(self, target=None):
        """A fresh lab, without notes."""
        return AttackContext(self.knowledge, self.query, self.source, target or self.target)

    def scores(self, attack, target=None):
        """Scores of an attack on the target, or on another model."""
        return attack.scores(target or self.target, self.samples, self.context(target))

    def attacking(self, attack, kind, number=0):
        """Scores and truth where a shadow plays the target."""
        actor = self.context().shadows(kind)[number]
        scores = attack.scores(actor.model, actor.samples, self.context().attacking(actor))
        return scores, actor.trained_on(actor.samples)


def noisy_world(seed=0, side=500):
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
    (snapshots,) = train_centrally(knowledge, [ShadowJob(0, 1.0, members)], (1,), seed, 1)
    target = AttackedModel("noisy", NO_CLIENT, side, snapshots)
    source = CentralShadows(knowledge, {NO_CLIENT: samples}, 16)
    return World(knowledge, target, samples, np.isin(samples, members), source, ModelQuery(knowledge))


class FakeOracle:
    """Answers from tables of logits instead of networks.

    Attributes:
        tables: logits of all ids by key of the model.
        labels: of all ids.
    """

    def __init__(self, tables, labels):
        self.tables, self.labels = tables, np.asarray(labels)

    def responses(self, model, samples, snapshot=-1):
        """Rows of the model's table."""
        return Responses(np.asarray(self.tables[model.key], dtype=np.float64)[samples], self.labels[samples])


class FakeSource:
    """Hands out shadows that a test made up."""

    def __init__(self, shadows):
        self._shadows = tuple(shadows)

    def shadows(self, target, kind, first=None):
        """The same for every target and kind."""
        return ShadowSet(self._shadows[:first])


def fake_model(key):
    """A model that only has a name."""
    return AttackedModel(key, NO_CLIENT, 1, ())


def fake_lab(tables, labels, shadows, classes, population=()):
    """A lab over tables of logits.

    Args:
        tables: logits of all ids by key; `target` is the attacked model.
        labels: of all ids.
        shadows: members and non-members by key.
        classes: number of classes.
        population: ids.
    """
    made = [Shadow(fake_model(key), np.asarray(inside), np.asarray(out)) for key, (inside, out) in shadows.items()]
    knowledge = SimpleNamespace(seed=0, classes=classes, population=np.asarray(population, dtype=np.int64))
    return AttackContext(knowledge, FakeOracle(tables, labels), FakeSource(made), fake_model("target"))


def logits_with_probability(probabilities, labels, classes):
    """Logits whose softmax has these probabilities of the true classes, the rest spread evenly."""
    probabilities = np.asarray(probabilities, dtype=np.float64)
    logits = np.repeat(np.log((1 - probabilities) / (classes - 1))[:, None], classes, axis=1)
    logits[np.arange(len(logits)), labels] = np.log(probabilities)
    return logits
