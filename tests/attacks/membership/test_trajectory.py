"""The loss-trajectory attack."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from attack_kit import (
    ChangedShadows,
    FixedShadows,
    batch_norm_knowledge,
    counted,
    frozen,
    learning_toy,
    memorised_toy,
    random_model,
    swapped,
    toy,
)

from app.attacks.context import AttackContext
from app.attacks.membership import attack_net, trajectory
from app.attacks.membership.distillation import Distillation, distil
from app.attacks.membership.trajectory import DistilledTrajectory, UploadTrajectory
from app.attacks.membership.yeom import Yeom
from app.attacks.model_query import ModelQuery
from app.attacks.models import Shadow, Snapshot
from app.common.errors import UserError

KINDS = [UploadTrajectory, DistilledTrajectory]
SHORT = Distillation(epochs=4, batch_size=32, lr=0.1, momentum=0.9, weight_decay=0.0, teacher_mode="eval")


@cache
def usual(kind):
    """Area under the curve on the model in the middle of its training."""
    return learning_toy().auc(kind())


class ConstantTrajectory(DistilledTrajectory):
    """The losses of the student are replaced by a constant."""

    def trajectory(self, model, samples, context):
        """25 equal columns and the model's own losses."""
        return np.hstack([np.full((len(samples), 25), 0.7), self.losses(model.only_last(), samples, context)])


@pytest.mark.parametrize("kind", KINDS)
def test_trajectory_tells_more_than_the_last_loss(kind):
    """In the middle of a training, the stages add to what the last loss tells."""
    assert usual(kind) > usual(Yeom) + 0.005


@pytest.mark.parametrize("scale", ["log", "loss"])
def test_constant_trajectory_ranks_like_the_loss(scale):
    """Oracle 8: without a trajectory, the attack is Yeom's."""
    case = learning_toy()
    assert 0.9 < usual(Yeom) < 0.98
    assert case.auc(ConstantTrajectory(scale=scale)) == pytest.approx(usual(Yeom), abs=0.02)


def test_uploads_that_never_change_rank_like_the_loss():
    """Oracle 8 for the rounds that were seen: a model that stands still has no trajectory."""
    case = learning_toy()
    still = ChangedShadows(case.source, lambda one: Shadow(frozen(one.model), one.members, one.nonmembers))
    found = case.auc(UploadTrajectory(), frozen(case.target), source=still)
    assert found == pytest.approx(usual(Yeom), abs=0.02)


@pytest.mark.parametrize("kind", KINDS)
def test_swapped_shadow_labels_turn_the_scores_round(kind):
    """Oracle 8: a shadow that calls its members non-members gives 1 - AUC."""
    case = learning_toy()
    turned = case.auc(kind(), source=ChangedShadows(case.source, swapped))
    assert turned == pytest.approx(1 - usual(kind), abs=0.02)


def test_features_are_the_losses_of_all_stages():
    """One column per round, or per epoch and one of the model itself; both scales rank alike."""
    case, samples = learning_toy(), np.arange(40)
    context = case.context()
    uploads = UploadTrajectory(scale="loss").trajectory(case.target, samples, context)
    for stage in range(3):
        assert np.array_equal(uploads[:, stage], context.query.responses(case.target, samples, stage).losses)
    logs = UploadTrajectory().trajectory(case.target, samples, context)
    assert np.allclose(logs, np.log(np.expm1(uploads)), atol=1e-9)
    distilled = DistilledTrajectory(epochs=3).trajectory(case.target, samples, context)
    assert distilled.shape == (40, 4)
    assert np.array_equal(distilled[:, -1], logs[:, -1])


