"""MemDefense's evaluation: an attack network trained on half of the target's members."""

from types import SimpleNamespace

import numpy as np
import pytest
from federation_under_attack import Noising, Zeroing
from paper_kit import figure, found, make_audit

from app.attacks.membership.nasr import NasrSettings
from app.attacks.protocols import memdefense
from app.attacks.protocols.memdefense import MemDefensePaper, paper_settings
from app.attacks.protocols.papers import LabelledSets, accuracy, evaluated_rows
from app.attacks.targets import released_model
from app.common.errors import UserError
from app.metrics.membership import NO_CLIENT, NotAvailable
from app.metrics.thresholds import decide
from callbacks.attacks.membership_inference import MembershipInference

SIZES, TESTS = (120, 91, 60), 200
SMALL = NasrSettings(kernels=8, label_branch=False, epochs=15, most=10**9)


@pytest.fixture(scope="module")
def memorised(tmp_path_factory):
    """Clients that fit their random labels, over four rounds."""
    return make_audit(tmp_path_factory.mktemp("memorised"), SIZES, TESTS, rounds=4, epochs=8)


@pytest.fixture(scope="module")
def leak(memorised):
    """What the protocol finds of it."""
    return found(MemDefensePaper(settings=SMALL), memorised)


def parts(sets: LabelledSets):
    """All four parts."""
    return sets.known_members, sets.known_nonmembers, sets.members, sets.nonmembers


def test_halves_of_the_papers_clients():
    """2500 samples: 1250 + 1250 train the attack, 1250 + 1250 others test it; accuracies are multiples of 1/2500."""
    members, test = np.arange(2500), np.arange(50_000, 60_000)
    sets = MemDefensePaper().halves(members, test, 0)
    assert [len(part) for part in parts(sets)] == [1250] * 4
    assert len(np.unique(np.concatenate(parts(sets)))) == 5000
    assert sorted([*sets.known_members, *sets.members]) == members.tolist()
    rows = evaluated_rows(np.random.default_rng(0).normal(size=2500), sets, 0)
    told = 2500 * accuracy(decide(rows, 0.0))
    assert told == pytest.approx(round(told), abs=1e-9)
    assert (rows.member_count, rows.nonmember_count) == (1250, 1250)


def test_halves_of_the_whole_federation():
    """5000 of each kind to train and 5000 others to test, all that CIFAR's test set has."""
    members, test = np.arange(50_000), np.arange(50_000, 60_000)
    sets = MemDefensePaper().halves(members, test, 0, memdefense.MOST_GLOBAL)
    assert [len(part) for part in parts(sets)] == [5000] * 4
    assert len(np.unique(np.concatenate(parts(sets)))) == 20_000
    assert sets.overlap == 0


def test_halves_are_cut_to_the_test_set():
    """Balanced parts, however few test samples there are; a single one cannot be halved."""
    sets = MemDefensePaper().halves(np.arange(100), np.arange(200, 221), 0)
    assert [len(part) for part in parts(sets)] == [10] * 4
    with pytest.raises(UserError, match="1 member and 20 test samples"):
        MemDefensePaper().halves(np.arange(1), np.arange(200, 220), 0)


@pytest.mark.parametrize(
    ("kept", "used", "remark"),
    [
        ((40, 60, 80, 90, 99, 100), (40, 60, 80, 90, 100), ""),
        ((40, 60, 69, 70), (40, 60), "rounds 40, 60, where the paper has 40, 60, 80, 90, 100"),
        ((3, 4), (3, 4), "rounds 3, 4, where"),
    ],
)
def test_rounds(kept, used, remark):
    """The paper's where they were kept, else all; a remark where they differ."""
    rounds, told = MemDefensePaper().rounds(SimpleNamespace(kept_rounds=kept))
    assert rounds == used
    assert remark in told
    assert bool(told) == bool(remark)


def test_rounds_are_asked_for():
    """So that the transcript keeps them."""
    assert MemDefensePaper.rounds_to_keep == {40, 60, 80, 90, 100}


