"""The taxonomy's evaluation: Yeom, LiRA and tMIA with the data of the other clients."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from paper_kit import figure, found, make_audit
from scipy.stats import norm
from torch.nn.functional import cross_entropy

from app.attacks.findings import ReportedNumber
from app.attacks.membership import distillation
from app.attacks.membership.distillation import Distillation, distil
from app.attacks.models import Responses
from app.attacks.protocols import taxonomy, taxonomy_attacks
from app.attacks.protocols.papers import grid_threshold, legacy_order, nearest_tpr
from app.attacks.protocols.taxonomy import Taxonomy, mean_figures
from app.attacks.protocols.taxonomy_attacks import SoftmaxGap, TaxonomyContext, confidences, normal_cdf, quarters
from app.common.errors import UserError
from app.metrics.leakage import TprAtFpr
from app.metrics.membership import NO_CLIENT, NotAvailable
from app.metrics.roc import roc_curve
from app.models import CNN

SIZES, TESTS = (120, 90, 60), 200
QUICK = {"shadows": 4}


@pytest.fixture(scope="module")
def memorised(tmp_path_factory):
    """Clients that fit their random labels; the smallest trains half the width."""
    audit = make_audit(tmp_path_factory.mktemp("memorised"), SIZES, TESTS, capacities=[1.0, 1.0, 0.5])
    return replace(audit, cache=tmp_path_factory.mktemp("shadows"))


@pytest.fixture(scope="module")
def leak(memorised):
    """What the protocol finds of it."""
    return found(Taxonomy(**QUICK), memorised)


def setup(audit, **options):
    """What attacks share, for tests of single steps."""
    return TaxonomyContext(audit, Taxonomy(**{**QUICK, **options}))


def test_first_samples_are_evaluated(memorised):
    """In stored order, as many of the test set; 3 known samples of each kind come from all of them."""
    sets = Taxonomy().sets(memorised, 1)
    assert sets.members.tolist() == memorised.truth.members[1].tolist()
    assert sets.nonmembers.tolist() == memorised.truth.test[:90].tolist()
    assert sets.known_members.tolist() == legacy_order(memorised.truth.members[1], 0)[:3].tolist()
    assert sets.known_nonmembers.tolist() == legacy_order(memorised.truth.test, 0)[:3].tolist()


def test_at_most_five_thousand_samples(memorised, monkeypatch):
    """The first ones; here the limit is 25."""
    monkeypatch.setattr(taxonomy, "MOST_EVALUATED", 25)
    sets = Taxonomy().sets(memorised, 1)
    assert sets.members.tolist() == memorised.truth.members[1][:25].tolist()
    assert sets.nonmembers.tolist() == memorised.truth.test[:25].tolist()


@pytest.mark.parametrize("client", [0, 1, 2])
def test_auxiliary_data_exclude_the_target(memorised, client):
    """Members of all others, one client after the other."""
    others = [own for other, own in enumerate(memorised.truth.members) if other != client]
    assert setup(memorised).auxiliary(client).tolist() == np.concatenate(others).tolist()


def test_single_client_is_refused(tmp_path):
    """There is nobody whose data could train shadows; Yeom's attack needs none."""
    audit = make_audit(tmp_path, (30,), 40, rounds=1, epochs=1)
    results = found(Taxonomy(["yeom", "lira"]), audit)
    assert "beside client 0 have 0 samples" in results["lira", "uploads"].leakage.reason
    assert figure(results["yeom", "uploads"], "AUC %").value > 0


@pytest.fixture
def jobs(monkeypatch):
    """Models that were trained, each with its public knowledge; nothing else changes."""
    seen, train = [], taxonomy_attacks.train_or_find

    def recorded(knowledge, orders, cache):
        seen.extend((knowledge, job) for order in orders for job in order.jobs)
        return train(knowledge, orders, cache)

    monkeypatch.setattr(taxonomy_attacks, "train_or_find", recorded)
    return seen