def test_networks_and_students_are_made_once(monkeypatch):
    """Targets with the same shadows share the attack network, and no teacher is distilled twice."""
    case, samples = memorised_toy(), np.arange(50)
    fitted, distilled = counted(monkeypatch, attack_net, "fit"), counted(monkeypatch, trajectory, "distil")
    attack = DistilledTrajectory(epochs=1, attack_epochs=1)
    for target in (case.target, toy().untrained, case.target):
        attack.scores(target, samples, case.context(target))
    assert (len(fitted), len(distilled)) == (1, 3)  # two targets and one shadow
    first = case.context().shadows("out")[0]
    attack.scores(first.model, first.samples, case.context().attacking(first))
    assert (len(fitted), len(distilled)) == (2, 4)  # the second shadow takes the place of the first


def test_shadows_that_are_trained_on(monkeypatch):
    """All of them learn from uploads, as many as asked for are distilled."""
    case, trained = memorised_toy(), counted(monkeypatch, attack_net, "balanced")
    UploadTrajectory(attack_epochs=1).scores(case.target, np.arange(9), case.context())
    assert len(trained) == 4
    DistilledTrajectory(epochs=1, attack_epochs=1, distilled_shadows=2).scores(
        case.target, np.arange(9), case.context()
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
    knowledge = batch_norm_knowledge(statistics)
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
    knowledge = batch_norm_knowledge(statistics)
    students = [student_of(knowledge, lively(knowledge), epochs=1, teacher_mode=mode) for mode in ("eval", "train")]
    assert torch.equal(students[0].last.vector, students[1].last.vector) == same


def test_student_has_the_width_of_its_teacher(monkeypatch):
    """A narrow client's upload is distilled into a narrow student."""
    knowledge, made = batch_norm_knowledge("batch"), []
    real = trajectory.distil
    monkeypatch.setattr(trajectory, "distil", lambda *args: made.append(real(*args)) or made[-1])
    narrow = random_model(knowledge, "narrow", rates=(0.5,))
    context = AttackContext(knowledge, ModelQuery(knowledge), FixedShadows(), narrow)
    DistilledTrajectory(epochs=2).trajectory(narrow, np.arange(9), context)
    assert [stage.rate for stage in made[0]] == [0.5, 0.5]
    assert made[0][0].vector.numel() == narrow.last.vector.numel()


def test_students_of_other_settings_are_others():
    """Two attacks that ask the same oracle do not get each other's answers."""
    case, samples = memorised_toy(), np.arange(9)
    seen = [DistilledTrajectory(epochs=1, lr=lr).trajectory(case.target, samples, case.context()) for lr in (0.1, 0.2)]
    assert not np.allclose(seen[0][:, 0], seen[1][:, 0])
    assert np.array_equal(seen[0][:, 1], seen[1][:, 1])


def test_augmentation_is_used_in_distillation():
    """Images are augmented as in training."""
    seen = []
    knowledge = replace(batch_norm_knowledge("running"), augment=lambda batch, _: seen.append(len(batch)) or batch)
    student_of(knowledge, random_model(knowledge, "teacher"), epochs=1)
    assert seen == [32] * 4


def test_no_population_is_refused():
    """Nothing to distil on: the error names the option."""
    knowledge = replace(batch_norm_knowledge("running"), population=np.arange(1))
    with pytest.raises(UserError, match=r"1 sample to distil(.|\n)*--data\.holdout\.population"):
        student_of(knowledge, random_model(knowledge, "teacher"))


def test_one_round_is_no_trajectory():
    """Uploads of a single round are refused, for the target as for shadows."""
    case = memorised_toy()
    with pytest.raises(UserError, match="sees 1 round"):
        UploadTrajectory().trajectory(case.target.only_last(), np.arange(9), case.context())
    assert UploadTrajectory.needs_rounds == 2


@pytest.mark.parametrize("kind", KINDS)
def test_no_shadow_left_is_refused(kind):
    """The only shadow plays the target."""
    case = memorised_toy()
    one = case.context().shadows("out")[0]
    with pytest.raises(UserError, match="no shadow model to learn from"):
        kind(attack_epochs=1).scores(one.model, one.samples, case.context(source=FixedShadows(one)).attacking(one))


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
