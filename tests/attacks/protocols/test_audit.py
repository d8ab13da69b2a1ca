"""The sound protocol: rows that are the truth, refusals with reasons, and mutants that are caught."""

from dataclasses import replace

import numpy as np
import pytest
from federation_under_attack import Guarded, RandomLabels, audit_of, audited, trained

from app.attacks.audit_context import AuditContext
from app.attacks.controls import chance_deviation
from app.attacks.membership.yeom import Yeom
from app.attacks.public_knowledge import PublicKnowledge
from app.attacks.shadows.shadow_store import ShadowSettings
from app.common.errors import UserError
from app.federation.transcript import Transcript
from app.metrics.leakage import Leakage
from app.metrics.membership import NotAvailable
from datamodules import Holdout
from datamodules.split import Membership


@pytest.fixture(scope="module")
def memorised(tmp_path_factory):
    """Three clients that have memorised their samples, after two rounds; shadows are trained once."""
    return audit_of(*trained(tmp_path_factory.mktemp("memorised")), cache=tmp_path_factory.mktemp("shadows"))


@pytest.fixture(scope="module")
def ignorant(tmp_path_factory):
    """The same federation with a learning rate of 0."""
    return audit_of(*trained(tmp_path_factory.mktemp("ignorant"), lr=0.0, epochs=1))


@pytest.fixture(scope="module")
def unequal(tmp_path_factory):
    """Two wide clients, one narrow one."""
    return audit_of(*trained(tmp_path_factory.mktemp("unequal"), capacities=[1.0, 1.0, 0.25]))


def auc(finding):
    """Area under the ROC curve."""
    return finding.leakage.auc.value


def found_share(finding):
    """Balanced accuracy of the attacker's decision."""
    return finding.leakage.known.decision.balanced_accuracy


def test_members_of_uploads_are_found(memorised):
    """Every client's upload gives its own members away; the mean of all uploads less so."""
    found = audited(memorised, "yeom")
    assert auc(found["yeom.uploads"]) > 0.95
    assert auc(found["yeom.uploads"]) > auc(found["yeom.global"]) > 0.5
    assert len(found["yeom.uploads"].clients) == 3
    assert found_share(found["yeom.uploads"]) > 0.85


@pytest.mark.parametrize(("attack", "threshold"), [("correctness", 1), ("modified-entropy", 0)])
def test_attacks_with_thresholds_of_their_own_are_judged_by_them(memorised, attack, threshold):
    """Song and Mittal's thresholds per class are in the scores: no other threshold is laid over them."""
    [finding] = audited(memorised, attack, targets=("global",)).values()
    rows, decision = finding.scores, finding.leakage.known.decision
    called = rows.scores >= threshold
    assert decision.true_positives == (called & rows.members).sum()
    assert decision.false_positives == (called & ~rows.members).sum()
    assert found_share(finding) > 0.6


def test_nothing_is_found_where_nothing_was_learnt(ignorant):
    """Both targets, all cheap attacks: within three standard deviations of chance."""
    for finding in audited(ignorant, "yeom", "lira-offline", "lira-online", "rmia-offline").values():
        bound = 3 * chance_deviation(finding.leakage.members, finding.leakage.nonmembers)
        assert abs(auc(finding) - 0.5) <= bound, finding.conditions.label


def test_rows_are_the_truth(memorised):
    """Each sample once, beside the client that owns it, with the membership that the data module has drawn."""
    truth = memorised.truth
    for finding in audited(memorised, "yeom", calibrate=False).values():
        rows = finding.scores
        for client in memorised.clients:
            own = rows.clients == client
            assert set(rows.samples[own & rows.members]) == set(truth.members[client])
            assert set(rows.samples[own & ~rows.members]) == set(truth.nonmembers[client])
        assert rows.scores.size == sum(map(len, (*truth.members, *truth.nonmembers)))


def test_truth_of_another_client_is_noticed(memorised):
    """With the clients' sets rotated, uploads tell nothing any more: the mutant cannot hide."""
    members, outside = memorised.truth.members, memorised.truth.nonmembers
    wrong = replace(memorised.truth, members=(*members[1:], members[0]), nonmembers=(*outside[1:], outside[0]))
    settings = {"targets": ("uploads",), "calibrate": False}
    assert auc(audited(replace(memorised, sets=wrong), "yeom", **settings)["yeom.uploads"]) < 0.75
    assert auc(audited(memorised, "yeom", **settings)["yeom.uploads"]) > 0.95


