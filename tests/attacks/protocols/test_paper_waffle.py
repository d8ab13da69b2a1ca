"""WAFFLe's evaluation: attack models learnt from three shadows."""

from dataclasses import replace

import numpy as np
import pytest
from paper_kit import figure, found, make_audit

from app.attacks.protocols import waffle
from app.attacks.protocols.waffle import ShadowMaker, WafflePaper, f1_score
from app.attacks.targets import uploaded_models
from app.common.errors import UserError
from app.metrics.membership import NO_CLIENT
from app.metrics.roc import Decision

SIZES, TESTS = (120, 90, 60), 200


@pytest.fixture(scope="module")
def memorised(tmp_path_factory):
    """Clients that fit their random labels; the smallest trains half the width."""
    audit = make_audit(tmp_path_factory.mktemp("memorised"), SIZES, TESTS, capacities=[1.0, 1.0, 0.5])
    return replace(audit, cache=tmp_path_factory.mktemp("shadows"))


@pytest.fixture(scope="module")
def leak(memorised):
    """What the protocol finds of it."""
    return found(WafflePaper(), memorised)


@pytest.fixture(scope="module")
def with_own_data(tmp_path_factory):
    """A run where the attacker has a fifth of the pool."""
    return make_audit(tmp_path_factory.mktemp("own"), (64, 32, 32), TESTS, shadow=0.2, rounds=1, epochs=2)


def uploads(audit):
    """Every client's last upload."""
    view = audit.transcript.server_view()
    return uploaded_models(view, audit.knowledge, audit.kept_rounds, "test", last=True)


def test_three_shadows_without_the_attacked_client(memorised):
    """Of the target's width, trained on half a draw of the other clients' members; the other half is left out."""
    maker = ShadowMaker(memorised, 3)
    for client, model in uploads(memorised).items():
        made = maker.shadows(model, client).shadows(model, "out").shadows
        assert len(made) == 3
        for shadow in made:
            assert not np.isin(shadow.samples, memorised.truth.members[client]).any()
            assert not np.isin(shadow.samples, memorised.truth.test).any()
            assert len(shadow.members) == len(shadow.nonmembers) <= (sum(SIZES) - SIZES[client]) // 2
            assert len(np.intersect1d(shadow.members, shadow.nonmembers)) == 0
            assert shadow.model.last.rate == model.last.rate
            assert shadow.model.rounds == model.rounds
        assert len({shadow.members.tobytes() for shadow in made}) == 3


def test_shadows_are_as_large_as_their_target(memorised):
    """About as many samples as the client has, where there are enough."""
    maker, models = ShadowMaker(memorised, 3), uploads(memorised)
    (first, *_) = maker.shadows(models[2], 2).made
    assert abs(len(first.members) - 60) < 0.13 * 60


def test_own_data_come_first(with_own_data):
    """An attacker with data of its own needs nobody else's, and shares its shadows among clients of one size."""
    maker, models = ShadowMaker(with_own_data, 3), uploads(with_own_data)
    made = [maker.shadows(models[client], client) for client in range(3)]
    assert made[1] is made[2]
    assert made[0] is not made[1] or len(made[0].made[0].members) == 16
    for shadow in (*made[0].made, *made[1].made):
        assert np.isin(shadow.samples, with_own_data.truth.shadow).all()
    results = found(WafflePaper(targets=["uploads"]), with_own_data)
    assert not any("other clients' members" in note for note in results["shokri", "uploads"].notes)


def test_foreign_data_are_remarked(leak):
    """Without data of its own, the attacker takes those of others."""
    assert any("other clients' members" in note for note in leak["shokri", "global"].notes)


def test_single_client_without_own_data(tmp_path):
    """There is nothing to train shadows on."""
    results = found(WafflePaper(), make_audit(tmp_path, (30,), 40, rounds=1, epochs=1))
    assert "0 samples beside those of client 0" in results["shokri", "global"].leakage.reason


def test_shadows_are_found_again(memorised, leak, monkeypatch):
    """With the same settings none is trained."""
    monkeypatch.setattr("app.attacks.shadows.shadow_store.train_centrally", lambda *_: 1 / 0)
    again = found(WafflePaper(targets=["global"]), memorised)["shokri", "global"]
    assert again.figures == leak["shokri", "global"].figures


def test_f1_by_hand():
    """3 of 4 members found, 1 false alarm: precision and recall are 3/4; nobody found is 0."""
    assert f1_score(Decision(0.0, 3, 4, 1, 4, "elsewhere")) == 0.75
    assert f1_score(Decision(0.0, 4, 4, 4, 4, "elsewhere")) == pytest.approx(2 / 3)
    assert f1_score(Decision(0.0, 0, 4, 0, 4, "elsewhere")) == 0


def test_results(memorised, leak):
    """Every client's members against as many test samples, with the released model and with its own update."""
    assert list(leak) == [("shokri", "global"), ("shokri", "uploads")]
    assert [each.conditions.adversary for each in leak.values()] == ["external", "server"]
    for finding in leak.values():
        assert finding.conditions.shadows == "3 central"
        assert [each.name for each in finding.figures] == ["accuracy %", "F1 %"]
        assert (finding.scores.clients != NO_CLIENT).all()
        for client, size in enumerate(SIZES):
            own = finding.scores.select(finding.scores.clients == client)
            assert sorted(own.samples[own.members]) == memorised.truth.members[client].tolist()
            assert own.nonmember_count == size
            right = np.mean((own.scores >= 0) == own.members)
            assert dict(figure(finding, "accuracy %").per_client)[client] == pytest.approx(100 * right)


def test_small_test_set_bounds_the_members(memorised):
    """The sets stay balanced."""
    few = replace(memorised, sets=replace(memorised.truth, test=memorised.truth.test[:50]))
    sets = WafflePaper().sets(few, 0)
    assert (len(sets.members), len(sets.nonmembers)) == (50, 50)


def test_planted_leak_is_found(leak):
    """An intercepted update gives its client away; the mean of all of them, less."""
    assert figure(leak["shokri", "uploads"], "accuracy %").value > 70
    assert figure(leak["shokri", "uploads"], "F1 %").value > 70
    assert leak["shokri", "global"].leakage.auc.value > 0.6


def test_untrained_federation_leaks_nothing(tmp_path):
    """Coins, within four standard deviations."""
    for finding in WafflePaper().findings(make_audit(tmp_path, SIZES, TESTS, lr=0.0, rounds=1, epochs=1)):
        assert abs(figure(finding, "accuracy %").value - 50) < 100 * 4 / (2 * np.sqrt(2 * sum(SIZES)))


def test_options(memorised, monkeypatch):
    """Number of shadows, of clients, and which models."""
    trained = []
    train = waffle.train_or_find
    monkeypatch.setattr(waffle, "train_or_find", lambda *given: trained.append(len(given[1][0].jobs)) or train(*given))
    (finding,) = WafflePaper(shadows=2, clients=1, targets=["uploads"]).findings(memorised)
    assert trained == [2]
    assert [row.client for row in finding.clients] == [0]
    assert any("only the first 1 client" in note for note in finding.notes)
    with pytest.raises(UserError, match="shadows of waffle is 0"):
        WafflePaper(shadows=0)
    with pytest.raises(UserError, match="no target 'server'"):
        WafflePaper(targets=["server"])
