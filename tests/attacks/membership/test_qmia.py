"""QMIA: a regression on other data predicts the response to a non-member, with the right spread."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from attack_kit import NOBODY, FakeQuery, area, fake_model, found
from federation_under_attack import RandomLabels, audit_of, audited, trained
from scipy.stats import norm
from torch import nn
from torch.optim import Adam

from app.attacks.context import AttackContext
from app.attacks.membership import attack_net
from app.attacks.membership.qmia import QMIA, QuantileNet
from app.attacks.membership.yeom import Yeom
from app.common.errors import UserError
from datamodules import Holdout
from datamodules.store import ImageStore

SIDE = 2000
"""Samples of the population, and as many audited ones."""


def spread_context(delta=0.0):
    """Dark images have phi around 0, bright ones around 6 with a third of the spread.

    Ids from SIDE on are audited; every second one is a member, whose phi is delta deviations larger.
    """
    rng = np.random.default_rng(0)
    bright, labels = rng.random(2 * SIDE) < 0.5, rng.integers(0, 2, 2 * SIDE)
    images = torch.from_numpy(np.where(bright, 1.0, -1.0)).float().reshape(-1, 1, 1, 1).repeat(1, 4, 4, 1)
    member = (np.arange(2 * SIDE) >= SIDE) & (np.arange(2 * SIDE) % 2 == 0)
    spread = np.where(bright, 1.0, 3.0)
    phi = np.where(bright, 6.0, 0.0) + spread * (rng.normal(size=2 * SIDE) + delta * member)
    logits = np.zeros((2 * SIDE, 2))
    logits[np.arange(2 * SIDE), labels] = phi
    store = ImageStore(images, torch.from_numpy(labels), torch.zeros(1), torch.ones(1), 2)
    knowledge = SimpleNamespace(seed=0, classes=2, population=np.arange(SIDE), store=store)
    target = replace(fake_model("target"), snapshots=(SimpleNamespace(round=1),))
    context = AttackContext(knowledge, FakeQuery({"target": logits}, labels), None, target)
    return context, target, np.arange(SIDE, 2 * SIDE), bright[SIDE:], member[SIDE:]


def test_non_members_are_standard_normal():
    """In each group: mean 0, deviation 1, and above the threshold as often as demanded."""
    context, target, samples, bright, _ = spread_context()
    attack = QMIA(fpr=0.05, channels=2)
    scores = attack.scores(target, samples, context)
    for group in (bright, ~bright):
        assert scores[group].mean() == pytest.approx(0, abs=0.1)
        assert scores[group].std() == pytest.approx(1, abs=0.1)
        assert (scores[group] > attack.threshold).mean() == pytest.approx(0.05, abs=0.02)


def test_members_are_found_by_their_own_distance():
    """AUC Phi(delta / sqrt 2), where one threshold on the loss finds fewer."""
    context, target, samples, _, member = spread_context(delta=2.0)
    scores = QMIA(channels=2).scores(target, samples, context)
    assert area(scores, member) == pytest.approx(norm.cdf(2 / np.sqrt(2)), abs=0.02)
    assert area(scores, member) > area(Yeom().scores(target, samples, context), member) + 0.05


def test_score_is_the_distance_that_the_network_predicts(noisy):
    """(phi - mean) / deviation with the trained network's own numbers, sample by sample."""
    attack = QMIA(epochs=3)
    scores = noisy.scores(attack)
    (net,) = attack._nets._results.values()
    known = noisy.query.responses(noisy.target, noisy.knowledge.population).margins
    own = noisy.query.responses(noisy.target, noisy.samples).margins
    for row in (0, 7, 400):
        images, labels = noisy.knowledge.store.batch(torch.from_numpy(noisy.samples[row : row + 1]))
        onehot = torch.eye(10)[labels]
        with torch.no_grad():
            mean, log_deviation = net(images, onehot)[0].tolist()
        expected = ((own[row] - known.mean()) / known.std() - mean) / np.exp(log_deviation)
        assert scores[row] == pytest.approx(expected, rel=1e-4)


def test_beats_the_loss(noisy):
    """Where labels are wrong, a non-member's response is known to be low."""
    mine, loss = noisy.scores(QMIA()), noisy.scores(Yeom())
    assert area(mine, noisy.truth) > area(loss, noisy.truth) + 0.01
    assert found(mine, noisy.truth) > 2 * found(loss, noisy.truth)


def test_gaussian_objective():
    """Of a network that has two numbers only, these become mean and log deviation of the values."""

    class Constant(nn.Module):
        def __init__(self):
            super().__init__()
            self.numbers = nn.Parameter(torch.zeros(2))

        def forward(self, rows):
            """The same for every row."""
            return self.numbers.expand(len(rows), 2)

    values = torch.from_numpy(np.random.default_rng(0).normal(1.5, 0.4, 400)).float()
    settings = {"epochs": 300, "batch_size": 400, "optimizer": partial(Adam, lr=0.02), "loss": "gaussian", "seed": 0}
    net = attack_net.fit(Constant, [torch.zeros(400, 1)], values, **settings)
    expected = [values.mean().item(), values.std(correction=0).log().item()]
    assert net.numbers.tolist() == pytest.approx(expected, abs=0.01)


def test_images_of_any_size():
    """Also those smaller than the steps of the convolutions."""
    for height, width in ((1, 1), (4, 8), (7, 5), (28, 28)):
        images, labels = torch.zeros(2, 3, height, width), torch.eye(4)[:2]
        net = QuantileNet(images, labels, 2)
        assert net(images, labels).shape == (2, 2)


def test_no_shadow_is_trained(tmp_path):
    """Not for a threshold either; every upload has a regression of its own."""
    data = RandomLabels(samples=600, holdout=Holdout(0.5, 0.0, 0.4))
    audit = audit_of(*trained(tmp_path, data=data))
    findings = audited(audit, "qmia")
    assert sum(audit.knowledge.shadow_counts.values()) == 0
    assert findings["qmia.uploads"].leakage.auc.value > 0.9
    assert findings["qmia.uploads"].conditions.shadows == "none"
    assert findings["qmia.global"].leakage.known is not None
    assert any("learns from 240 samples" in note for note in findings["qmia.global"].notes)


def test_audited_samples_are_left_out_of_the_population(noisy):
    """They would teach the regression what members are like."""
    population = np.append(noisy.knowledge.population, noisy.samples)
    case = replace(noisy, knowledge=replace(noisy.knowledge, population=population))
    attack = {"epochs": 2}
    np.testing.assert_array_equal(case.scores(QMIA(**attack)), noisy.scores(QMIA(**attack)))


def test_needs_a_population(noisy):
    """The message says how to set one aside."""
    case = replace(noisy, knowledge=replace(noisy.knowledge, population=NOBODY))
    with pytest.raises(UserError, match=r"data\.holdout\.population"):
        case.scores(QMIA())


@pytest.mark.parametrize("options", [{"fpr": 0.0}, {"fpr": 1.0}, {"channels": 0}, {"patience": 0}])
def test_refuses_bad_options(options):
    """Checked when the attack is made."""
    with pytest.raises(UserError, match=f"{next(iter(options))} of qmia is "):
        QMIA(**options)
