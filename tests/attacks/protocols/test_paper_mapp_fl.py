"""MaPP-FL's evaluation: Yeom's attack with 1 % of known members."""

import numpy as np
import pytest
from paper_kit import figure, found, make_audit

from app.attacks.protocols import mapp_fl
from app.attacks.protocols.mapp_fl import MappFL, YeomLosses, advantage, best_rule, mean_rule
from app.attacks.protocols.papers import known_count, legacy_order
from app.metrics.correlation import pearson_rows
from app.metrics.membership import NO_CLIENT, NotAvailable
from app.models import CNN

SIZES, TESTS = (120, 90, 60), 200


@pytest.fixture(scope="module")
def memorised(tmp_path_factory):
    """Clients that fit their random labels."""
    return make_audit(tmp_path_factory.mktemp("memorised"), SIZES, TESTS)


@pytest.fixture(scope="module")
def leak(memorised):
    """What the protocol finds of it."""
    return found(MappFL(), memorised)


@pytest.fixture(scope="module")
def untrained(tmp_path_factory):
    """Clients that learn nothing."""
    return make_audit(tmp_path_factory.mktemp("untrained"), SIZES, TESTS, lr=0.0)


def halves(*values):
    """Losses of members, then of as many non-members."""
    return np.array(values, dtype=float)


def test_advantage_of_simple_guesses():
    """All ones have an accuracy of 50 %, so an advantage of 0; the truth has 100, its opposite -100."""
    truth = np.array([True, True, False, False])
    assert advantage(np.ones(4, dtype=bool), truth) == 0
    assert advantage(truth, truth) == 100
    assert advantage(~truth, truth) == -100


def test_advantage_by_hand():
    """Known members have a mean loss of 0.5; a member with exactly 0.5 is missed: 2 of 3 and 2 of 3 are right."""
    losses = YeomLosses(
        halves(0.1, 0.4, 0.5, 0.2, 0.6, 0.9), np.zeros(6, int), halves(0.2, 0.8, 1, 2), np.zeros(4, int)
    )
    assert losses.advantages()["Adv %"] == pytest.approx(200 * (4 / 6 - 0.5))


def test_best_threshold_by_hand():
    """Mean 1, deviation 1: the first k of -5 to 5 whose threshold lies above 2 calls both known members."""
    losses, truth = halves(0, 2, 2.305, 9), np.array([True, True, False, False])
    assert mean_rule(losses, truth) == 1
    assert best_rule(losses, truth) == pytest.approx(2.01)
    equal = halves(1, 1, 3, 4)  # no deviation: the only threshold calls nobody
    assert best_rule(equal, truth) == 1


def test_thresholds_per_class():
    """Class 0 has a mean of 1, class 1 of 3; class 2 has no known member and takes the mean of all, 2."""
    evaluated, labels = halves(0.5, 2.5, 1.5, 1.5, 3.5, 2.5), np.array([0, 1, 2, 0, 1, 2])
    losses = YeomLosses(evaluated, labels, halves(1, 3, 9, 9), np.array([0, 1, 0, 1]))
    told = losses.advantages()
    assert told["Adv % with a threshold per class"] == 100
    assert told["Adv %"] == pytest.approx(200 * (4 / 6 - 0.5))


def test_results_and_their_names(leak):
    """Uploads as the server sees them, the last model as anybody does."""
    assert list(leak) == [("yeom", "uploads"), ("yeom", "global")]
    assert [each.conditions.label for each in leak.values()] == ["mapp-fl.yeom.uploads", "mapp-fl.yeom.global"]
    assert [each.conditions.adversary for each in leak.values()] == ["server", "external"]


def test_planted_leak_is_found(leak):
    """The smallest client, which memorises best, most of all; the mean is that of the clients."""
    told = figure(leak["yeom", "uploads"], "Adv %")
    values = dict(told.per_client)
    assert list(values) == [0, 1, 2]
    assert values[2] > 50
    assert told.value == pytest.approx(np.mean(list(values.values())))
    assert told.value > 35
    assert figure(leak["yeom", "global"], "Adv %").value > 20


def test_untrained_federation_leaks_nothing(untrained):
    """Within four standard deviations; the attacker's threshold comes from three samples."""
    results = found(MappFL(), untrained)
    assert abs(figure(results["yeom", "uploads"], "Adv %").value) < 100 * 4 / np.sqrt(2 * sum(SIZES))
    assert abs(figure(results["yeom", "global"], "Adv %").value) < 100 * 4 / np.sqrt(2 * TESTS)


