"""Liu et al. 2022: membership from the losses of a sample over a training, observed or imitated by distillation."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from operator import attrgetter
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Adam

from app.attacks.context import AttackContext
from app.attacks.membership import attack_net
from app.attacks.membership.base import MembershipAttack, Threat
from app.attacks.membership.distillation import Distillation, TeacherMode, distil
from app.attacks.models import AttackedModel, Ids, Shadow
from app.attacks.public_knowledge import PublicKnowledge
from app.common.errors import UserError, raise_all
from app.common.ranges import Count, Decay, Positive, Several
from app.common.seeding import derive_key
from app.metrics.membership import Array

HIDDEN = (512, 128, 32)
"""Hidden widths of the attack network, as in the paper."""

Scale = Literal["log", "loss"]
"""ln(e^loss - 1), which separates small losses, or the loss itself as in the paper."""


class Trajectory(MembershipAttack):
    """Loss-trajectory attack: an attack network on the losses of a sample at several stages of a training.

    Scores are logits of the member class. A subclass defines the stages in `trajectory`, and the shadows it trains on.

    Args:
        attack_epochs: epochs of the attack network; the paper has 100.
        attack_batch_size: samples per step of the attack network.
        attack_lr: learning rate of the attack network (Adam).
        scale: of the losses.
        most: samples of one shadow that the attack network learns from, at least 2, half of them members.
    """

    shadows = "out"

    def __init__(
        self,
        *,
        attack_epochs: Count = 50,
        attack_batch_size: Count = 128,
        attack_lr: Positive = 1e-3,
        scale: Scale = "log",
        most: Several = 10_000,
    ) -> None:
        raise_all(attack_net.choice_problem(self.name, "scale", scale, Scale))
        self._epochs, self._batch_size, self._lr = attack_epochs, attack_batch_size, attack_lr
        self._scale, self._most = scale, most
        self._nets: attack_net.ResultCache[nn.Module] = attack_net.ResultCache(attack_net.parameters_of)

    @abstractmethod
    def trajectory(self, model: AttackedModel, samples: Ids, context: AttackContext) -> Array:
        """(samples, stages) float64 losses over a model's training, scaled as in `losses`; the model's own are last."""

    def training_shadows(self, context: AttackContext) -> list[Shadow]:
        """Shadows that the attack network is trained on."""
        return attack_net.known_shadows(context)

    def losses(self, model: AttackedModel, samples: Ids, context: AttackContext) -> Array:
        """(samples, snapshots) float64 losses, finite for finite logits."""
        responses = [context.query.responses(model, samples, stage) for stage in range(len(model.snapshots))]
        scaled = attack_net.log_losses if self._scale == "log" else attrgetter("losses")
        return np.stack([scaled(one) for one in responses], axis=1)

    def scores(self, target: AttackedModel, samples: Ids, context: AttackContext) -> Array:
        shadows = self.training_shadows(context)
        observed = self._observed(target, samples, context)
        net = self._nets.get(tuple(shadow.model.key for shadow in shadows), lambda: self._train(shadows, context))
        return attack_net.predict(net, observed)

    def _observed(self, model: AttackedModel, samples: Ids, context: AttackContext) -> list[Tensor]:
        return [torch.from_numpy(self.trajectory(model, samples, context)).float().to(context.knowledge.device)]

    def _train(self, shadows: list[Shadow], context: AttackContext) -> nn.Module:
        def build(features: list[Tensor]) -> nn.Module:
            widths = (features[0].shape[1], *HIDDEN, 1)
            return nn.Sequential(attack_net.Standardise(features[0]), attack_net.dense(*widths))

        return attack_net.train_on(
            shadows,
            partial(self._observed, context=context),
            build,
            self._most,
            patience=10,
            seed=derive_key(context.knowledge.seed, self.name),
            epochs=self._epochs,
            batch_size=self._batch_size,
            # decay, since the network has many weights for the samples of one shadow
            optimizer=partial(Adam, lr=self._lr, weight_decay=1e-3, fused=True),
            loss="bce",
            cache=context.cache,
        )


class UploadTrajectory(Trajectory):
    """Losses in the rounds that the adversary has observed; nothing is distilled."""

    name = "trajectory-uploads"
    threat = Threat(
        sees="losses on the sample in several rounds",
        data="own data like the members'",
        trains="shadows, attack network",
    )
    needs_rounds = 2
    all_rounds = True

    def trajectory(self, model: AttackedModel, samples: Ids, context: AttackContext) -> Array:
        if len(model.snapshots) < self.needs_rounds:
            raise UserError.of(
                f"{self.name} sees {len(model.snapshots)} round of the model",
                "one loss is no trajectory",
                "audit several rounds, or use yeom for one",
            )
        return self.losses(model, samples, context)


class DistilledTrajectory(Trajectory):
    """Losses of a student that is distilled from the model, after each of its epochs, and of the model itself.

    The defaults of the distillation are those of Liu et al.'s code, except for its 100 epochs and its cosine schedule;
    the 25 epochs are those of the integration taxonomy's code. Students have the width of their teacher.

    Args:
        epochs: of the distillation.
        batch_size: samples per step of the distillation.
        lr: learning rate of the distillation (SGD).
        momentum: of the distillation, 0 or more, below 1.
        weight_decay: of the distillation, 0 or more.
        teacher_mode: mode of the distilled network.
        distilled_shadows: shadows that are distilled, and that the attack network is trained on.
        attack_epochs: epochs of the attack network.
        attack_batch_size: samples per step of the attack network.
        attack_lr: learning rate of the attack network (Adam).
        scale: of the losses.
        most: samples of one shadow that the attack network learns from, at least 2, half of them members.
    """

    name = "trajectory-distilled"
    threat = Threat(
        sees="answers to any query",
        data="own data like the members', and more for distillation",
        trains="shadows, students of target and shadows, attack network",
    )

    def __init__(
        self,
        *,
        epochs: Count = 25,
        batch_size: Count = 128,
        lr: Positive = 0.1,
        momentum: Decay = 0.9,
        weight_decay: Decay = 1e-4,
        teacher_mode: TeacherMode = "eval",
        distilled_shadows: Count = 1,
        attack_epochs: Count = 50,
        attack_batch_size: Count = 128,
        attack_lr: Positive = 1e-3,
        scale: Scale = "log",
        most: Several = 10_000,
    ) -> None:
        super().__init__(
            attack_epochs=attack_epochs,
            attack_batch_size=attack_batch_size,
            attack_lr=attack_lr,
            scale=scale,
            most=most,
        )
        self._settings = Distillation(epochs, batch_size, lr, momentum, weight_decay, teacher_mode)
        raise_all(self._settings.problems(self.name))
        self._distilled_shadows = distilled_shadows
        self._students: attack_net.ResultCache[AttackedModel] = attack_net.ResultCache(
            lambda one: sum(stage.vector.numel() for stage in one.snapshots)
        )

    def training_shadows(self, context: AttackContext) -> list[Shadow]:
        count = self._distilled_shadows
        # One more than needed, since one may be attacked itself; all of them where several are.
        return context.shadows("out", count + 1)[:count] or super().training_shadows(context)[:count]

    def trajectory(self, model: AttackedModel, samples: Ids, context: AttackContext) -> Array:
        student = self._students.get(model.key, lambda: self._student(model, context.knowledge))
        return np.hstack([self.losses(student, samples, context), self.losses(model.only_last(), samples, context)])

    def _student(self, teacher: AttackedModel, knowledge: PublicKnowledge) -> AttackedModel:
        stages = distil(knowledge, teacher.last, knowledge, knowledge.population, self._settings, teacher.last.rate)
        settings = f"{teacher.key}:{teacher.last.round}:{knowledge.seed}:{self._settings}"
        key = blake2b(settings.encode(), digest_size=16).hexdigest()
        return replace(teacher, key=f"student-{key}", snapshots=tuple(stages))
