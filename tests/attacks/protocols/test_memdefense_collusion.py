"""MemDefense's colluding adversary: a server and participants whose data and uploads it knows."""

import json
from dataclasses import replace

import numpy as np
import pytest
from paper_kit import figure, found, make_audit
from run_kit import train

from app.attacks.membership.nasr import NasrSettings
from app.attacks.protocols import collusion
from app.attacks.protocols.collusion import MemDefenseCollusion
from app.common.errors import UserError
from app.metrics.membership import NotAvailable
from app.results.attacks.membership import AttackRecord
from callbacks import Paillier, SecureAggregation

SIZES, TESTS = (90, 90, 60), 200
SMALL = NasrSettings(kernels=8, label_branch=False, epochs=15, most=10**9)
BRIEF = NasrSettings(kernels=2, epochs=1)


@pytest.fixture(scope="module")
def memorised(tmp_path_factory):
    """Clients that fit their random labels."""
    return make_audit(tmp_path_factory.mktemp("memorised"), SIZES, TESTS, epochs=15)


@pytest.fixture
def examples(monkeypatch):
    """What every attack network on uploads learns from."""
    seen, train_network = [], collusion.train_nasr

    def recorded(query, shadows, settings, seed):
        seen.append(shadows)
        return train_network(query, shadows, settings, seed)

    monkeypatch.setattr(collusion, "train_nasr", recorded)
    return seen


def test_members_of_others_are_found(memorised):
    """Although the adversary knows none of them; the result names it."""
    results = found(MemDefenseCollusion([0], settings=SMALL), memorised)
    local = results["nasr", "uploads"]
    assert local.conditions.label == "memdefense-collusion.nasr.uploads"
    assert local.conditions.adversary == results["nasr", "global"].conditions.adversary == "colluding-clients"
    assert local.leakage.auc.value > 0.8
    assert figure(local, "A_att_l %").value > 65
    assert "none of them the target's" in local.notes[0]


def test_it_learns_from_colluders_alone(memorised, examples):
    """Their uploads and members, one network for targets of one size; evaluated samples are new to it."""
    results = found(MemDefenseCollusion([0, 1], settings=BRIEF), memorised)
    [shadows] = examples
    assert [one.model.client for one in shadows] == [0, 1]
    for client, one in enumerate(shadows):
        np.testing.assert_array_equal(one.members, memorised.truth.members[client])
    rows = results["nasr", "uploads"].scores
    assert set(rows.clients) == {2}
    assert not np.isin(rows.samples, np.concatenate([one.samples for one in shadows])).any()
    whole = results["nasr", "global"].scores
    assert set(whole.clients[whole.members]) == {2}


def test_untrained_federation_leaks_nothing(tmp_path):
    """Coins, within four standard deviations."""
    results = found(MemDefenseCollusion([0], settings=SMALL), make_audit(tmp_path, SIZES, TESTS, lr=0.0, epochs=1))
    assert abs(figure(results["nasr", "uploads"], "A_att_l %").value - 50) < 100 * 4 / (2 * np.sqrt(150))


def test_other_widths_cannot_be_learnt_from(tmp_path):
    """Their last layers differ in size; clients of a colluder's width are attacked."""
    audit = make_audit(tmp_path, SIZES, TESTS, epochs=1, capacities=[1.0, 1.0, 0.5])
    local = found(MemDefenseCollusion([0], settings=BRIEF), audit)["nasr", "uploads"]
    assert set(local.scores.clients) == {1}
    assert any("width 0.5" in note for note in local.notes)


@pytest.mark.parametrize(
    ("colluders", "reason"), [([0], "the sum is that of 2 others"), ([0, 1], "the upload of the only other client")]
)
def test_masks_leave_the_sum_of_the_others(tmp_path, colluders, reason):
    """No local model, so no number; the reason tells what colluders can compute, and the global attack goes on."""
    audit = make_audit(tmp_path, SIZES, TESTS, epochs=1, lr=0.05, defenses=[SecureAggregation(allow_singletons=True)])
    results = found(MemDefenseCollusion(colluders, settings=BRIEF), audit)
    local = results["nasr", "uploads"]
    assert isinstance(local.leakage, NotAvailable)
    assert reason in local.leakage.reason
    assert not isinstance(results["nasr", "global"].leakage, NotAvailable)


@pytest.mark.filterwarnings("ignore:Paillier")
def test_a_colluder_opens_ciphertexts(tmp_path):
    """All participants hold the private key: with the option uploads are attacked, without it the reason names it."""
    for colluding in (False, True):
        defense = Paillier(key_length=1024, simulate=True, colluding=colluding)
        audit = make_audit(tmp_path / str(colluding), SIZES, TESTS, epochs=1, lr=0.05, defenses=[defense])
        leakage = found(MemDefenseCollusion([0], settings=BRIEF), audit)["nasr", "uploads"].leakage
        assert isinstance(leakage, NotAvailable) != colluding
        assert colluding or "colluding true" in leakage.reason


def test_everybody_or_nobody_colludes(memorised):
    """Then there is nobody to attack, or nobody who helps."""
    local = found(MemDefenseCollusion([0, 1, 2], settings=BRIEF), replace(memorised))["nasr", "uploads"]
    assert "no model to attack" in local.leakage.reason
    with pytest.raises(UserError, match="collude"):
        MemDefenseCollusion([])


def test_recipe_leaves_its_results(tmp_path):
    """`--config attack-memdefense-collusion` in a run, with a small attack network."""
    small = {"kernels": 2, "epochs": 1}
    protocol = {"class_path": "MemDefenseCollusion", "init_args": {"colluders": [0], "settings": small}}
    options = ("--config", "attack-memdefense-collusion", "--attacks.membership.protocol", json.dumps(protocol))
    run = train(tmp_path, "x", *options)
    labels = {record.label for record in AttackRecord.load_all(run)}
    assert {"memdefense-collusion.nasr.uploads", "memdefense-collusion.nasr.global"} <= labels
