"""Attackers who know the defense, beside those who do not: on federations whose defenses can be undone."""

from dataclasses import replace

import numpy as np
import pytest
from federation_under_attack import Again, Different, Guarded, Noising, Zeroing, audit_of, audited, trained

from app.attacks.adaptive.averaging import Averaging
from app.attacks.adaptive.catalogue import RETRAINED_WHAT
from app.attacks.adaptive.refill import Refill
from app.attacks.membership.yeom import Yeom
from app.attacks.protocols.target_selection import TargetSelection, seen_models
from app.attacks.shadows.federated import FederatedShadows
from app.attacks.shadows.shadow_store import ShadowSettings
from app.common.errors import UserError
from app.metrics.leakage import Leakage
from app.metrics.membership import NO_CLIENT
from app.results.attacks.membership import AttackRecord
from callbacks.attacks.membership_inference import MembershipInference

BOTH, FEDERATED = ShadowSettings("both", 4), ShadowSettings("federated", 4)


def auc(finding):
    """Area under the ROC curve."""
    return finding.leakage.auc.value


def audit_with(folder, defense=None, rounds=1, **settings):
    """A federation with a defense, all rounds kept, that can be repeated."""
    make = (lambda: [type(defense)(**defense.settings)]) if hasattr(defense, "settings") else tuple
    federation, transcript = trained(
        folder, rounds, callbacks=[defense] if defense else [], **{"keep": (rounds, []), **settings}
    )
    return audit_of(federation, transcript, federations=Again(federation, make), cache=folder / "shadows")


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """One round without any defense."""
    return audit_with(tmp_path_factory.mktemp("bare"))


@pytest.fixture(scope="module")
def zeroed(tmp_path_factory):
    """The same round; clients zero 70 % of their parameters."""
    return audit_with(tmp_path_factory.mktemp("zeroed"), Zeroing())


@pytest.fixture(scope="module")
def noised(tmp_path_factory):
    """Six rounds of noisy uploads."""
    return audit_with(tmp_path_factory.mktemp("noised"), Noising(), rounds=6, epochs=8)


def test_zeroed_uploads_are_refilled(bare, zeroed, tmp_path):
    """The refilled upload leaks exactly as one that kept its old values, nearly as one without any defense."""
    found = audited(zeroed, "yeom", calibrate=False)
    assert list(found) == ["yeom.global", "yeom.uploads", "yeom.uploads+refilled"]
    settings = {"targets": ("uploads",), "calibrate": False}
    kept = audited(audit_with(tmp_path, Zeroing(value="received")), "yeom", **settings)["yeom.uploads"]
    plain, adapted = found["yeom.uploads"], found["yeom.uploads+refilled"]
    assert np.array_equal(adapted.scores.scores, kept.scores.scores)
    undefended = auc(audited(bare, "yeom", **settings)["yeom.uploads"])
    assert undefended - auc(adapted) < 0.03 < auc(adapted) - auc(plain)
    assert adapted.conditions.adversary == "server"
    assert Refill.what in adapted.notes
    assert Refill.what not in plain.notes


def test_noisy_uploads_are_averaged(noised):
    """Fresh noise in six rounds goes to a good part; who attacks is the server that has seen them all."""
    found = audited(noised, "yeom", calibrate=False)
    assert list(found) == ["yeom.global", "yeom.uploads", "yeom.uploads+averaged"]
    assert auc(found["yeom.uploads+averaged"]) > auc(found["yeom.uploads"]) + 0.05
    assert Averaging.what in found["yeom.uploads+averaged"].notes


def test_a_noisy_global_model_is_averaged_by_a_participant(tmp_path):
    """Somebody outside sees the last model only; a participant has seen them all."""
    audit = audit_with(tmp_path, Noising(0.2, "server-noise"), rounds=8, epochs=8)
    found = audited(audit, "yeom", calibrate=False)
    assert list(found) == ["yeom.global", "yeom.global+averaged", "yeom.uploads"]
    assert auc(found["yeom.global+averaged"]) > auc(found["yeom.global"]) + 0.02
    adversaries = [finding.conditions.adversary for finding in found.values()]
    assert adversaries == ["external", "client", "server"]


def test_the_table_shows_both_and_the_stronger_one_counts(zeroed):
    """Two rows under each other, and a headline."""
    text = AttackRecord.text([AttackRecord.of(one) for one in audited(zeroed, "yeom", targets=("uploads",)).values()])
    first, second = [line.split()[:3] for line in text.splitlines() if line.startswith("yeom")]
    assert first == ["yeom", "uploads", "server"]
    assert second == ["yeom", "uploads+refilled", "server"]
    assert "strongest: yeom on uploads+refilled, AUC 0.9" in text
    assert "an attacker who knows the defense" in text


def test_without_a_defense_nothing_is_added(bare):
    """The same labels, notes and scores as without adaptive attackers."""
    names = ("yeom", "lira-online")
    with_them, without = (audited(bare, *names, adaptive=choice, calibrate=False) for choice in (True, False))
    assert (
        list(with_them) == list(without) == [f"{n}.{k}" for k in ("global", "uploads") for n in ("yeom", "lira-online")]
    )
    for label, finding in with_them.items():
        assert finding.notes == without[label].notes
        assert finding.conditions == without[label].conditions
        assert np.array_equal(finding.scores.scores, without[label].scores.scores)


