"""Controls: sound attacks pass, mutants are withheld with the reason."""

import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from federation_under_attack import audit_of, audited, trained

from app.attacks.controls import AttackControls, blind_failures, chance_deviation, make_toy, metric_failures
from app.attacks.membership.catalogue import ATTACKS, make_attack
from app.attacks.membership.lira import LiRAOffline
from app.attacks.membership.nasr import Nasr
from app.attacks.membership.yeom import Yeom
from app.metrics.leakage import Leakage
from app.metrics.membership import MembershipScores, NotAvailable
from datamodules.store import ImageStore


class Flipped(Yeom):
    """Members and non-members swapped."""

    name = "flipped"

    def scores(self, target, samples, context):
        """The loss instead of minus the loss."""
        return -super().scores(target, samples, context)


class Psychic(Yeom):
    """Knows the toy's members although the model does not."""

    name = "psychic"

    def scores(self, target, samples, context):
        """Whatever the model is."""
        return np.isin(samples, make_toy(0).members).astype(float)


@pytest.fixture(scope="module")
def room():
    """Trained once."""
    return AttackControls()


@pytest.fixture(scope="module")
def audit(tmp_path_factory):
    """A federation that leaks."""
    return audit_of(*trained(tmp_path_factory.mktemp("leaky")), cache=tmp_path_factory.mktemp("shadows"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_passes(room, name):
    """Memorised toy, untrained model, wrong labels."""
    assert room.failures(make_attack(name)) == []


def test_flipped_labels_are_caught(room, audit):
    """The number is withheld, the scores are kept, the reason is told; a warning keeps the number."""
    assert any("memorised" in failure for failure in room.failures(Flipped()))
    finding = audited(audit, attacks=[Flipped()], controls="withhold")["flipped.uploads"]
    assert "withheld, a control failed" in finding.leakage.reason
    assert isinstance(finding.scores, MembershipScores)
    warned = audited(audit, attacks=[Flipped()], controls="warn")["flipped.uploads"]
    assert isinstance(warned.leakage, Leakage)
    assert any("a control failed" in note for note in warned.notes)


def judged(folder, *attacks):
    """Names of the attacks that new controls, as in another process, judge with this cache folder."""
    controls, names = AttackControls(), []
    controls._tested = lambda attack: iter([names.append(attack.name)][:0])
    for attack in attacks:
        assert controls.failures(attack, folder) == []
    return names


def test_attacks_are_judged_once(tmp_path, monkeypatch):
    """Not again in a second run; again with other settings, another version, or a changed file of the attack."""
    sound = [Yeom(), LiRAOffline()]
    assert judged(tmp_path, *sound) == ["yeom", "lira-offline"]
    assert judged(tmp_path, Yeom(), LiRAOffline()) == []
    assert judged(tmp_path, Nasr(epochs=3), Nasr(epochs=3), Nasr(epochs=4)) == ["nasr", "nasr"]
    assert judged(None, Yeom(), Yeom()) == ["yeom"]
    with monkeypatch.context() as patch:
        patch.setattr("app.attacks.verdicts.code_versions", lambda: ("another",))
        assert judged(tmp_path, *sound) == ["yeom", "lira-offline"]
    assert judged(tmp_path, *sound) == []


def test_a_changed_attack_is_judged_again(tmp_path):
    """A developer's own class, whose file is saved with other content; one without a file is judged by every run."""
    source = tmp_path / "mine.py"
    text = "from app.attacks.membership.yeom import Yeom\nclass Mine(Yeom):\n    name = 'mine'\n"
    for content, expected in ((text, ["mine"]), (text, []), (text + "    more = 1\n", ["mine"])):
        source.write_text(content)
        space = {"__name__": "mine"}
        exec(compile(content, str(source), "exec"), space)
        sys.modules["mine"] = SimpleNamespace(__file__=str(source))
        try:
            assert judged(tmp_path, space["Mine"]()) == expected
        finally:
            del sys.modules["mine"]
    assert [judged(tmp_path, space["Mine"]()) for _ in range(2)] == [["mine"], ["mine"]]


def test_failures_are_kept_and_damaged_files_judged_again(room, tmp_path):
    """A flipped attack stays caught in the next run, without another test; a file cut short counts for nothing."""

    def failures():
        controls = AttackControls()
        controls.toy = room.toy
        return controls.failures(Flipped(), tmp_path)

    caught = room.failures(Flipped())
    assert failures() == caught != []
    (file,) = tmp_path.glob("control-*.json")
    for content in (file.read_text()[:9], "[]", '{"failures": 3}', ""):
        file.write_text(content)
        assert failures() == caught
        assert json.loads(file.read_text()) == {"failures": caught}


def test_shadows_on_own_data_are_trained_once(room):
    """They do not depend on what is audited: wrong labels are tested with the same ones, without a cache folder too."""
    controls, counts = AttackControls(shadows=2), room.toy.knowledge.shadow_counts
    controls.toy, before = room.toy, counts["trained"]
    controls.failures(LiRAOffline())
    assert counts["trained"] - before == 2


def test_knowledge_from_elsewhere_is_caught(room):
    """An attack that finds members of an untrained model."""
    assert any("never trained" in failure for failure in room.failures(Psychic()))


def test_confidence_in_any_class_is_caught(room):
    """LiRA with the largest probability in place of the true class's takes wrong labels for members."""

    class MaxConfidence(LiRAOffline):
        name = "lira-max"

        def scores(self, target, samples, context):
            return super().scores(target, samples, _Blind(context))

    class _Blind:
        """A context whose models are queried about their most probable class."""

        def __init__(self, context):
            self._context, self.query = context, self

        def __getattr__(self, name):
            return getattr(self._context, name)

        def responses(self, model, samples, snapshot=-1, view=0):
            found = self._context.query.responses(model, samples, snapshot)
            return replace(found, labels=found.logits.argmax(axis=1))

    failures = room.failures(MaxConfidence())
    assert any("wrong label" in failure for failure in failures), failures


def test_sound_attacks_keep_their_numbers(audit):
    """All controls on."""
    found = audited(audit, "yeom", controls="withhold")
    assert [isinstance(finding.leakage, Leakage) for finding in found.values()] == [True, True]


def test_permuted_and_constant_scores():
    """The metrics themselves: perfect scores pass, since permuted membership and equal scores tell nothing."""
    scores = MembershipScores.of(np.arange(400.0), np.arange(400) >= 200)
    assert metric_failures(scores, seed=0) == []


def test_blind_baseline_passes_a_coin(room):
    """Members and non-members from one distribution."""
    toy = room.toy
    assert blind_failures(toy.knowledge.store, toy.members, toy.nonmembers, seed=0) == []


def test_blind_baseline_catches_two_distributions(audit):
    """Brighter members are told apart without any model, so every number is withheld."""
    members = np.concatenate(audit.truth.members)
    images = audit.knowledge.store.images.clone()
    images[torch.from_numpy(members)] += 1.0
    store = audit.knowledge.store
    brighter = ImageStore(images, store.labels, store.mean, store.std, store.classes)
    shifted = replace(audit, knowledge=replace(audit.knowledge, store=brighter))
    for finding in audited(shifted, "yeom", controls="withhold").values():
        assert isinstance(finding.leakage, NotAvailable)
        assert "without the model" in finding.leakage.reason


def test_blind_baseline_catches_other_labels(room):
    """Members of some classes only."""
    toy = room.toy
    labels = toy.knowledge.store.labels[: len(toy.samples)].numpy()
    order = np.argsort(labels, kind="stable")
    assert blind_failures(toy.knowledge.store, order[:200], order[200:], seed=0) != []


def test_chance_deviation():
    """200 members and 200 non-members: 0.029."""
    assert chance_deviation(200, 200) == pytest.approx(0.0289, abs=1e-4)
