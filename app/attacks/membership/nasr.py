"""Nasr et al. 2019, as used by MemDefense: a white-box attack network over several rounds of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Adam

from app.attacks.context import AttackContext
from app.attacks.membership import attack_net
from app.attacks.membership.base import MembershipAttack, Threat
from app.attacks.membership.nasr_net import NasrNet, NasrSettings
from app.attacks.model_query import ModelQuery, last_linear
from app.attacks.models import AttackedModel
from app.attacks.responses import Activations, Ids
from app.errors import UserError, raise_all
from app.metrics.membership import Array
from app.seeding import derive_key


@dataclass(frozen=True, eq=False)
class Examples:
    """Known members and non-members of a shadow, or of the attacked model itself."""

    model: AttackedModel
    members: Ids
    nonmembers: Ids


def observe(query: ModelQuery, model: AttackedModel, samples: Ids, align: bool) -> list[Tensor]:
    """Inputs of the attack network, one tensor (samples, features + 3 classes + 1) per snapshot.

    Columns: inputs of the last layer (descending, with `align`), logits, ln(e^loss - 1), p - onehot, one-hot label. The
    gradient is the outer product of two of them, and is computed batch by batch, since it is far larger.
    """
    device = _last_layer(query, model).weight.device
    activations = (query.activations(model, samples, at) for at in range(len(model.snapshots)))
    return [torch.from_numpy(_columns(one, align)).float().to(device) for one in activations]


def _columns(activations: Activations, align: bool) -> Array:
    responses = activations.responses
    inputs = -np.sort(-activations.inputs, axis=1) if align else activations.inputs
    onehot = np.eye(responses.logits.shape[1])[responses.labels]
    return np.hstack(
        [inputs, responses.logits, attack_net.log_losses(responses)[:, None], activations.bias_gradients, onehot]
    )


@dataclass(frozen=True, eq=False)
class TrainedNasr:
    """A trained attack network for models whose snapshots have these width rates."""

    net: nn.Module
    query: ModelQuery
    rates: tuple[float, ...]
    align: bool

    def scores(self, model: AttackedModel, samples: Ids) -> Array:
        """(samples,) logit of the member class, any sign.

        Raises:
            UserError: where the model's snapshots differ in number or width from those trained on.
        """
        _refuse_unlike(model, self.rates)
        return attack_net.predict(self.net, observe(self.query, model, samples, self.align))


def train_nasr(query: ModelQuery, examples: Sequence[Examples], settings: NasrSettings, seed: int) -> TrainedNasr:
    """Train the attack network on samples whose membership is known.

    They belong to one or several shadows, or to the attacked model itself (MemDefense's evaluation). The seed is the
    key of initial values, batches, dropout, and the draw of examples.

    Raises:
        UserError: where the models' snapshots differ in number or width, or there is nothing to learn from.
    """
    rates = _rates(examples[0].model)
    for one in examples:
        _refuse_unlike(one.model, rates)
    drawn = [
        attack_net.balanced(one.members, one.nonmembers, settings.most, seed, at) for at, one in enumerate(examples)
    ]
    observed = [
        observe(query, one.model, known.samples, settings.align) for one, known in zip(examples, drawn, strict=True)
    ]
    snapshots = [torch.cat(rows) for rows in zip(*observed, strict=True)]
    truth = torch.from_numpy(np.concatenate([known.truth for known in drawn])).to(snapshots[0])
    classes = _last_layer(query, examples[0].model).out_features
    net = attack_net.seeded(lambda: NasrNet(snapshots, classes, settings), seed, truth.device)
    attack_net.fit(
        net,
        snapshots,
        truth,
        epochs=settings.epochs,
        batch_size=settings.batch_size,
        optimizer=partial(Adam, lr=settings.lr, weight_decay=settings.weight_decay, fused=True),
        loss=settings.loss,
        seed=seed,
        held_out=None
        if settings.patience is None
        else attack_net.hold_out([len(known.samples) for known in drawn], seed),
        patience=settings.patience,
    )
    return TrainedNasr(net, query, rates, settings.align)


class Nasr(MembershipAttack):
    """White-box attack on gradient, outputs of the last two layers, loss and label in every observed round.

    The attack network is trained on shadows, never on samples of the target, and shared by targets with the same
    shadows. Scores are logits of the member class.

    Args:
        kernels: convolution kernels over the gradient, 1 or more; Nasr et al. have 1000.
        label_branch: use the loss and the label too (Nasr et al.); without, MemDefense's 192 features per snapshot.
        loss: cross-entropy, or the squared error of Nasr et al.'s code.
        lr: learning rate of Adam; the papers have 1e-4 and more epochs.
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
        kernels: int = 20,
        label_branch: bool = True,
        loss: attack_net.Loss = "bce",
        lr: float = 1e-3,
        weight_decay: float = 1e-3,
        epochs: int = 20,
        patience: int | None = 3,
        batch_size: int = 64,
        dropout: float = 0.2,
        most: int = 1000,
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
        examples = [Examples(one.model, one.members, one.nonmembers) for one in attack_net.known_shadows(context)]
        for one in examples:
            _refuse_unlike(one.model, _rates(target))
        seed = derive_key(context.knowledge.seed, self.name)
        trained = self._trained.get(
            tuple(one.model.key for one in examples), lambda: train_nasr(context.query, examples, self._settings, seed)
        )
        return trained.scores(target, samples)


def _last_layer(query: ModelQuery, model: AttackedModel) -> nn.Linear:
    return last_linear(query.network(model.last))


def _rates(model: AttackedModel) -> tuple[float, ...]:
    return tuple(snapshot.rate for snapshot in model.snapshots)


def _refuse_unlike(model: AttackedModel, rates: tuple[float, ...]) -> None:
    own = _rates(model)
    if own != rates:
        raise UserError.of(
            f"one model has the widths {_listed(own)} in the rounds seen, another {_listed(rates)}",
            "their last layers differ in size, and one attack network cannot read both",
            "look at the last round only, or keep the clients' widths fixed",
        )


def _listed(rates: tuple[float, ...]) -> str:
    return ", ".join(f"{rate:g}" for rate in rates)