@pytest.fixture
def trained(monkeypatch):
    """Examples and settings of every attack network."""
    seen, train = [], memdefense.train_nasr

    def recorded(query, examples, settings, seed):
        seen.append((examples[0], settings))
        return train(query, examples, settings, seed)

    monkeypatch.setattr(memdefense, "train_nasr", recorded)
    return seen


def test_snapshots_and_examples(memorised, trained, monkeypatch):
    """Local attacks read the paper's rounds of the client's own uploads, the global one the last model."""
    monkeypatch.setattr(MemDefensePaper, "rounds_to_keep", frozenset({1, 3}))
    results = found(MemDefensePaper(settings=NasrSettings(kernels=2, epochs=1)), memorised)
    assert [examples.model.rounds for examples, _ in trained] == [(1, 3)] * 3 + [(4,)]
    assert [examples.model.client for examples, _ in trained] == [0, 1, 2, NO_CLIENT]
    assert [len(examples.members) for examples, _ in trained] == [60, 45, 30, 100]
    assert not any("where the paper has" in note for note in results["nasr", "uploads"].notes)
    for client, (examples, _) in enumerate(trained[:3]):
        assert np.isin(examples.members, memorised.truth.members[client]).all()
        assert np.isin(examples.nonmembers, memorised.truth.test).all()
        rows = results["nasr", "uploads"].scores
        own = rows.samples[rows.clients == client]
        assert not np.isin(own, examples.members).any()
        assert not np.isin(own, examples.nonmembers).any()


def test_attack_network_is_the_papers(memorised, trained, monkeypatch):
    """Three branches, cross-entropy, Adam at 1e-4 for 100 epochs; kernels as many as Nasr et al.'s layer allows."""
    monkeypatch.setattr(memdefense, "train_nasr", lambda *given: trained.append(given) or 1 / 0)
    list(MemDefensePaper().findings(memorised))
    _, _, settings, _ = trained[0]
    expected = NasrSettings(1000, False, "bce", 1e-4, 100, 40, 0.2, 10**9)
    assert settings == expected


def test_wide_layers_get_fewer_kernels(memorised, monkeypatch):
    """64 inputs and 640 coordinates leave 10 kernels."""
    monkeypatch.setattr(memdefense, "GRADIENT_OUTPUTS", 640)
    model = released_model(memorised.transcript.external_view(), memorised.knowledge, "test")
    assert paper_settings(memorised.query, model).kernels == 10


def test_results(leak):
    """Accuracies of all clients and their mean, and of the global model; odd clients lose a sample."""
    local, whole = leak["nasr", "uploads"], leak["nasr", "global"]
    told = figure(local, "A_att_l %")
    assert [client for client, _ in told.per_client] == [0, 1, 2]
    assert told.value == pytest.approx(np.mean([value for _, value in told.per_client]))
    for (_, value), count in zip(told.per_client, (120, 90, 60), strict=True):
        assert value * count / 100 == pytest.approx(round(value * count / 100), abs=1e-9)
    assert [(each.conditions.label, each.conditions.adversary) for each in (local, whole)] == [
        ("memdefense.nasr.uploads", "server"),
        ("memdefense.nasr.global", "external"),
    ]
    decision = whole.leakage.known.decision
    assert figure(whole, "A_att_g %").value == pytest.approx(100 * accuracy(decision))
    assert (decision.members, decision.nonmembers) == (100, 100)
    assert "trained on labelled members of the target itself" in local.notes[0]


def test_planted_leak_is_found(leak):
    """Local models more than the global one, as in the paper."""
    assert figure(leak["nasr", "uploads"], "A_att_l %").value > 65
    assert figure(leak["nasr", "global"], "A_att_g %").value > 55


