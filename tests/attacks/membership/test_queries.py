"""Several queries per sample: all models answer the same augmentations, LiRA averages over them, RMIA votes."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from attack_kit import AttackCase, area, chance_bound, found, plain_softmax, toy
from scipy.stats import norm

from app.attacks.membership.lira import LiRAOffline, LiRAOnline
from app.attacks.membership.rmia import RMIAOffline, RMIAOnline, voted
from app.attacks.model_query import ModelQuery
from app.attacks.models import AttackedModel
from app.attacks.shadows.central import ShadowJob, train_centrally
from app.attacks.shadows.shadow_store import CentralShadows
from app.common.errors import UserError
from app.common.seeding import torch_generator
from app.metrics.membership import NO_CLIENT
from datamodules import CropFlip

ALL = [LiRAOffline, LiRAOnline, RMIAOffline, RMIAOnline]
CROP = CropFlip(padding=1)


@pytest.fixture(scope="module")
def augmented():
    """The toy's samples, learnt in random crops and mirrored: single images are not remembered well."""

    def augment(images, generator):
        return CROP(images, generator, knowledge.store.black)

    knowledge = replace(toy().knowledge, augment=augment, learning_rates=(0.1,) * 10)
    (snapshots,) = train_centrally(knowledge, [ShadowJob(0, 1.0, toy().members, 7)], (10,), 1)
    target = AttackedModel("augmented", NO_CLIENT, len(toy().members), snapshots)
    truth = np.isin(toy().samples, toy().members)
    source = CentralShadows(knowledge, toy().audited, 6)
    return AttackCase(knowledge, target, toy().samples, truth, source, ModelQuery(knowledge))


def looked_at(case, model, samples, view):
    """Probabilities of the true class, from the network and the augmentation themselves."""
    images, labels = case.knowledge.store.batch(torch.from_numpy(samples))
    if view:
        generator = torch_generator(case.knowledge.seed, "query-augmentation", view)
        images = CROP.apply(images, CROP.draw(len(images), generator), case.knowledge.store.black)
    with torch.no_grad():
        logits = case.query.network(model.last)(images).double().numpy()
    return plain_softmax(logits)[np.arange(len(samples)), labels.numpy()]


def test_lira_is_the_mean_over_the_queries(augmented):
    """Distance from the shadows' mean in pooled standard deviations, query by query, written out."""
    scores, shadows = [], augmented.context().shadows("out")
    for view in range(3):
        models = [augmented.target, *(shadow.model for shadow in shadows)]
        chances = np.array([looked_at(augmented, model, augmented.samples, view) for model in models])
        phi = np.log(chances) - np.log1p(-chances)
        means = phi[1:].mean(axis=0)
        spread = math.sqrt(((phi[1:] - means) ** 2).sum() / (phi[1:].size - means.size))
        scores.append((phi[0] - means) / spread)
    assert np.ptp(scores, axis=0).max() > 0.1, "the queries differ"
    np.testing.assert_allclose(augmented.scores(LiRAOffline(queries=3)), np.mean(scores, axis=0), rtol=1e-4, atol=1e-4)