def test_numbers_from_the_models_themselves(memorised, leak):
    """Advantage of client 1 from its losses, recomputed step by step."""
    finding = leak["yeom", "uploads"]
    rows = finding.scores.select(finding.scores.clients == 1)
    losses = dict(zip(rows.samples.tolist(), (-rows.scores).tolist(), strict=True))
    known = legacy_order(memorised.truth.members[1], memorised.knowledge.seed)[: known_count(90)]
    threshold = np.mean([losses[sample] for sample in known.tolist()])
    inside = np.mean([losses[sample] < threshold for sample in memorised.truth.members[1].tolist()])
    tests = legacy_order(memorised.truth.test, memorised.knowledge.seed)[-90:]
    outside = np.mean([losses[sample] < threshold for sample in tests.tolist()])
    assert dict(figure(finding, "Adv %").per_client)[1] == pytest.approx(100 * (inside - outside))


def test_leakage_uses_the_same_decisions(leak):
    """The known threshold's decision has the counts behind the advantages."""
    finding = leak["yeom", "uploads"]
    told, rows = dict(figure(finding, "Adv %").per_client), finding.scores
    decision = finding.leakage.known.decision
    assert (decision.members, decision.nonmembers) == (sum(SIZES), sum(SIZES))
    assert 100 * decision.advantage == pytest.approx(sum(told[k] * SIZES[k] for k in range(3)) / sum(SIZES))
    assert [(row.client, row.size) for row in finding.clients] == list(enumerate(SIZES))
    assert (rows.clients != NO_CLIENT).all()


def test_server_sees_samples_of_all_clients(memorised, leak):
    """The last 200 of the permuted pool, with their owners; non-members belong to nobody."""
    rows = leak["yeom", "global"].scores
    pool = np.sort(np.concatenate(memorised.truth.members))
    assert rows.samples[rows.members].tolist() == legacy_order(pool, memorised.knowledge.seed)[-TESTS:].tolist()
    assert set(rows.clients[rows.members].tolist()) == {0, 1, 2}
    assert (rows.clients[~rows.members] == NO_CLIENT).all()


def test_remarks(leak):
    """The overlap, the test set, and why there is no correlation."""
    notes = " ".join(leak["yeom", "uploads"].notes)
    for text in ("known samples are also evaluated", "common test set", "at least 5 clients, there are 0"):
        assert text in notes
    assert not any("Pearson" in each.name for each in leak["yeom", "uploads"].figures)


def test_known_samples_left_out(memorised):
    """Then every client has three rows of each kind fewer, and no remark."""
    finding = found(MappFL(exclude_known=True), memorised)["yeom", "uploads"]
    assert finding.leakage.members == sum(SIZES) - 3 * len(SIZES)
    assert not any("also evaluated" in note for note in finding.notes)


def test_client_of_known_samples_only_is_left_out(tmp_path):
    """It cannot be evaluated without what the attacker knows; the others are."""
    audit = make_audit(tmp_path, (40, 3), 50, rounds=1, epochs=1)
    finding = found(MappFL(exclude_known=True), audit)["yeom", "uploads"]
    assert [row.client for row in finding.clients] == [0]
    assert any("client 1: there are 0 members" in note for note in finding.notes)


def test_correlation_of_size_and_advantage(tmp_path, monkeypatch):
    """Pearson of log10 size and advantage, without clients below the limit, which is 400 samples in the paper."""
    assert mapp_fl.SMALLEST_CLIENT == 400
    monkeypatch.setattr(mapp_fl, "SMALLEST_CLIENT", 40)
    sizes = (90, 70, 60, 50, 40, 39)
    finding = found(MappFL(), make_audit(tmp_path, sizes, 100, rounds=1, epochs=2))["yeom", "uploads"]
    values = dict(figure(finding, "Adv %").per_client)
    expected = pearson_rows(np.log10(np.array(sizes[:5])), np.array([values[client] for client in range(5)]))
    assert figure(finding, "Pearson of log10 size and Adv").value == pytest.approx(float(expected))


def test_members_first_batches_are_remarked(tmp_path):
    """A network that normalises by the batch is asked members first, as in the code; the remark says so."""
    audit = make_audit(tmp_path, (20, 12), 40, rounds=1, lr=0.0, net=lambda shape: CNN(shape, u=2), pixels=(8, 8))
    finding = found(MappFL(), audit)["yeom", "uploads"]
    assert any("statistics of each batch" in note for note in finding.notes)


def test_clients_without_uploads(tmp_path):
    """Where nothing was sent, there is a reason and no number."""
    audit = make_audit(tmp_path, (20, 12), 40, rounds=1, epochs=1, personal=["*"])
    finding = found(MappFL(), audit)["yeom", "uploads"]
    assert isinstance(finding.leakage, NotAvailable)
    assert finding.leakage.reason == "clients send nothing"
    assert finding.figures == ()


def test_widths_have_rows_of_their_own(tmp_path):
    """Two widths, two rows."""
    audit = make_audit(tmp_path, (30, 20), 40, rounds=1, epochs=2, capacities=[1.0, 0.5])
    finding = found(MappFL(), audit)["yeom", "uploads"]
    assert [(row.rate, row.clients) for row in finding.capacities] == [(1.0, 1), (0.5, 1)]