def test_overlapping_sets_are_refused(memorised):
    """Shadow data among the audited samples, and population data among the shadow data."""
    stolen = memorised.truth.nonmembers[0][:3]
    for name in ("auxiliary", "population"):
        knowledge = replace(memorised.knowledge, **{name: np.concatenate([getattr(memorised.knowledge, name), stolen])})
        with pytest.raises(UserError, match=r"both audited and [a-z]+ data: 3 samples"):
            audited(replace(memorised, knowledge=knowledge), "yeom")


def test_leakage_by_width(unequal):
    """Two wide clients, one narrow one."""
    rows = audited(unequal, "yeom", targets=("uploads",), calibrate=False)["yeom.uploads"].capacities
    assert [(row.rate, row.clients) for row in rows] == [(1.0, 2), (0.25, 1)]
    assert all(isinstance(row.leakage, Leakage) for row in rows)


def test_width_of_a_shadow_is_that_of_its_target(unequal):
    """A narrow client's shadows are narrow."""
    sizes = {}

    class Spy(Yeom):
        shadows = "out"

        def scores(self, target, samples, context):
            for shadow in context.shadows("out"):
                sizes.setdefault(target.client, shadow.model.last.vector.numel())
                assert shadow.model.last.rate == target.last.rate
            return super().scores(target, samples, context)

    shadows = ShadowSettings(count=2)
    audited(unequal, attacks=[Spy()], targets=("uploads",), calibrate=False, shadows=shadows)
    assert sizes[2] < sizes[0] == sizes[1]


def test_sealed_uploads_are_not_available(tmp_path):
    """Ciphertext gives N/A with the reason, never one half; the released model is attacked all the same."""
    federation, transcript = trained(tmp_path)
    for path in tmp_path.glob("round-*.npz"):
        with np.load(path) as arrays:
            sealed = {name.replace("plain", "ciphertext"): arrays[name] for name in arrays.files}
        np.savez(path, **sealed)
    found = audited(audit_of(federation, transcript), "yeom", calibrate=False)
    assert "ciphertext" in found["yeom.uploads"].leakage.reason
    assert isinstance(found["yeom.uploads"].scores, NotAvailable)
    assert isinstance(found["yeom.global"].leakage, Leakage)


def test_an_attack_sees_the_view_of_its_adversary_only(memorised):
    """The released model is attacked through the outsider's view, uploads through the server's."""

    def seen(kind, name, view):
        audit = replace(memorised, transcript=Guarded(memorised.transcript, {view}))
        return audited(audit, name, targets=(kind,))[f"{name}.{kind}"]

    assert isinstance(seen("global", "yeom", "external_view").leakage, Leakage)
    assert isinstance(seen("uploads", "yeom", "server_view").leakage, Leakage)
    assert isinstance(seen("global", "trajectory-uploads", "client_view").leakage, Leakage)
    assert seen("uploads", "yeom", "external_view").failed


def test_adversaries_are_named(memorised):
    """Who sees what."""
    found = audited(memorised, "yeom", "trajectory-uploads", rounds=(1,), calibrate=False)
    adversaries = {label: finding.conditions.adversary for label, finding in found.items()}
    assert adversaries == {
        "yeom.global": "external",
        "trajectory-uploads.global": "client",
        "yeom.uploads": "server",
        "trajectory-uploads.uploads": "server",
        "yeom.global@1": "client",
        "trajectory-uploads.global@1": "client",
        "yeom.uploads@1": "server",
        "trajectory-uploads.uploads@1": "server",
    }
    assert isinstance(found["yeom.uploads@1"].leakage, Leakage)
    assert "needs 2 rounds" in found["trajectory-uploads.uploads@1"].leakage.reason


def test_a_round_that_was_not_kept(memorised, tmp_path):
    """Its targets are N/A with the remedy; the others are there."""
    audit = audit_of(*trained(tmp_path, keep=(1, [])))
    found = audited(audit, "yeom", rounds=(1,), calibrate=False)
    assert "--transcript.rounds" in found["yeom.uploads@1"].leakage.reason
    assert isinstance(found["yeom.uploads"].leakage, Leakage)


def test_a_broken_attack_does_not_take_the_others_along(memorised):
    """Its result says what broke, and where."""

    class Broken(Yeom):
        name = "broken"

        def scores(self, target, samples, context):
            return 1 / 0

    found = audited(memorised, attacks=[Broken(), Yeom()], targets=("global",))
    assert found["broken.global"].failed
    assert "ZeroDivisionError" in found["broken.global"].leakage.reason
    assert isinstance(found["yeom.global"].leakage, Leakage)


