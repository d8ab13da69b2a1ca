"""Attack network of Nasr et al. 2019 as described in MemDefense: branches per snapshot, and a common head."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from app.attacks.membership.attack_net import (
    Loss,
    Standardise,
    choice_problem,
    dense,
    option_problems,
    share_problems,
)
from app.errors import Problem
from app.models.layers import SeededDropout

CODE = 64
"""Outputs of each branch of the attack network per snapshot."""

HEAD = (256, 128, 64)
"""Hidden widths behind the branches (MemDefense)."""


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

    kernels: int = 20
    label_branch: bool = True
    loss: Loss = "bce"
    lr: float = 1e-3
    epochs: int = 20
    batch_size: int = 64
    dropout: float = 0.2
    most: int = 1000
    weight_decay: float = 0.0
    patience: int | None = None
    align: bool = False

    def problems(self) -> Iterator[Problem]:
        counts = {"kernels": self.kernels, "epochs": self.epochs, "batch_size": self.batch_size, "most": self.most // 2}
        counts |= {} if self.patience is None else {"patience": self.patience}
        yield from option_problems("nasr", counts, {"lr": self.lr})
        yield from share_problems("nasr", dropout=self.dropout, weight_decay=self.weight_decay)
        yield from choice_problem("nasr", "loss", self.loss, Loss)


def weight_gradients(errors: Tensor, inputs: Tensor) -> Tensor:
    """Gradient of each sample's loss by the last layer's weight, transposed.

    Args:
        errors: (samples, classes) p - onehot, the gradient by the logits.
        inputs: (samples, features) of the last layer.

    Returns:
        (samples, features, classes) the outer products, so that a kernel of one row sees all classes of one feature.
    """
    return inputs[:, :, None] * errors[:, None, :]


class SnapshotEncoder(nn.Module):
    """Branches for one snapshot: gradient, outputs of the last two layers, and loss with label.

    Args:
        rows: training set, as `observe` makes it.
        classes: number of classes.
        settings: of the attack network.
    """

    def __init__(self, rows: Tensor, classes: int, settings: NasrSettings) -> None:
        super().__init__()
        features = rows.shape[1] - 3 * classes - 1
        self.sizes = [features, classes, 1, classes, classes]
        inputs, logits, losses, errors, _ = rows.split(self.sizes, dim=1)
        self.scales = nn.ModuleList(Standardise(column) for column in (inputs, logits, losses))
        norms = inputs.norm(dim=1) * errors.norm(dim=1)
        self.register_buffer("unit", (norms.square().mean() / (features * classes)).sqrt().clamp_min(1e-30))
        # A convolution whose kernel is one whole row is a linear map of every row, which torch computes much faster.
        self.kernels = nn.Linear(classes, settings.kernels)
        self.dropout = SeededDropout(settings.dropout)
        self.gradient = dense(settings.kernels * features, 128, CODE)
        self.hidden = dense(features, 128, CODE)
        self.outputs = dense(classes, 128, CODE)
        self.labels = dense(classes + 1, CODE) if settings.label_branch else None
        self.width = CODE * (4 if settings.label_branch else 3)

    def forward(self, rows: Tensor) -> Tensor:
        inputs, logits, losses, errors, labels = rows.split(self.sizes, dim=1)
        gradients = weight_gradients(errors / self.unit, inputs)
        filtered = self.kernels(self.dropout(gradients)).relu()
        scaled = [scale(column) for scale, column in zip(self.scales, (inputs, logits, losses), strict=True)]
        codes = [self.gradient(self.dropout(filtered.flatten(1))), self.hidden(scaled[0]), self.outputs(scaled[1])]
        if self.labels is not None:
            codes.append(self.labels(torch.cat([scaled[2], labels], dim=1)))
        return torch.cat(codes, dim=1).relu()


class NasrNet(nn.Module):
    """An encoder per snapshot, and a head over all of them.

    Args:
        snapshots: training set, one tensor per snapshot as `observe` makes them.
        classes: number of classes.
        settings: of the attack network.
    """

    def __init__(self, snapshots: Sequence[Tensor], classes: int, settings: NasrSettings) -> None:
        super().__init__()
        encoders = [SnapshotEncoder(rows, classes, settings) for rows in snapshots]
        self.encoders = nn.ModuleList(encoders)
        self.head = dense(sum(encoder.width for encoder in encoders), *HEAD, 1)

    def forward(self, *snapshots: Tensor) -> Tensor:
        codes = [encoder(rows) for encoder, rows in zip(self.encoders, snapshots, strict=True)]
        return self.head(torch.cat(codes, dim=1))
