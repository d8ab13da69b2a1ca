"""FedMIA: distances from other clients' scores, recomputed one by one, on equal and on unequal submodels."""

from functools import partial

import numpy as np
import pytest
import torch
from attack_kit import area, batch_norm_knowledge, chance_bound, random_model
from federation_under_attack import RandomLabels, Zeroing, audit_of, audited, trained
from scipy.stats import kstest, norm
from scipy.stats import t as student_t
from torch.nn.functional import cross_entropy

from app.attacks.context import AttackContext
from app.attacks.membership.fedmia import FedMIAGradient, FedMIALoss, student
from app.attacks.model_query import ModelQuery
from app.attacks.models import Snapshot
from app.attacks.targets import uploaded_models, uploads_beside
from app.common.errors import UserError
from callbacks import SecureAggregation

BOTH = [FedMIALoss, FedMIAGradient]
RATES = (1.0, 1.0, 1.0, 0.5, 0.5, 0.5)


@pytest.fixture(scope="module")
def unequal(tmp_path_factory):
    """Three wide and three narrow clients that memorise their samples in two rounds."""
    data = RandomLabels(clients=6, samples=600)
    return audit_of(*trained(tmp_path_factory.mktemp("unequal"), capacities=list(RATES), data=data))


@pytest.fixture(scope="module")
def equal(tmp_path_factory):
    """Six clients that train the whole network."""
    data = RandomLabels(clients=6, samples=600)
    return audit_of(*trained(tmp_path_factory.mktemp("equal"), data=data))


@pytest.fixture(scope="module")
def untrained(tmp_path_factory):
    """The same federation with a learning rate of 0."""
    data = RandomLabels(clients=6, samples=600)
    return audit_of(*trained(tmp_path_factory.mktemp("still"), lr=0.0, epochs=1, capacities=list(RATES), data=data))


def attacked(audit, client):
    """A client's upload as target, its samples, and the context with all uploads."""
    view = audit.transcript.server_view()
    models = uploaded_models(view, audit.knowledge, audit.kept_rounds, "target", False)
    uploads = partial(uploads_beside, view, audit.knowledge, list(models.values()))
    context = AttackContext(audit.knowledge, audit.query, None, models[client], uploads=uploads)
    return models[client], audit.audited[client], context


def plain_scores(audit, client, score, rates):
    """Mean over rounds of Student's distribution function; `score` gives both scores of a pair of clients."""
    _, samples, context = attacked(audit, client)
    uploads, distances = context.uploads(), []
    for round_, own in uploads[client].items():
        others = [seen[round_] for number, seen in uploads.items() if number != client and RATES[number] in rates]
        pairs = [score(audit, own, other, samples) for other in others]
        gaps = np.array([mine - other for mine, other in pairs])
        count = len(gaps)
        distances.append(
            student_t.cdf(gaps.mean(axis=0), count - 1, 0, gaps.std(axis=0, ddof=1) * np.sqrt(1 + 1 / count))
        )
    return np.mean(distances, axis=0)


def on_both(own, other):
    """Positions in both models of the coordinates that both have, by a search in a list."""
    known = {coordinate: place for place, coordinate in enumerate(other.index.tolist())}
    pairs = [(place, known[one]) for place, one in enumerate(own.index.tolist()) if one in known]
    return tuple(np.array(pairs).T)


def losses_of_pair(audit, own, other, samples):
    """Logits of the true class's probability, with the common coordinates of one client or the other."""
    mine, theirs = on_both(own, other)
    scores = []
    for model, places in ((own, mine), (other, theirs)):
        vector = own.before.clone()
        vector[mine] = model.after[places]
        net = audit.query.network(Snapshot(1, own.rate, vector))
        images, labels = audit.knowledge.store.batch(torch.from_numpy(samples))
        with torch.no_grad():
            chances = net(images).double().softmax(1)[torch.arange(len(labels)), labels].numpy()
        scores.append(np.log(chances) - np.log1p(-chances))
    return scores


def cosines_of_pair(audit, own, other, samples):
    """Cosines of both steps with each sample's gradient, sample by sample."""
    mine, theirs = on_both(own, other)
    net = audit.query.network(Snapshot(1, own.rate, own.before))
    steps = [(model.before - model.after)[places].numpy() for model, places in ((own, mine), (other, theirs))]
    scores = []
    for sample in samples:
        images, labels = audit.knowledge.store.batch(torch.tensor([sample]))
        parts = torch.autograd.grad(cross_entropy(net(images), labels), list(net.parameters()))
        gradient = torch.cat([part.flatten() for part in parts]).numpy()[mine]
        length = np.linalg.norm(gradient)
        scores.append([gradient @ step / (length * np.linalg.norm(step)) for step in steps])
    return np.array(scores).T