def test_scores_that_are_not_numbers_are_refused(memorised):
    """A diverged model does not pass for a safe one."""

    class Diverged(Yeom):
        def scores(self, target, samples, context):
            return np.full(len(samples), np.nan)

    assert "not finite" in audited(memorised, attacks=[Diverged()])["yeom.global"].leakage.reason


def test_without_shadow_data(tmp_path):
    """Attacks that need shadows are N/A with the remedy; the loss attack lacks only its threshold."""
    data = RandomLabels(holdout=Holdout(0.5, 0.0, 0.1))
    found = audited(audit_of(*trained(tmp_path, data=data)), "yeom", "lira-offline", targets=("uploads",))
    assert "--data.holdout.shadow" in found["lira-offline.uploads"].leakage.reason
    yeom = found["yeom.uploads"]
    assert auc(yeom) > 0.95
    assert isinstance(yeom.leakage.known, NotAvailable)
    assert any("no threshold" in note for note in yeom.notes)


def test_without_nonmembers(tmp_path):
    """Nothing to compare with: N/A with the remedy."""
    data = RandomLabels(holdout=Holdout(0.0, 0.25, 0.1))
    found = audited(audit_of(*trained(tmp_path, data=data)), "yeom")
    assert all("--data.holdout.clients" in finding.leakage.reason for finding in found.values())


def test_a_client_without_nonmembers_is_left_out(memorised):
    """The others are measured; a remark names it."""
    outside = (np.empty(0, dtype=np.int64), *memorised.truth.nonmembers[1:])
    audit = replace(memorised, sets=replace(memorised.truth, nonmembers=outside))
    finding = audited(audit, "yeom", targets=("uploads",), calibrate=False)["yeom.uploads"]
    assert set(finding.scores.client_ids) == {1, 2}
    assert any("client 0 has" in note for note in finding.notes)


def test_a_client_that_sent_nothing(tmp_path):
    """With half of the clients per round, some are not in the rounds that were kept."""
    audit = audit_of(*trained(tmp_path, participation=0.34, keep=(1, [])))
    finding = audited(audit, "yeom", targets=("uploads",), calibrate=False)["yeom.uploads"]
    assert len(finding.scores.client_ids) == 1
    assert any("sent nothing" in note for note in finding.notes)


def test_local_training_leaves_the_server_nothing(tmp_path):
    """The server sees no upload, so there is nothing to attack."""
    audit = audit_of(*trained(tmp_path, personal=["*"]))
    assert "send nothing" in audited(audit, "yeom", targets=("uploads",))["yeom.uploads"].leakage.reason


def test_audits_repeat(memorised):
    """The same run gives the same scores, bit for bit, with shadows that are trained again."""
    memorised = replace(memorised, cache=None)
    for names, targets in ((("yeom", "lira-online"), ("uploads",)), (("shokri",), ("global",))):
        first, second = (audited(memorised, *names, targets=targets, calibrate=False) for _ in range(2))
        for label, finding in first.items():
            assert np.array_equal(finding.scores.scores, second[label].scores.scores), label


def test_no_transcript(memorised, tmp_path):
    """Refused before anything is trained, with the remedy."""
    audit = replace(memorised, transcript=Transcript(tmp_path))
    reasons = [finding.leakage.reason for finding in audited(audit, "yeom").values()]
    assert all("no transcript" in reason for reason in reasons)


def test_federated_shadows_need_a_federation(memorised):
    """Without a way to repeat it, the mode is refused."""
    with pytest.raises(UserError, match="cannot be repeated here"):
        audited(memorised, "yeom", shadows=ShadowSettings("federated", 4))


def reachable(start, depth=4):
    """Objects that can be reached from one through the attributes of our own classes."""
    found, edge = [], [start]
    for _ in range(depth):
        inside = [vars(thing).values() for thing in edge if type(thing).__module__.startswith(("app.attacks", "test_"))]
        edge = [value for values in inside for value in values]
        found += edge
    return found


def test_the_attack_never_sees_the_truth(memorised):
    """Nothing that an attack is given leads to who is a member, or to the transcript beyond its target."""
    seen = []

    class Curious(Yeom):
        def scores(self, target, samples, context):
            assert np.array_equal(samples, np.sort(samples)), "the order of the samples tells nothing"
            seen.extend([*reachable(target), *reachable(context)])
            return super().scores(target, samples, context)

    audited(memorised, attacks=[Curious()])
    assert any(isinstance(thing, PublicKnowledge) for thing in seen), "the walk went somewhere"
    assert not any(isinstance(thing, (AuditContext, Membership, Transcript)) for thing in seen)
