"""The loss-trajectory attack."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from network_attack_kit import (
    Changed,
    Given,
    chance,
    counted,
    frozen,
    images,
    learning,
    memorised,
    random_model,
    swapped,
)

from app.attacks.context import AttackContext
from app.attacks.membership import trajectory
from app.attacks.membership.distillation import Distillation, distil
from app.attacks.membership.trajectory import DistilledTrajectory, UploadTrajectory
from app.attacks.model_query import ModelQuery
from app.attacks.models import Shadow, Snapshot
from app.errors import UserError

KINDS = [UploadTrajectory, DistilledTrajectory]
SHORT = Distillation(epochs=4, batch_size=32, lr=0.1, momentum=0.9, weight_decay=0.0, teacher_mode="eval")


class ConstantTrajectory(DistilledTrajectory):
    """The losses of the student are replaced by a constant."""

    def trajectory(self, model, samples, context):
        """25 equal columns and the model's own losses."""
        return np.hstack([np.full((len(samples), 25), 0.7), self.losses(model.only_last(), samples, context)])


@pytest.mark.parametrize("kind", KINDS)
def test_memorised_members_are_found_and_an_untrained_model_tells_nothing(kind):
    """Oracles 1 and 2: nearly all on a model that fits its members, chance on a random one or with permuted truth."""
    audit, attack = memorised(), kind()
    truth = audit.toy.truth
    assert audit.auc(attack) >= 0.98
    assert abs(audit.auc(attack, audit.toy.untrained) - 0.5) <= chance(truth)
    assert abs(audit.auc(attack, truth=np.random.default_rng(0).permutation(truth)) - 0.5) <= chance(truth)


@pytest.mark.parametrize("kind", KINDS)
def test_trajectory_tells_more_than_the_last_loss(kind):
    """In the middle of a training, the stages add to what the last loss tells."""
    assert learning().auc(kind()) > learning().yeom() + 0.005


@pytest.mark.parametrize("scale", ["log", "loss"])
def test_constant_trajectory_ranks_like_the_loss(scale):
    """Oracle 8: without a trajectory, the attack is Yeom's."""
    audit = learning()
    assert 0.9 < audit.yeom() < 0.98
    assert audit.auc(ConstantTrajectory(scale=scale)) == pytest.approx(audit.yeom(), abs=0.02)


def test_uploads_that_never_change_rank_like_the_loss():
    """Oracle 8 for the rounds that were seen: a model that stands still has no trajectory."""
    audit = learning()
    still = Changed(audit.source, lambda one: Shadow(frozen(one.model), one.members, one.nonmembers))
    found = audit.auc(UploadTrajectory(), frozen(audit.target), source=still)
    assert found == pytest.approx(audit.yeom(), abs=0.02)


@pytest.mark.parametrize("kind", KINDS)
def test_swapped_shadow_labels_turn_the_scores_round(kind):
    """Oracle 8: a shadow that calls its members non-members gives 1 - AUC."""
    audit = learning()
    turned = audit.auc(kind(), source=Changed(audit.source, swapped))
    assert turned == pytest.approx(1 - audit.auc(kind()), abs=0.02)


def test_features_are_the_losses_of_all_stages():
    """One column per round, or per epoch and one of the model itself; both scales rank alike."""
    audit, samples = learning(), np.arange(40)
    context = audit.context()
    uploads = UploadTrajectory(scale="loss").trajectory(audit.target, samples, context)
    for stage in range(3):
        assert np.array_equal(uploads[:, stage], context.query.responses(audit.target, samples, stage).losses)
    logs = UploadTrajectory().trajectory(audit.target, samples, context)
    assert np.allclose(logs, np.log(np.expm1(uploads)), atol=1e-9)
    distilled = DistilledTrajectory(epochs=3).trajectory(audit.target, samples, context)
    assert distilled.shape == (40, 4)
    assert np.array_equal(distilled[:, -1], logs[:, -1])


@pytest.mark.parametrize("kind", KINDS)
def test_same_scores_again_and_no_random_state_touched(kind):
    """All randomness is keyed; the global generators stay as they are."""
    audit, samples = learning(), np.arange(100)
    options = {"attack_epochs": 3} | ({"epochs": 2} if kind is DistilledTrajectory else {})
    first = kind(**options).scores(audit.target, samples, audit.context())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()
        again = kind(**options).scores(audit.target, samples, audit.context())
        assert torch.equal(state, torch.get_rng_state())
    assert np.array_equal(numpy_state, np.random.get_state()[1])
    assert np.array_equal(first, again)


def test_networks_and_students_are_made_once(monkeypatch):
    """Targets with the same shadows share the attack network, and no teacher is distilled twice."""
    audit, samples = memorised(), np.arange(50)
    fitted, distilled = counted(monkeypatch, trajectory, "fit"), counted(monkeypatch, trajectory, "distil")
    attack = DistilledTrajectory(epochs=1, attack_epochs=1)
    for target in (audit.target, audit.toy.untrained, audit.target):
        attack.scores(target, samples, audit.context(target))
    assert (len(fitted), len(distilled)) == (1, 3)  # two targets and one shadow
    first = audit.context().shadows("out")[0]
    attack.scores(first.model, first.samples, audit.context().attacking(first))
    assert (len(fitted), len(distilled)) == (2, 4)  # the second shadow takes the place of the first