@pytest.mark.parametrize(("kind", "pair"), [(FedMIALoss, losses_of_pair), (FedMIAGradient, cosines_of_pair)])
@pytest.mark.parametrize(
    ("client", "blocks", "rates"),
    [(0, "shared", RATES), (4, "shared", RATES), (0, "covered", RATES[:1]), (4, "covered", RATES)],
)
def test_agrees_with_a_plain_computation(unequal, kind, pair, client, blocks, rates):
    """A wide and a narrow target, against clients of both widths, or those that hold all of its coordinates."""
    target, samples, context = attacked(unequal, client)
    expected = plain_scores(unequal, client, pair, rates)
    np.testing.assert_allclose(kind(blocks).scores(target, samples, context), expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("kind", BOTH)
def test_own_blocks_differ_between_widths_only(equal, unequal, kind):
    """Of equal clients, all coordinates are shared; of unequal ones, the whole models' scores are another thing."""
    for audit, same in ((equal, True), (unequal, False)):
        made = [kind(blocks).scores(*attacked(audit, 0)) for blocks in ("covered", "shared", "own")]
        assert [np.allclose(made[0], other, atol=1e-3) for other in made[1:]] == [same, same]


@pytest.mark.parametrize("kind", BOTH)
def test_members_of_a_federation(equal, unequal, untrained, kind):
    """Most are found with five other clients of equal width; with two, still many; none where nothing was trained.

    How many a perfect memory gives away is tested with the other attacks, on the memorised toy.
    """
    finding = audited(equal, kind.name, targets=("uploads",))[f"{kind.name}.uploads"]
    assert finding.leakage.auc.value > 0.8
    finding = audited(unequal, kind.name, targets=("uploads",))[f"{kind.name}.uploads"]
    assert all(row.leakage.auc.interval.low > 0.6 for row in finding.capacities)
    assert [row.rate for row in finding.capacities] == [1.0, 0.5]
    decision = finding.leakage.known.decision
    assert abs(decision.fpr - 0.5) < 3 * 0.5 / np.sqrt(decision.nonmembers), "half of the non-members are above 0.5"
    still = audited(untrained, kind.name, targets=("uploads",))[f"{kind.name}.uploads"]
    assert abs(still.leakage.auc.value - 0.5) <= chance_bound(still.scores.members)


@pytest.mark.parametrize("others", [2, 5, 40])
def test_non_members_have_uniform_scores(others):
    """Whatever the number of other clients, as long as their scores are Gaussian; Kolmogorov-Smirnov at 0.1 %."""
    rng, count = np.random.default_rng(others), 20_000
    scores = student(rng.normal(size=count) - rng.normal(size=(others, count)))
    assert kstest(scores, "uniform").pvalue > 0.001


@pytest.mark.parametrize("delta", [1.0, 3.0])
def test_gaussian_scores(delta):
    """Members lie delta deviations above others: AUC Phi(delta / sqrt 2).

    Within 0.02: 3 standard deviations of the area are 0.01, as much is lost to means and spreads of 100 clients.
    """
    rng, count = np.random.default_rng(0), 20_000
    truth = rng.random(count) < 0.5
    difficulty = 5 * rng.normal(size=count)
    own, others = difficulty + delta * truth + rng.normal(size=count), difficulty + rng.normal(size=(100, count))
    assert area(student(own - others), truth) == pytest.approx(norm.cdf(delta / np.sqrt(2)), abs=0.02)
    assert area(own, truth) < 0.7  # a threshold for all samples is lost between their means


def test_equal_scores_are_ties():
    """Nothing to compare: in the middle."""
    np.testing.assert_array_equal(student(np.zeros((3, 5))), 0.5)


def reason(audit, kind, **settings):
    """Why there is no number."""
    (finding,) = audited(audit, kind.name, **settings).values()
    return finding.leakage.reason


@pytest.mark.parametrize("kind", BOTH)
def test_not_available(unequal, kind, tmp_path):
    """On the global model, with one other client only, and where the server sees masks."""
    assert "compares the uploads of clients" in reason(unequal, kind, targets=("global",))
    pair = audit_of(*trained(tmp_path / "pair", data=RandomLabels(clients=2)))
    assert "2 others or more" in reason(pair, kind, targets=("uploads",))
    masked = audit_of(*trained(tmp_path / "masked", callbacks=[SecureAggregation()]))
    assert "masked sums" in reason(masked, kind, targets=("uploads",))


@pytest.mark.parametrize("kind", BOTH)
def test_without_clients_that_hold_everything(kind, tmp_path):
    """One wide client among narrow ones is compared on what they share."""
    data = RandomLabels(clients=3)
    audit = audit_of(*trained(tmp_path, capacities=[1.0, 0.5, 0.5], data=data))
    target, samples, context = attacked(audit, 0)
    shared, covered = (kind(blocks).scores(target, samples, context) for blocks in ("shared", "covered"))
    np.testing.assert_array_equal(shared, covered)


def test_others_are_adapted_too(tmp_path):
    """What a defense has zeroed is refilled in all uploads, else every client would differ from the others."""
    audit = audit_of(*trained(tmp_path, callbacks=[Zeroing()], data=RandomLabels(clients=4, samples=400)))
    found = audited(audit, "fedmia-loss", targets=("uploads",))
    assert list(found) == ["fedmia-loss.uploads", "fedmia-loss.uploads+refilled"]
    plain, refilled = (finding.leakage.auc.value for finding in found.values())
    assert refilled > max(plain, 0.85)


def test_gradients_need_samples_that_stand_alone():
    """Batch statistics mix the samples of a batch: refused, and the loss is recommended."""
    knowledge = batch_norm_knowledge("batch")
    model = random_model(knowledge, "model")
    with pytest.raises(UserError, match="a single sample's gradient is not defined"):
        ModelQuery(knowledge).sample_gradients(model.last, np.arange(4), lambda gradients: gradients)


@pytest.mark.parametrize("numbers", [1, 10**9])
def test_gradients_of_samples(unequal, numbers):
    """Their mean is the gradient of the mean loss, in whatever parts they are computed."""
    target, samples, context = attacked(unequal, 2)
    gradients = context.query.sample_gradients(target.last, samples[:9], lambda part: part, numbers)
    expected = context.query.loss_gradient(target.last, samples[:9])
    torch.testing.assert_close(gradients.mean(0), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", BOTH)
def test_refuses_unknown_options(kind):
    """Checked when the attack is made."""
    with pytest.raises(UserError, match=rf"blocks of {kind.name} is 'none'"):
        kind("none")