def test_lira_online_is_the_mean_over_the_queries(augmented):
    """Of log-likelihood ratios of two Gaussians, with each sample in half of the shadows."""
    shadows, scores = augmented.context().shadows("in-out"), []
    inside = np.array([shadow.trained_on(augmented.samples) for shadow in shadows])
    for view in range(2):
        phi = [
            np.log(p) - np.log1p(-p)
            for p in (looked_at(augmented, shadow.model, augmented.samples, view) for shadow in shadows)
        ]
        own = looked_at(augmented, augmented.target, augmented.samples, view)
        densities = []
        for side in (inside, ~inside):
            means = np.mean(phi, axis=0, where=side)
            squares = np.sum((phi - means) ** 2, where=side)
            spread = math.sqrt(squares / (side.sum() - means.size))
            densities.append(norm.logpdf(np.log(own) - np.log1p(-own), means, spread))
        scores.append(densities[0] - densities[1])
    np.testing.assert_allclose(augmented.scores(LiRAOnline(queries=2)), np.mean(scores, axis=0), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("queries", [2, 3])
def test_rmia_votes(augmented, queries):
    """Pair by pair: at least half of the queries of a sample must dominate; rounding may move one pair."""
    shadows, population = augmented.context().shadows("out"), augmented.knowledge.population

    def ratios(samples, view):
        outside = np.mean([looked_at(augmented, shadow.model, samples, view) for shadow in shadows], axis=0)
        return looked_at(augmented, augmented.target, samples, view) / (0.7 * outside + 0.3)

    own = np.array([ratios(augmented.samples, view) for view in range(queries)])
    votes = (own[:, :, None] > ratios(population, 0)).mean(axis=0)
    expected = (votes >= 0.5).mean(axis=1)
    np.testing.assert_allclose(
        augmented.scores(RMIAOffline(a=0.4, queries=queries)), expected, atol=1.5 / len(population)
    )


def test_vote_of_at_least_half():
    """The largest bound that at least half of the ratios reach."""
    for count in range(1, 7):
        ratios = np.random.default_rng(count).permutation(np.arange(count * 5.0)).reshape(count, 5)
        best = [max(bound for bound in column if np.mean(column >= bound) >= 0.5) for column in ratios.T]
        np.testing.assert_array_equal(voted(ratios), best)


@pytest.mark.parametrize("kind", ALL)
def test_one_query_is_the_image_itself(augmented, kind):
    """Bit for bit what it is for a run that trains without augmentation, and no remark."""
    plain = replace(augmented.knowledge, augment=None)
    context = augmented.context()
    ours = kind().scores(augmented.target, augmented.samples, context)
    assert not any("queries" in note for note in context.notes)
    context.query = ModelQuery(plain)
    np.testing.assert_array_equal(kind(queries=1).scores(augmented.target, augmented.samples, context), ours)
    context.knowledge = plain
    np.testing.assert_array_equal(kind(queries=9).scores(augmented.target, augmented.samples, context), ours)
    assert any("1 query per sample instead of 9" in note for note in context.notes)


@pytest.mark.parametrize("kind", [LiRAOnline, RMIAOnline])
def test_more_queries_find_more(augmented, kind):
    """Of members that were trained on in other crops; the report says what it costs."""
    context = augmented.context()
    many = kind(queries=16).scores(augmented.target, augmented.samples, context)
    one = augmented.scores(kind())
    assert any("16 queries per sample" in note for note in context.notes)
    assert area(many, augmented.truth) > area(one, augmented.truth) + 0.1
    assert found(many, augmented.truth, 0.1) > 1.5 * found(one, augmented.truth, 0.1)


@pytest.mark.parametrize("kind", ALL)
def test_nothing_to_find(augmented, kind):
    """An untrained model, whatever the queries."""
    scores = augmented.scores(kind(queries=4), replace(toy().untrained, key="untrained"))
    assert abs(area(scores, augmented.truth) - 0.5) <= chance_bound(augmented.truth)


def test_models_answer_the_same_queries_however_often_they_are_asked(augmented):
    """Views are kept apart, also in the cache, and depend on the seed alone."""
    fresh = ModelQuery(augmented.knowledge)
    views = [augmented.query.responses(augmented.target, augmented.samples, view=view).logits for view in (0, 1, 2)]
    assert not np.array_equal(views[1], views[2])
    for view in (2, 0, 1):
        again = fresh.responses(augmented.target, augmented.samples, view=view).logits
        np.testing.assert_array_equal(again, views[view])


@pytest.mark.parametrize("kind", ALL)
def test_refuses_no_query(kind):
    """At least the image itself."""
    with pytest.raises(UserError, match="queries of "):
        kind(queries=0)