def test_untrained_federation_leaks_nothing(tmp_path):
    """Coins, within four standard deviations."""
    results = found(MemDefensePaper(settings=SMALL), make_audit(tmp_path, SIZES, TESTS, lr=0.0, epochs=1))
    assert abs(figure(results["nasr", "uploads"], "A_att_l %").value - 50) < 100 * 4 / (2 * np.sqrt(sum(SIZES)))
    assert abs(figure(results["nasr", "global"], "A_att_g %").value - 50) < 100 * 4 / (2 * np.sqrt(TESTS))


def test_some_clients_only(memorised, trained):
    """Each costs an attack network; the remark says that not all were attacked."""
    results = found(MemDefensePaper(clients=1, settings=NasrSettings(kernels=2, epochs=1)), memorised)
    assert [client for client, _ in figure(results["nasr", "uploads"], "A_att_l %").per_client] == [0]
    assert [examples.model.client for examples, _ in trained] == [0, NO_CLIENT]
    assert any("only the first 1 client" in note for note in results["nasr", "uploads"].notes)
    with pytest.raises(UserError, match="clients of memdefense is 0"):
        MemDefensePaper(clients=0)


def test_large_clients_are_remarked(tmp_path):
    """A client with more members than the test set can match uses part of them."""
    audit = make_audit(tmp_path, (60, 20), 30, rounds=1, epochs=1)
    results = found(MemDefensePaper(settings=NasrSettings(kernels=2, epochs=1)), audit)
    notes = results["nasr", "uploads"].notes
    assert "client 0 has more members than half the test set: only 30 of them are used" in notes
    assert not any(note.startswith("client 1") for note in notes)


BRIEF = NasrSettings(kernels=2, epochs=1)


def labelled(audit, **settings):
    """Findings by label."""
    return {each.conditions.label: each for each in MemDefensePaper(settings=BRIEF, **settings).findings(audit)}


def test_a_server_that_refills_stands_beside_the_papers(tmp_path, trained):
    """Local models with and without zeros, each with an attack network of its own; the same samples are evaluated."""
    audit = make_audit(tmp_path, SIZES, TESTS, epochs=1, defenses=[Zeroing()])
    results = labelled(audit, clients=1)
    assert list(results) == ["memdefense.nasr.uploads", "memdefense.nasr.uploads+refilled", "memdefense.nasr.global"]
    plain, refilled, _ = (examples.model for examples, _ in trained)
    assert plain.rounds == refilled.rounds == (1, 2)
    zeros = [(model.snapshots[0].vector == 0).double().mean() for model in (plain, refilled)]
    assert zeros[0] > 0.6
    assert zeros[1] == 0
    rows = [results[f"memdefense.nasr.uploads{mark}"].scores for mark in ("", "+refilled")]
    assert np.array_equal(rows[0].samples, rows[1].samples)
    assert figure(results["memdefense.nasr.uploads+refilled"], "A_att_l %").per_client
    assert any("value of the broadcast" in note for note in results["memdefense.nasr.uploads+refilled"].notes)
    assert "memdefense.nasr.uploads+refilled" not in labelled(audit, clients=1, adaptive=False)


def test_a_participant_averages_the_global_model(tmp_path):
    """Where the server adds noise; with one kept round there is nothing to average."""
    noise = {"epochs": 1, "defenses": [Noising(where="server-noise")]}
    results = labelled(make_audit(tmp_path / "a", SIZES, TESTS, **noise), clients=1)
    averaged = results["memdefense.nasr.global+averaged"]
    assert averaged.conditions.adversary == "client"
    assert figure(averaged, "A_att_g %").value > 0
    assert "memdefense.nasr.uploads+averaged" not in results
    once = labelled(make_audit(tmp_path / "b", SIZES, TESTS, keep=1, **noise), clients=1)
    assert isinstance(once["memdefense.nasr.global+averaged"].leakage, NotAvailable)
    assert "--transcript.last" in once["memdefense.nasr.global+averaged"].leakage.reason


def test_the_callback_passes_it_on():
    """Whether somebody who knows the defense attacks, too."""
    assert [MembershipInference(protocol="memdefense", adaptive=wish).protocol._adaptive for wish in (True, False)] == [
        True,
        False,
    ]
