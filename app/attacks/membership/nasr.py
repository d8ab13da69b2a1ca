"""Nasr et al. 2019, as used by MemDefense: a white-box attack network over several rounds of a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Adam

from app.attacks.context import AttackContext
from app.attacks.membership import attack_net
from app.attacks.membership.base import MembershipAttack, Threat
from app.attacks.model_query import ModelQuery, last_linear
from app.attacks.models import AttackedModel, Ids, Shadow
from app.common.errors import Problem, UserError, raise_all
from app.common.ranges import Count, Decay, Positive, Several
from app.common.seeding import derive_key
from app.metrics.membership import Array
from app.models.layers import SeededDropout

CODE = 64
"""Outputs of each branch of the attack network per snapshot."""


@dataclass(frozen=True)
class NasrSettings:
    """The attack network and its training by Adam.

    Attributes:
        kernels: convolution kernels over the gradient, 1 or more; Nasr et al. have 1000.
        label_branch: use the loss and the label too (Nasr et al.); without, MemDefense's 192 features per snapshot.
        loss: MemDefense does not state it, Nasr et al.'s code has `mse`.
        lr: learning rate; both papers have 1e-4.
        epochs: at most; Nasr et al. have 100.
        batch_size: examples per step.
        dropout: of the gradient and of the kernels' outputs, in [0, 1).
        most: examples taken from one model, at least 2, half of them members.
        weight_decay: in [0, 1).
        patience: epochs without progress on held-out examples after which training ends with the best epoch; None to
            hold nothing out and train for all epochs, as the papers do.
        align: sort the last layer's inputs of every sample, since hidden units of two networks have no common order.
    """

    kernels: Count = 20
    label_branch: bool = True
    loss: attack_net.Loss = "bce"
    lr: Positive = 1e-3
    epochs: Count = 20
    batch_size: Count = 64
    dropout: Decay = 0.2
    most: Several = 1000
    weight_decay: Decay = 0.0
    patience: Count | None = None
    align: bool = False

    def problems(self) -> Iterator[Problem]:
        yield from attack_net.choice_problem("nasr", "loss", self.loss, attack_net.Loss)


def weight_gradients(errors: Tensor, inputs: Tensor) -> Tensor:
    """Gradient of each sample's loss by the last layer's weight, transposed.

    The outer products (samples, features, classes) of the inputs of the last layer with the gradient by the logits,
    p - onehot, so that a kernel of one row sees all classes of one feature.
    """
    return inputs[:, :, None] * errors[:, None, :]


class SnapshotEncoder(nn.Module):
    """Branches for one snapshot: gradient, outputs of the last two layers, and loss with label.

    The scales of features come from the training set, rows as of `observe`.
    """

    def __init__(self, rows: Tensor, classes: int, settings: NasrSettings) -> None:
        super().__init__()
        features = rows.shape[1] - 3 * classes - 1
        self.sizes = [features, classes, 1, classes, classes]
        inputs, logits, losses, errors, _ = rows.split(self.sizes, dim=1)
        self.scales = nn.ModuleList(attack_net.Standardise(column) for column in (inputs, logits, losses))
        norms = inputs.norm(dim=1) * errors.norm(dim=1)
        self.register_buffer("unit", (norms.square().mean() / (features * classes)).sqrt().clamp_min(1e-30))
        # A convolution whose kernel is one whole row is a linear map of every row, which torch computes much faster.
        self.kernels = nn.Linear(classes, settings.kernels)
        self.dropout = SeededDropout(settings.dropout)
        self.gradient = attack_net.dense(settings.kernels * features, 128, CODE)
        self.hidden = attack_net.dense(features, 128, CODE)
        self.outputs = attack_net.dense(classes, 128, CODE)
        self.labels = attack_net.dense(classes + 1, CODE) if settings.label_branch else None
        self.width = CODE * (4 if settings.label_branch else 3)

    def forward(self, rows: Tensor) -> Tensor:
        inputs, logits, losses, errors, labels = rows.split(self.sizes, dim=1)
        filtered = self._filtered(errors / self.unit, inputs).relu_()
        scaled = [scale(column) for scale, column in zip(self.scales, (inputs, logits, losses), strict=True)]
        codes = [self.gradient(self.dropout(filtered.flatten(1))), self.hidden(scaled[0]), self.outputs(scaled[1])]
        if self.labels is not None:
            codes.append(self.labels(torch.cat([scaled[2], labels], dim=1)))
        return torch.cat(codes, dim=1).relu()

    def _filtered(self, errors: Tensor, inputs: Tensor) -> Tensor:
        """(samples, features, kernels) what the kernels give for the gradient of every feature.

        Without dropout, the gradient is an outer product, and a kernel acts on one of its factors alone.
        """
        if self.training and self.dropout.p > 0:
            return self.kernels(self.dropout(weight_gradients(errors, inputs)))
        filtered = errors @ self.kernels.weight.T
        return torch.addcmul(self.kernels.bias, inputs[:, :, None], filtered[:, None, :])


class NasrNet(nn.Module):
    """An encoder per snapshot of the training set, and a head over all of them; gives the logit of the member class."""

    def __init__(self, snapshots: Sequence[Tensor], classes: int, settings: NasrSettings) -> None:
        super().__init__()
        encoders = [SnapshotEncoder(rows, classes, settings) for rows in snapshots]
        self.encoders = nn.ModuleList(encoders)
        # hidden widths as in MemDefense
        self.head = attack_net.dense(sum(encoder.width for encoder in encoders), 256, 128, 64, 1)

    def hidden(self, *snapshots: Tensor) -> Tensor:
        """(rows, 64) last hidden layer, from which the logit is computed."""
        codes = [encoder(rows) for encoder, rows in zip(self.encoders, snapshots, strict=True)]
        return self.head[:-1](torch.cat(codes, dim=1))

    def forward(self, *snapshots: Tensor) -> Tensor:
        return self.head[-1](self.hidden(*snapshots))


def observe(query: ModelQuery, model: AttackedModel, samples: Ids, align: bool) -> list[Tensor]:
    """Inputs of the attack network, one tensor (samples, features + 3 classes + 1) per snapshot.

    Columns: inputs of the last layer (descending, with `align`), logits, ln(e^loss - 1), p - onehot, one-hot label. The
    gradient is the outer product of two of them, and is computed batch by batch, since it is far larger.
    """
    observed = []
    for at in range(len(model.snapshots)):
        seen = query.activations(model, samples, at)
        inputs, logits = -np.sort(-seen.inputs, axis=1) if align else seen.inputs, seen.responses.logits
        losses, onehot = attack_net.log_losses(seen.responses), np.eye(logits.shape[1])[seen.responses.labels]
        rows = np.hstack([inputs, logits, losses[:, None], seen.bias_gradients, onehot])
        observed.append(torch.from_numpy(rows).float().to(query.knowledge.device))
    return observed


@dataclass(frozen=True, eq=False)
class TrainedNasr:
    """A trained attack network for models whose snapshots have these width rates."""

    net: NasrNet
    query: ModelQuery
    rates: tuple[float, ...]
    align: bool

    def scores(self, model: AttackedModel, samples: Ids) -> Array:
        """(samples,) logit of the member class; refused where snapshots differ from the trained ones in width."""
        _refuse_unlike(model, self.rates)
        return attack_net.predict(self.net, observe(self.query, model, samples, self.align))

    def hidden(self, model: AttackedModel, samples: Ids) -> NDArray[np.float32]:
        """(samples, 64) last hidden layer of the attack network."""
        return attack_net.outputs(self.net.hidden, observe(self.query, model, samples, self.align)).float().numpy()


def train_nasr(
    query: ModelQuery, examples: Sequence[Shadow], settings: NasrSettings, seed: int, cache: Path | None = None
) -> TrainedNasr:
    """Train the attack network on samples whose membership is known.

    They belong to one or several shadows, or to the attacked model itself (MemDefense's evaluation). The seed is the
    key of initial values, batches, dropout, and the draw of examples. Refused where the models' snapshots differ in
    number or width, or there is nothing to learn from. Networks are kept in the folder `cache`, where there is one.
    """
    rates = _rates(examples[0].model)
    for one in examples:
        _refuse_unlike(one.model, rates)
    classes = last_linear(query.network(examples[0].model.last)).out_features
    net = attack_net.train_on(
        examples,
        lambda model, samples: observe(query, model, samples, settings.align),
        lambda snapshots: NasrNet(snapshots, classes, settings),
        settings.most,
        patience=settings.patience,
        seed=seed,
        epochs=settings.epochs,
        batch_size=settings.batch_size,
        optimizer=partial(Adam, lr=settings.lr, weight_decay=settings.weight_decay, fused=True),
        loss=settings.loss,
        cache=cache,
    )
    return TrainedNasr(cast(NasrNet, net), query, rates, settings.align)


class Nasr(MembershipAttack):
    """White-box attack on gradient, outputs of the last two layers, loss and label in every observed round.

    The attack network is trained on shadows, never on samples of the target, and shared by targets with the same
    shadows. Scores are logits of the member class.

    Args:
        kernels: convolution kernels over the gradient, 1 or more; Nasr et al. have 1000.
        label_branch: use the loss and the label too (Nasr et al.); without, MemDefense's 192 features per snapshot.
        loss: cross-entropy, or the squared error of Nasr et al.'s code.
        lr: learning rate of Adam; the papers have 1e-4, smaller batches and more epochs.
        weight_decay: in [0, 1); the papers have none.
        epochs: at most; Nasr et al. have 100.
        patience: epochs without progress on a held-out shadow after which training ends with the best epoch; None to
            train for all epochs, as the papers do.
        batch_size: samples per step.
        dropout: of the gradient and of the kernels' outputs, in [0, 1).
        most: samples of one shadow that the attack network learns from, at least 2, half of them members.
        align: sort the last layer's inputs of every sample, since hidden units of two networks have no common order.
    """

    name = "nasr"
    all_rounds = True
    threat = Threat(
        sees="weights of every seen round: gradient, hidden layer, outputs, loss",
        data="own data like the members'",
        trains="shadows, attack network",
    )
    shadows = "out"

    def __init__(
        self,
        *,
        kernels: Count = 10,
        label_branch: bool = True,
        loss: attack_net.Loss = "bce",
        lr: Positive = 2e-3,
        weight_decay: Decay = 1e-3,
        epochs: Count = 20,
        patience: Count | None = 2,
        batch_size: Count = 128,
        dropout: Decay = 0.2,
        most: Several = 1000,
        align: bool = True,
    ) -> None:
        self._settings = NasrSettings(
            kernels, label_branch, loss, lr, epochs, batch_size, dropout, most, weight_decay, patience, align
        )
        raise_all(self._settings.problems())
        self._trained: attack_net.ResultCache[TrainedNasr] = attack_net.ResultCache(
            lambda trained: attack_net.parameters_of(trained.net)
        )

    def scores(self, target: AttackedModel, samples: Ids, context: AttackContext) -> Array:
        shadows = attack_net.known_shadows(context)
        for shadow in shadows:
            _refuse_unlike(shadow.model, _rates(target))
        seed = derive_key(context.knowledge.seed, self.name)
        trained = self._trained.get(
            tuple(shadow.model.key for shadow in shadows),
            lambda: train_nasr(context.query, shadows, self._settings, seed, context.cache),
        )
        return trained.scores(target, samples)


def _rates(model: AttackedModel) -> tuple[float, ...]:
    return tuple(snapshot.rate for snapshot in model.snapshots)


def _refuse_unlike(model: AttackedModel, rates: tuple[float, ...]) -> None:
    own = _rates(model)
    if own != rates:
        one, another = (", ".join(f"{rate:g}" for rate in each) for each in (own, rates))
        raise UserError.of(
            f"one model has the widths {one} in the rounds seen, another {another}",
            "their last layers differ in size, and one attack network cannot read both",
            "look at the last round only, or keep the clients' widths fixed",
        )