def test_adaptive_attackers_can_be_left_out(zeroed):
    """By a setting of the audit, and of the callback."""
    assert "yeom.uploads+refilled" not in audited(zeroed, "yeom", adaptive=False, calibrate=False)
    settings = MembershipInference(["yeom"], adaptive=False).protocol._settings
    assert not settings.adaptive
    assert MembershipInference(["yeom"]).protocol._settings.adaptive


def test_too_few_rounds_to_average(noised, tmp_path):
    """One kept round: N/A with the option to keep more, beside the plain result."""
    audit = audit_with(tmp_path, Noising(), rounds=2, epochs=1, keep=(1, []))
    found = audited(audit, "yeom", "nasr", targets=("uploads",), calibrate=False)
    for name in ("yeom", "nasr"):
        assert "--transcript.last" in found[f"{name}.uploads+averaged"].leakage.reason
        assert isinstance(found[f"{name}.uploads"].leakage, Leakage)


def test_rounds_before_the_last(noised):
    """A server that acts at the end of round 3 averages the first three rounds, and no later ones."""
    found = audited(noised, "yeom", rounds=(3,), targets=("uploads",), calibrate=False)
    assert list(found)[2:] == ["yeom.uploads@3", "yeom.uploads@3+averaged"]
    models = seen_models(noised, TargetSelection("uploads", 3, False, (Averaging(),)), (3,))
    assert {model.reading.rounds for model in models.values()} == {(1, 2, 3)}
    assert {model.rounds for model in models.values()} == {(3,)}


def test_attacks_over_several_rounds_see_running_means(noised):
    """Each of their snapshots is what the attacker had by that round."""
    whole = seen_models(noised, TargetSelection("uploads", 6, True, (Averaging(),)), ())[0]
    assert whole.rounds == (1, 2, 3, 4, 5, 6)
    early = seen_models(noised, TargetSelection("uploads", 4, False, (Averaging(),)), ())[0]
    assert whole.snapshots[3].vector.equal(early.last.vector)
    assert whole.snapshots[0].vector.equal(
        seen_models(noised, TargetSelection("uploads", 6, True), ())[0].snapshots[0].vector
    )


def test_adaptations_use_their_adversarys_view_only(noised, zeroed):
    """The server's for uploads; a participant's for the global model."""

    def seen(audit, view, kind, *adaptations):
        guarded = replace(audit, transcript=Guarded(audit.transcript, {view}))
        return seen_models(guarded, TargetSelection(kind, audit.knowledge.rounds, False, adaptations), ())

    assert seen(zeroed, "server_view", "uploads", Refill())[0].snapshots
    assert seen(noised, "server_view", "uploads", Averaging())[0].snapshots
    assert seen(noised, "client_view", "global", Averaging())[NO_CLIENT].snapshots
    with pytest.raises(AssertionError, match="client_view is out of reach"):
        seen(noised, "external_view", "global", Averaging())
    with pytest.raises(AssertionError, match="server_view is out of reach"):
        seen(zeroed, "client_view", "uploads", Refill())


@pytest.mark.parametrize("role", ["attack", "recorder"])
def test_what_watches_is_no_defense(role, tmp_path):
    """Only defenses that say what they do are adapted to; a callback that watches is not."""

    class Watching(Different):
        kind = role

    audit = audit_with(tmp_path, Watching(), epochs=1)
    assert audit.knowledge.defenses == ()


def test_what_defends_is_a_defense(noised):
    """By its name, with what it says of itself."""
    assert [(part.name, part.traits) for part in noised.knowledge.defenses] == [("Noising", frozenset({"own-noise"}))]
    assert noised.knowledge.traits == {"own-noise"}


def defended(defense, **settings):
    """A defense that can be made again."""
    made = defense(**settings)
    made.settings = settings
    return made


def test_shadows_of_both_kinds(tmp_path):
    """Plain and refilled, with stand-ins and through the defense; as many of either, and no loss attack twice."""
    audit = audit_with(tmp_path, defended(Zeroing))
    found = audited(audit, "yeom", "lira-online", targets=("uploads",), shadows=BOTH, calibrate=False)
    labels = ["", "+refilled", "+retrained", "+refilled+retrained"]
    assert list(found) == [
        *(f"yeom.uploads{one}" for one in labels[:2]),
        *(f"lira-online.uploads{one}" for one in labels),
    ]
    told = [finding.conditions.shadows for finding in found.values()]
    assert told == ["none", "none", "4 central", "4 central", "4 federated", "4 federated"]
    assert all(isinstance(finding.leakage, Leakage) for finding in found.values())
    for label, finding in found.items():
        assert (RETRAINED_WHAT in finding.notes) == label.endswith("retrained")
        assert any("stand-ins" in note for note in finding.notes) == (finding.conditions.shadows == "4 central")


