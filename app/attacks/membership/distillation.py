"""Distillation of a model into a student, whose epochs imitate the unobserved training of the model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div
from torch.optim import SGD

from app.attacks.membership import attack_net
from app.attacks.models import Ids, Snapshot
from app.attacks.public_knowledge import PublicKnowledge
from app.attacks.shadows.central import initial_vector
from app.common.errors import Problem, UserError
from app.common.progress import track
from app.common.ranges import Count, Decay, Positive
from app.common.seeding import derive_key, torch_generator
from app.common.wording import counted
from app.federation.evaluation import statistics_context
from app.federation.execution.distributed import one_thread, precise
from app.federation.local_training import merge_short
from app.federation.parameters import FlatNet, ParameterSpace
from app.models.layers import seed_dropout

TeacherMode = Literal["eval", "train"]
"""Mode of the teacher: evaluation, or training (batch statistics and dropout) as in one published code."""


@dataclass(frozen=True)
class Distillation:
    """Training of a student by SGD on KL(teacher || student) at temperature 1; momentum and decay in [0, 1)."""

    epochs: Count
    batch_size: Count
    lr: Positive
    momentum: Decay
    weight_decay: Decay
    teacher_mode: TeacherMode

    def problems(self, attack: str) -> Iterator[Problem]:
        yield from attack_net.choice_problem(attack, "teacher_mode", self.teacher_mode, TeacherMode)


@one_thread()
def distil(
    teachers: PublicKnowledge,
    teacher: Snapshot,
    knowledge: PublicKnowledge,
    data: Ids,
    settings: Distillation,
    rate: float,
) -> list[Snapshot]:
    """Snapshots of a student after every epoch.

    All students of one seed have the same initial values and batches, and differ by their teachers only.

    Args:
        teachers: network of the teacher.
        teacher: the distilled model, of any width.
        knowledge: network of the student; its augmentation is used.
        data: ids to distil on, at least 2; their labels are not used.
        settings: of the student's training.
        rate: width rate of the student, in (0, 1].
    """
    if len(data) < 2:
        raise UserError.of(
            f"the attacker has {counted(len(data), 'sample')} to distil models on",
            "a student would learn nothing from its teacher",
            "keep some out of training with --data.holdout.population, such as 0.1",
        )
    guide, _ = _network(teachers, teacher.rate, teacher.vector)
    student, flat = _network(knowledge, rate, initial_vector(knowledge, rate, derive_key(knowledge.seed, "student")))
    descent = SGD(student.parameters(), lr=settings.lr, momentum=settings.momentum, weight_decay=settings.weight_decay)
    stages = []
    taught = teachers.store, torch.from_numpy(data), teachers.batch_size
    with statistics_context(guide.eval(), *taught) if settings.teacher_mode == "eval" else nullcontext():
        for epoch in track(range(1, settings.epochs + 1), "distillation", "epochs"):
            for images in _batches(knowledge, data, settings.batch_size, epoch):
                descent.zero_grad()
                _divergence(knowledge, guide, student, images).backward()
                descent.step()
            stages.append(Snapshot(epoch, rate, flat.read().cpu()))
    return stages


def _network(knowledge: PublicKnowledge, rate: float, vector: Tensor) -> tuple[nn.Module, FlatNet]:
    """A separate network in training mode, since the networks of `ModelQuery` are reused."""
    with torch.random.fork_rng(devices=[]):
        net = knowledge.prototype.scaled(rate).to(knowledge.device, knowledge.dtype).train()
    seed_dropout(net, torch_generator(knowledge.seed, "distillation-dropout", device=knowledge.device))
    flat = FlatNet(ParameterSpace(net), net)
    flat.write(vector.to(knowledge.device, knowledge.dtype))
    return net, flat


def _batches(knowledge: PublicKnowledge, data: Ids, batch_size: int, epoch: int) -> Iterator[Tensor]:
    order = torch.randperm(len(data), generator=torch_generator(knowledge.seed, "distillation", epoch))
    crops = torch_generator(knowledge.seed, "distillation-augmentation", epoch)
    for batch in merge_short(torch.from_numpy(data)[order].split(batch_size), least=2):
        images, _ = knowledge.store.batch(batch, knowledge.dtype)
        yield images if knowledge.augment is None else knowledge.augment(images, crops)


def _divergence(knowledge: PublicKnowledge, teacher: nn.Module, student: nn.Module, images: Tensor) -> Tensor:
    """KL(teacher || student) in nats, mean over the batch, at temperature 1."""
    with knowledge.precision():
        with torch.no_grad():
            expected = teacher(images)
        actual = student(images)
    wide = precise(images.device)
    logs = (actual.to(wide).log_softmax(1), expected.to(wide).log_softmax(1))
    return kl_div(*logs, reduction="batchmean", log_target=True)