def test_shadows_that_are_trained_on(monkeypatch):
    """All of them learn from uploads, as many as asked for are distilled."""
    audit, trained = memorised(), counted(monkeypatch, trajectory, "balanced")
    UploadTrajectory(attack_epochs=1).scores(audit.target, np.arange(9), audit.context())
    assert len(trained) == 4
    DistilledTrajectory(epochs=1, attack_epochs=1, distilled_shadows=2).scores(
        audit.target, np.arange(9), audit.context()
    )
    assert len(trained) == 6


def student_of(knowledge, teacher, **changes):
    """A student of the teacher's width on the attacker's population."""
    settings = replace(SHORT, **changes)
    stages = distil(knowledge, teacher.last, knowledge, knowledge.population, settings, teacher.last.rate)
    return replace(teacher, key=f"student-{settings}", snapshots=tuple(stages))


def lively(knowledge):
    """An untrained network whose answers differ from sample to sample, so that there is something to imitate."""
    model = random_model(knowledge, "teacher")
    vector = model.last.vector
    return replace(model, snapshots=(Snapshot(1, 1.0, vector * torch.where(vector.abs() < 1, 3.0, 1.0)),))


@pytest.mark.parametrize("statistics", ["batch", "posthoc", "running"])
def test_students_learn_from_networks_with_batch_norm(statistics):
    """The student comes closer to its teacher, which stays as it was."""
    knowledge = images(statistics)
    teacher = lively(knowledge)
    before = teacher.last.vector.clone()
    student = student_of(knowledge, teacher, epochs=12)
    query, asked = ModelQuery(knowledge), knowledge.population
    wanted = query.responses(teacher, asked)

    def divergence(stage):
        answered = query.responses(student, asked, stage).log_probabilities
        return np.mean(np.sum(wanted.probabilities * (wanted.log_probabilities - answered), axis=1))

    assert student.rounds == tuple(range(1, 13))
    assert divergence(-1) < 0.7 * divergence(0)
    assert torch.equal(before, teacher.last.vector)


@pytest.mark.parametrize(("statistics", "same"), [("batch", True), ("posthoc", False), ("running", False)])
def test_mode_of_the_teacher(statistics, same):
    """It matters exactly where evaluation uses other statistics than training."""
    knowledge = images(statistics)
    students = [student_of(knowledge, lively(knowledge), epochs=1, teacher_mode=mode) for mode in ("eval", "train")]
    assert torch.equal(students[0].last.vector, students[1].last.vector) == same


def test_student_has_the_width_of_its_teacher(monkeypatch):
    """A narrow client's upload is distilled into a narrow student."""
    knowledge, made = images("batch"), []
    real = trajectory.distil
    monkeypatch.setattr(trajectory, "distil", lambda *given: made.append(real(*given)) or made[-1])
    narrow = random_model(knowledge, "narrow", rates=(0.5,))
    context = AttackContext(knowledge, ModelQuery(knowledge), Given(), narrow)
    DistilledTrajectory(epochs=2).trajectory(narrow, np.arange(9), context)
    assert [stage.rate for stage in made[0]] == [0.5, 0.5]
    assert made[0][0].vector.numel() == narrow.last.vector.numel()


def test_students_of_other_settings_are_others():
    """Two attacks that ask the same oracle do not get each other's answers."""
    audit, samples = memorised(), np.arange(9)
    seen = [
        DistilledTrajectory(epochs=1, lr=lr).trajectory(audit.target, samples, audit.context()) for lr in (0.1, 0.2)
    ]
    assert not np.allclose(seen[0][:, 0], seen[1][:, 0])
    assert np.array_equal(seen[0][:, 1], seen[1][:, 1])


def test_augmentation_is_used_in_distillation():
    """Images are augmented as in training."""
    seen = []
    knowledge = replace(images("running"), augment=lambda batch, _: seen.append(len(batch)) or batch)
    student_of(knowledge, random_model(knowledge, "teacher"), epochs=1)
    assert seen == [32] * 4


def test_no_population_is_refused():
    """Nothing to distil on: the error names the option."""
    knowledge = replace(images("running"), population=np.arange(1))
    with pytest.raises(UserError, match=r"1 samples to distil(.|\n)*--data\.holdout\.population"):
        student_of(knowledge, random_model(knowledge, "teacher"))


def test_one_round_is_no_trajectory():
    """Uploads of a single round are refused, for the target as for shadows."""
    audit = memorised()
    with pytest.raises(UserError, match="sees 1 round"):
        UploadTrajectory().trajectory(audit.target.only_last(), np.arange(9), audit.context())
    assert UploadTrajectory.needs_rounds == 2


@pytest.mark.parametrize("kind", KINDS)
def test_no_shadow_left_is_refused(kind):
    """The only shadow plays the target."""
    audit = memorised()
    one = audit.context().shadows("out")[0]
    with pytest.raises(UserError, match="no shadow model to learn from"):
        kind(attack_epochs=1).scores(one.model, one.samples, audit.context(source=Given(one)).attacking(one))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("epochs", 0),
        ("batch_size", 0),
        ("lr", 0.0),
        ("lr", float("nan")),
        ("momentum", 1.0),
        ("weight_decay", -1e-4),
        ("teacher_mode", "test"),
        ("distilled_shadows", 0),
        ("attack_epochs", 0),
        ("attack_batch_size", -1),
        ("attack_lr", float("inf")),
        ("scale", "rank"),
        ("most", 1),
    ],
)
def test_options_out_of_range_are_refused(option, value):
    """Every option that cannot work is named."""
    with pytest.raises(UserError, match=f"{option} of trajectory-distilled"):
        DistilledTrajectory(**{option: value})