def test_shadows_are_read_like_their_target(tmp_path):
    """Through the same adaptation, in the same rounds; a client heard once is no obstacle."""
    audit = audit_with(tmp_path, defended(Zeroing), rounds=2, epochs=2)
    source = FederatedShadows(audit.knowledge, audit.audited, (1, 2), audit.federations, 2, tmp_path / "cache")

    def last(client, *adaptations):
        model = seen_models(audit, TargetSelection("uploads", 2, False, adaptations), ())[client]
        return source.shadows(model, "out").shadows[0].model

    plain, refilled, averaged = last(1), last(1, Refill()), last(1, Refill(), Averaging())
    zeros = [int((model.last.vector == 0).sum()) for model in (plain, refilled, averaged)]
    assert zeros[0] > 0.6 * len(plain.last.vector)
    assert zeros[1] < 0.6 * zeros[0], "what all clients zeroed before is zero in the broadcast"
    assert not refilled.last.vector.equal(averaged.last.vector)
    assert len({model.key for model in (plain, refilled, averaged)}) == 3
    assert [model.rounds for model in (plain, refilled, averaged)] == [(2,)] * 3
    assert averaged.reading.rounds == (1, 2)
    target = seen_models(audit, TargetSelection("uploads", 2, False, (Averaging(),)), ())[1]
    alone = replace(target, reading=replace(target.reading, rounds=(2,)))
    assert source.shadows(alone, "out").shadows[0].model.last.vector.equal(plain.last.vector)


def test_federated_shadows_adapt_to_a_defense(tmp_path):
    """Results of attacks with shadows are marked, others are not; without a defense, none is."""
    audit = audit_with(tmp_path / "a", defended(Different), epochs=2)
    found = audited(audit, "yeom", "lira-online", shadows=FEDERATED, calibrate=False)
    assert list(found) == [
        f"{name}.{kind}{mark}"
        for kind in ("global", "uploads")
        for name, mark in (("yeom", ""), ("lira-online", "+retrained"))
    ]
    bare = audit_with(tmp_path / "b", epochs=2)
    assert list(audited(bare, "lira-online", shadows=FEDERATED, calibrate=False)) == [
        "lira-online.global",
        "lira-online.uploads",
    ]


def remarks(audit, *names, **settings):
    """Defenses that nobody adapts to, as told beside each result."""
    found = audited(audit, *names, calibrate=False, **settings)
    return {
        label: [
            note.split(" was tried")[0].removeprefix("no attacker who adapts to ")
            for note in finding.notes
            if "adapts" in note
        ]
        for label, finding in found.items()
    }


def test_defenses_without_an_adaptive_attacker_are_named(tmp_path):
    """On every target by itself, beside the plain results; shadows through the defense settle it."""
    federation, transcript = trained(tmp_path, 1, epochs=1, callbacks=[Zeroing(), Different()], keep=(1, []))
    audit = audit_of(federation, transcript, federations=Again(federation))
    assert remarks(audit, "yeom") == {
        "yeom.global": ["Zeroing and Different"],
        "yeom.uploads": ["Different"],
        "yeom.uploads+refilled": [],
    }
    assert remarks(audit, "yeom", shadows=BOTH, targets=("global",)) == {"yeom.global": ["Zeroing and Different"]}
    both = remarks(audit, "lira-offline", shadows=BOTH, targets=("global",))
    assert both == {"lira-offline.global": [], "lira-offline.global+retrained": []}
    assert "--shadows.mode both" in " ".join(audited(audit, "yeom")["yeom.global"].notes)


def test_both_kinds_need_a_federation(bare):
    """As federated ones do."""
    with pytest.raises(UserError, match="mode is both, but the federation cannot be repeated here"):
        audited(replace(bare, federations=None), "yeom", shadows=BOTH)


def test_calibrated_attacks_are_compared_with_the_loss_they_could_have_used(zeroed):
    """An adaptive LiRA that is weaker than the adaptive loss attack is called uncalibrated, whatever the plain loss."""

    def guesses(samples, seed):
        return np.random.default_rng(seed).normal(size=len(samples))

    class Adaptive(Yeom):
        def scores(self, target, samples, context):
            return guesses(samples, 1) if target.reading is None else super().scores(target, samples, context)

    class Guess(Yeom):
        name = "lira-guess"

        def scores(self, target, samples, context):
            return guesses(samples, 2)

    found = audited(zeroed, attacks=[Adaptive(), Guess()], targets=("uploads",), calibrate=False)
    told = {label: any("uncalibrated" in note for note in finding.notes) for label, finding in found.items()}
    assert [label for label, wrong in told.items() if wrong] == ["lira-guess.uploads+refilled"]


def test_a_stack_is_undone_from_the_top(tmp_path):
    """Noise, then zeros: refilled, then refilled and averaged."""
    federation, transcript = trained(tmp_path, 2, epochs=1, callbacks=[Noising(), Zeroing()])
    found = audited(audit_of(federation, transcript), "yeom", targets=("uploads",), calibrate=False)
    assert [label.removeprefix("yeom.uploads") for label in found] == ["", "+refilled", "+refilled+averaged"]
