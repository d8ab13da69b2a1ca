"""What the papers' protocols share: exact sets, thresholds on a grid, nearest points of curves, queries in order."""

import numpy as np
import pytest
import torch
from paper_kit import figure, make_audit

from app.attacks.findings import AttackConditions
from app.attacks.membership.base import Threat
from app.attacks.protocols.base import total_decision
from app.attacks.protocols.catalogue import PAPERS
from app.attacks.protocols.papers import (
    LabelledSets,
    PaperResults,
    accuracy,
    both_ends,
    client_figure,
    federation_rows,
    grid_threshold,
    known_count,
    legacy_order,
    nearest_tpr,
    unit_scores,
)
from app.attacks.targets import released_model
from app.common.errors import UserError
from app.metrics.membership import NO_CLIENT, MembershipScores, NotAvailable
from app.metrics.roc import Decision
from app.models import CNN


@pytest.mark.parametrize(
    ("size", "known"), [(1, 3), (300, 3), (399, 3), (400, 4), (490, 4), (1260, 12), (7040, 70), (17020, 170)]
)
def test_known_samples_are_one_percent_but_at_least_three(size, known):
    """The smallest of MaPP-FL's clients, 490 samples, has 4 known ones."""
    assert known_count(size) == known


def test_order_is_that_of_the_old_generator():
    """Drawn by NumPy's legacy generator, whose seed 150 deals MaPP-FL's last round; equal pools get equal places."""
    assert (legacy_order(np.arange(10), 150) % 4).tolist() == [3, 0, 1, 3, 1, 2, 1, 2, 0, 0]
    first, second = legacy_order(np.arange(50), 7), legacy_order(np.arange(100, 150), 7)
    assert (second - first == 100).all()
    legacy_order(np.arange(3), 2**40)  # larger seeds than the old generator takes


def test_small_pools_overlap():
    """A client below the limit is evaluated as a whole, known members included; the test set gives as many."""
    members, test = np.arange(30), np.arange(100, 200)
    sets = both_ends(members, test, 3, 5000, 0, exclude_known=False)
    assert sorted(sets.members) == members.tolist()
    assert len(sets.nonmembers) == 30
    assert sets.known_members.tolist() == legacy_order(members, 0)[:3].tolist()
    assert sets.known_nonmembers.tolist() == legacy_order(test, 0)[:3].tolist()
    assert sets.nonmembers.tolist() == legacy_order(test, 0)[-30:].tolist()
    assert sets.overlap == 3


def test_large_pools_do_not_overlap():
    """Known samples come from the front, evaluated ones from the end."""
    members, test = np.arange(60), np.arange(100, 200)
    sets = both_ends(members, test, 5, 40, 3, exclude_known=False)
    order = legacy_order(members, 3)
    assert sets.known_members.tolist() == order[:5].tolist()
    assert sets.members.tolist() == order[20:].tolist()
    assert (len(sets.members), len(sets.nonmembers), sets.overlap) == (40, 40, 0)


def test_smaller_test_set_bounds_both_sides():
    """The evaluated sets stay balanced, and so do the known ones."""
    sets = both_ends(np.arange(60), np.arange(100, 104), 500, 5000, 3, exclude_known=False)
    assert [len(part) for part in (sets.known_members, sets.known_nonmembers, sets.members, sets.nonmembers)] == [4] * 4


def test_known_samples_can_be_left_out():
    """Then nothing overlaps, and a pool of known samples alone is refused."""
    sets = both_ends(np.arange(30), np.arange(100, 200), 3, 5000, 0, exclude_known=True)
    assert (len(sets.members), len(sets.nonmembers), sets.overlap) == (27, 27, 0)
    with pytest.raises(UserError, match="0 members and 97 non-members"):
        both_ends(np.arange(3), np.arange(100, 200), 3, 5000, 0, exclude_known=True)


def test_grid_threshold():
    """The lowest of the best thresholds, scores at it counting as members."""
    truth = np.array([True, True, False, False])
    assert grid_threshold(np.array([0.9, 0.5, 0.3, 0.2]), truth) == pytest.approx(0.31)
    assert grid_threshold(np.array([0.9, 0.5, 0.495, 0.2]), truth) == pytest.approx(0.5)
    assert grid_threshold(np.array([0.5, 0.5, 0.5, 0.5]), truth) == 0


def test_losses_are_stretched():
    """The smallest loss gets 1, the largest 0; equal ones are all called members."""
    assert unit_scores(np.array([2.0, 4.0, 3.0])).tolist() == [1, 0, 0.5]
    assert unit_scores(np.array([2.0, 2.0])).tolist() == [1, 1]