def test_shadows_of_lira(memorised, jobs):
    """16 per client by default, on so many samples drawn by the old generator with seeds 0 .. 15, at full width."""
    audit = replace(memorised, cache=None)
    finding = found(Taxonomy(["lira"], shadow_size=50, shadow_epochs=1), audit)["lira", "uploads"]
    assert len(jobs) == 3 * 16
    assert finding.conditions.shadows == "16 central"
    auxiliary = np.concatenate(memorised.truth.members[:2])
    for number, (knowledge, job) in enumerate(jobs[32:]):
        assert job.samples.tolist() == legacy_order(auxiliary, number)[:50].tolist()
        assert job.rate == 1.0
        assert (knowledge.local.epochs, knowledge.local.batch_size, knowledge.learning_rates) == (1, 128, (1e-3,))
        assert type(knowledge.local.build_optimizer([torch.zeros(1)], 1e-3)).__name__ == "Adam"
    assert not any("same samples" in note for note in finding.notes)


def test_too_few_samples_for_different_shadows(leak):
    """Then all are trained on everything, and the remark says so."""
    assert any("same samples: there are no 10000" in note for note in leak["lira", "uploads"].notes)


def test_shadow_of_tmia(memorised, jobs):
    """One per client, on the first quarter."""
    found(Taxonomy(["tmia"], shadow_epochs=1, student_epochs=1, attack_epochs=1), memorised)
    assert [len(job.samples) for _, job in jobs] == [150 // 4, 180 // 4, 210 // 4]


def test_shadows_are_found_again(memorised, leak, monkeypatch):
    """With the same settings none is trained."""
    monkeypatch.setattr("app.attacks.shadows.shadow_store.train_centrally", lambda *_: 1 / 0)
    again = found(Taxonomy(["lira"], **QUICK), memorised)["lira", "uploads"]
    assert again.figures == leak["lira", "uploads"].figures


def test_quarters(memorised):
    """A quarter each for members and non-members, half to distil on; shuffled, unless in the order of the clients."""
    shuffled, ordered = (quarters(setup(memorised, ordered_quarters=order), 0) for order in (False, True))
    auxiliary = np.concatenate(memorised.truth.members[1:])
    for parts in (shuffled, ordered):
        assert [len(part) for part in parts] == [37, 37, 76]
        assert sorted(np.concatenate(parts)) == auxiliary.tolist()
    assert np.concatenate(ordered).tolist() == auxiliary.tolist()
    assert len(np.intersect1d(shuffled[0], memorised.truth.members[2])) > 5
    assert len(np.intersect1d(ordered[0], memorised.truth.members[2])) == 0


def test_planted_leak_is_found(leak):
    """By all three attacks, on every client."""
    for attack in ("yeom", "lira", "tmia"):
        told = figure(leak[attack, "uploads"], "AUC %")
        assert min(value for _, value in told.per_client) > 65, attack
        assert figure(leak[attack, "uploads"], "Adv %").value > 15, attack


def test_untrained_federation_leaks_nothing(tmp_path):
    """Within four standard deviations of the mean over clients."""
    audit = make_audit(tmp_path, SIZES, TESTS, lr=0.0, rounds=1, epochs=1)
    for finding in Taxonomy(**QUICK, shadow_epochs=10, student_epochs=3).findings(audit):
        deviation = np.sqrt(np.sum([(2 * n + 1) / (12 * n * n) for n in SIZES])) / len(SIZES)
        assert abs(figure(finding, "AUC %").value / 100 - 0.5) < 4 * deviation
        assert abs(figure(finding, "Adv %").value) < 100 * 4 / np.sqrt(2 * sum(SIZES))


def test_figures_from_the_rows(leak):
    """AUC and TPR of a client from its own rows; the latter at the nearest point, which 90 non-members leave at 0."""
    finding = leak["yeom", "uploads"]
    rows = finding.scores.select(finding.scores.clients == 1)
    assert dict(figure(finding, "AUC %").per_client)[1] == 100 * roc_curve(rows).auc
    assert dict(figure(finding, "TPR % at 0.1 % FPR").per_client)[1] == 100 * nearest_tpr(rows, 0.001) == 0
    assert nearest_tpr(rows, 0.1) > 0
    assert all(isinstance(entry, NotAvailable | TprAtFpr) for entry in finding.leakage.tpr)
    assert (finding.scores.clients != NO_CLIENT).all()


def test_scores_of_shadow_attacks_are_probabilities(leak):
    """From 0 to 1, as the grid of thresholds wants them."""
    for attack in ("lira", "tmia"):
        scores = leak[attack, "uploads"].scores.scores
        assert 0 <= scores.min() < 0.5 < scores.max() <= 1


def test_advantage_from_known_samples(memorised, leak):
    """Threshold on known losses, applied to evaluated ones, each stretched by itself."""
    finding = leak["yeom", "uploads"]
    rows = finding.scores.select(finding.scores.clients == 0)
    losses = dict(zip(rows.samples.tolist(), (-rows.scores).tolist(), strict=True))
    sets = Taxonomy().sets(memorised, 0)
    work = setup(memorised)
    model = taxonomy.seen_models(memorised, taxonomy.TargetSelection("uploads", 2, False), ())[0]
    asked = taxonomy_attacks.responses(work.targets, model.last, [sets.known_members, sets.known_nonmembers]).losses
    known = 1 - (asked - asked.min()) / np.ptp(asked)
    threshold = grid_threshold(known, np.arange(6) < 3)
    evaluated = -rows.scores
    unit = 1 - (evaluated - evaluated.min()) / np.ptp(evaluated)
    right = np.mean((unit >= threshold) == rows.members)
    assert dict(figure(finding, "Adv %").per_client)[0] == pytest.approx(2 * (100 * right - 50))
    np.testing.assert_allclose(asked[:3], [losses[sample] for sample in sets.known_members.tolist()], rtol=1e-5)


def test_means_over_the_attacks(leak):
    """The last result has them: client by client, then over clients."""
    told = [dict(figure(leak[name, "uploads"], "AUC %").per_client) for name in ("yeom", "lira", "tmia")]
    mean = figure(leak["tmia", "uploads"], "mean AUC % of yeom, lira, tmia")
    assert dict(mean.per_client)[2] == pytest.approx(sum(each[2] for each in told) / 3)
    assert mean.value == pytest.approx(np.mean([list(each.values()) for each in told]))
    assert not any(each.name.startswith("mean") for each in leak["lira", "uploads"].figures)


def test_means_leave_out_what_failed():
    """An attack without figures does not count; a single one has no mean."""
    one, two = (ReportedNumber("AUC %", value, ((0, value),)) for value in (60.0, 80.0))
    (mean,) = mean_figures({"yeom": [one], "lira": [], "tmia": [two]})
    assert (mean.name, mean.value) == ("mean AUC % of yeom, tmia", 70)
    assert mean_figures({"yeom": [one], "lira": []}) == []


def test_confidence_by_hand():
    """True class: its logit; largest: the logit of the largest probability, cut at 1 - 1e-4."""
    chances = np.array([[0.7, 0.2, 0.1], [1 - 2e-6, 1e-6, 1e-6]])
    answers = Responses(np.log(chances), np.array([1, 1]))
    np.testing.assert_allclose(confidences(answers, "true"), np.log([0.2 / 0.8, 1e-6 / (1 - 1e-6)]), rtol=1e-6)
    np.testing.assert_allclose(confidences(answers, "max"), np.log([0.7 / 0.3, (1 - 1e-4) / 1e-4]), rtol=1e-6)


def test_normal_distribution():
    """Population deviation of the shadows, one-sided; where they agree, a step."""
    shadows = np.array([[1.0, 2.0, 2.0, 2.0], [3.0, 2.0, 2.0, 2.0]])
    target = np.array([2.5, 1.0, 2.0, 3.0])
    np.testing.assert_allclose(normal_cdf(target, shadows), [norm.cdf(0.5), 0, 0.5, 1])


def test_largest_probability_is_another_attack(memorised, leak):
    """It does not look at the label, so it tells less."""
    other = found(Taxonomy(["lira"], conf="max", **QUICK), memorised)["lira", "uploads"]
    right = leak["lira", "uploads"]
    assert np.abs(other.scores.scores - right.scores.scores).max() > 0.1
    assert figure(other, "AUC %").value < figure(right, "AUC %").value
    assert any("largest probability, as the code does" in note for note in other.notes)
    assert any("probability of the true class" in note for note in right.notes)


def test_double_softmax():
    """The difference of the probabilities is the logit whose cross-entropy the paper's network minimises."""
    logits, truth = torch.tensor([[0.3, 1.2], [2.0, -1.0]]), torch.tensor([1, 0])
    expected = cross_entropy(logits.softmax(1), truth)
    found = torch.nn.functional.binary_cross_entropy_with_logits(SoftmaxGap()(logits), truth.float())
    assert float(found) == pytest.approx(float(expected))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A network that normalises by the batch, one client at half the width."""
    net = lambda shape: CNN(shape, u=4)  # noqa: E731
    folder = tmp_path_factory.mktemp("pictures")
    return make_audit(folder, (40, 24), 40, rounds=1, epochs=1, net=net, pixels=(8, 8), capacities=[1.0, 0.5])


def test_shadows_keep_running_statistics(pictures):
    """Targets normalise by the batch, shadows and students do not; all three attacks run, students at full width."""
    work = setup(pictures)
    assert work.shadows.knowledge.prototype.hparams["statistics"] == "running"
    assert pictures.knowledge.prototype.hparams["statistics"] == "batch"
    results = found(Taxonomy(shadows=2, shadow_epochs=2, student_epochs=2, attack_epochs=2), pictures)
    assert [len(finding.clients) for finding in results.values()] == [2, 2, 2]
    assert all("statistics of each batch" in " ".join(finding.notes) for finding in results.values())
    assert [row.rate for row in results["tmia", "uploads"].capacities] == [1.0, 0.5]


def test_members_and_nonmembers_are_asked_apart(pictures):
    """Answers to one part do not depend on the others, though the network normalises by the batch."""
    work = setup(pictures)
    model = taxonomy.seen_models(pictures, taxonomy.TargetSelection("uploads", 1, False), ())[0]
    first, second = pictures.truth.members[0][:20], pictures.truth.test[:20]
    together, apart = (
        taxonomy_attacks.responses(work.targets, model.last, [first, second]),
        taxonomy_attacks.responses(work.targets, model.last, [first]),
    )
    np.testing.assert_array_equal(together.logits[:20], apart.logits)
    mixed = taxonomy_attacks.responses(work.targets, model.last, [np.concatenate([first, second])])
    assert np.abs(mixed.logits - together.logits).max() > 1e-4


def test_students(pictures):
    """Full width whatever the teacher's, the same every time, and learning in every epoch."""
    model = taxonomy.seen_models(pictures, taxonomy.TargetSelection("uploads", 1, False), ())[1]
    work, settings = setup(pictures), Distillation(3, 128, 1e-2, 0.0, 0.0, "eval")
    given = (work.targets.knowledge, model.last, work.shadows.knowledge, pictures.truth.members[0], settings, 1.0)
    stages = distil(*given)
    assert [(stage.round, stage.rate) for stage in stages] == [(1, 1.0), (2, 1.0), (3, 1.0)]
    again = distil(*given)
    assert torch.equal(stages[-1].vector, again[-1].vector)
    assert not torch.equal(stages[0].vector, stages[-1].vector)


def test_mode_of_the_teacher(pictures, monkeypatch):
    """A shadow that keeps running statistics answers otherwise in training mode, and its student differs."""
    modes, students, divergence = [], [], distillation._divergence

    def recorded(knowledge, teacher, *rest):
        modes.append(teacher.training)
        return divergence(knowledge, teacher, *rest)

    monkeypatch.setattr(distillation, "_divergence", recorded)
    for mode in ("eval", "train"):
        work = setup(pictures, shadow_epochs=2)
        (shadow,) = work.train([pictures.truth.members[0]], "tmia", 1)
        data = pictures.truth.members[0]
        knowledge, settings = work.shadows.knowledge, Distillation(1, 128, 1e-2, 0.0, 0.0, mode)
        students.append(distil(knowledge, shadow.last, knowledge, data, settings, 1.0)[-1].vector)
    assert modes == [False, True]
    assert not torch.equal(*students)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"shadows": 0}, "shadows of taxonomy is 0"),
        ({"student_epochs": 0}, "student_epochs of taxonomy is 0"),
        ({"conf": "best"}, "conf of taxonomy is 'best'"),
        ({"teacher_mode": "on"}, "teacher_mode of taxonomy is 'on'"),
    ],
)
def test_refused_options(options, text):
    """With what is wrong."""
    with pytest.raises(UserError, match=text):
        Taxonomy(**options)