def test_nearest_point_may_lie_above_the_target():
    """With 600 non-members one false alarm, 0.17 %, is nearer to 0.1 % than none: the TPR is read there."""
    scores = np.concatenate([np.full(300, 3.0), np.full(100, 1.0), [2.0], np.zeros(599)])
    rows = MembershipScores.of(scores, np.arange(1000) < 400)
    assert nearest_tpr(rows, 0.001) == 0.75
    rows = MembershipScores.of(np.where(scores == 2, 4.0, scores), np.arange(1000) < 400)
    assert nearest_tpr(rows, 0.001) == 0  # of two points with one false alarm, the first


def test_nearest_point_of_few_nonmembers_is_the_origin():
    """The first of all points without false alarms has found nobody."""
    rows = MembershipScores.of([4.0, 3.0, 2.0, 1.0], [True, True, False, False])
    assert nearest_tpr(rows, 0.001) == 0


def test_decisions_add_up():
    """Counts of all targets together, without one threshold."""
    whole = total_decision([Decision(1.0, 3, 4, 1, 4, "knowledge"), Decision(2.0, 1, 6, 0, 6, "knowledge")])
    assert (whole.true_positives, whole.members, whole.false_positives, whole.nonmembers) == (4, 10, 1, 10)
    assert np.isnan(whole.threshold)
    assert accuracy(whole) == (4 + 9) / 20


def test_mean_over_clients():
    """Plain, however large the clients are."""
    told = client_figure("Adv %", {2: 30.0, 0: 10.0})
    assert (told.value, told.per_client) == (20, ((0, 10.0), (2, 30.0)))


@pytest.mark.parametrize("name", sorted(PAPERS))
def test_unknown_attacks_are_refused(name):
    """With a list of those that the paper has."""
    with pytest.raises(UserError) as refusal:
        PAPERS[name](["rmia-offline"])
    (problem,) = refusal.value.problems
    assert name in problem.cause
    assert "'rmia-offline'" in problem.cause
    assert problem.remedy.startswith("choose from ")
    assert PAPERS[name](None).name == name
    assert PAPERS[name]([]).name == name


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """An untrained network that normalises by the batch."""
    folder = tmp_path_factory.mktemp("transcript")
    return make_audit(folder, (20, 12), 40, rounds=1, lr=0.0, net=lambda shape: CNN(shape, u=2), pixels=(8, 8))


def test_samples_are_asked_in_order(pictures):
    """Chunks come in the given order, each normalised by its own statistics; a single sample joins the chunk before."""
    knowledge = pictures.knowledge
    model = released_model(pictures.transcript.external_view(), knowledge, "test")
    samples = np.array([5, 3, 31, 8, 0, 40, 41])
    answers = pictures.query.in_order(model.last, samples, 3)
    net = pictures.query.network(model.last)
    for chunk in (slice(0, 3), slice(3, 7)):
        images, labels = knowledge.store.batch(torch.from_numpy(samples[chunk]), knowledge.dtype)
        with torch.no_grad():
            expected = net(images).double().numpy()
        np.testing.assert_allclose(answers.logits[chunk], expected, rtol=1e-6)
        assert answers.labels[chunk].tolist() == labels.tolist()
    other = pictures.query.in_order(model.last, samples, 7)
    assert np.abs(other.logits - answers.logits).max() > 1e-4


def test_rows_of_the_federation(pictures):
    """Members have their owner, non-members nobody."""
    test = pictures.truth.test
    rows = federation_rows(pictures, np.arange(5.0), LabelledSets(test, test, np.array([1, 25, 3]), test[:2]))
    assert rows.clients.tolist() == [0, 1, 0, NO_CLIENT, NO_CLIENT]
    assert rows.members.tolist() == [True, True, True, False, False]


def test_nothing_to_attack_says_why(pictures):
    """The reasons of all targets, few of them."""
    conditions = AttackConditions("yeom", "uploads", "mapp-fl", "server", Threat("", "", ""))
    reasons = [f"client {client} sent nothing" for client in range(6)]
    finding = PaperResults(["a note"], missing=reasons).finding(pictures, conditions)
    assert isinstance(finding.leakage, NotAvailable)
    assert finding.leakage.reason.endswith("client 3 sent nothing; and 2 more like these")
    assert "remark" not in finding.leakage.reason


def test_one_failure_does_not_lose_the_others(pictures, monkeypatch):
    """The finding says what broke; the next target is attacked all the same."""
    protocol = PAPERS["mapp-fl"](None)
    monkeypatch.setattr(type(pictures.transcript), "server_view", lambda self: 1 / 0)
    uploads, server = protocol.findings(pictures)
    assert uploads.failed
    assert "ZeroDivisionError" in uploads.leakage.reason
    assert not server.failed
    assert figure(server, "Adv %").per_client == ()
