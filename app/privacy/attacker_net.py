"""The attack network of adversarial regularisation (Nasr et al. 2018)."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, one_hot, softmax
from torch.optim import Adam

OUTPUTS = (1024, 512, 64)
LABELS = (128, 64)
HEAD = (256, 128, 64)
"""Hidden widths of the branch that reads the outputs, of the one that reads the label, and of what follows them."""


class AttackerNet(nn.Module):
    """The inference network h of Nasr et al. (2018): from a prediction vector and the true label to membership.

    Its layers are those of the authors' published code for CIFAR-100, with ReLU in between: outputs C-1024-512-64,
    one-hot label C-128-64, head 128-256-128-64-1. Unlike there, the prediction vector holds probabilities, not logits.

    Args:
        classes: number of classes C, at least 1.
        generator: on the CPU; draws the initial values (torch's global one is not touched).
        width: factor of all hidden widths, above 0; every layer keeps at least one unit.
    """

    def __init__(self, classes: int, generator: torch.Generator, width: float = 1.0) -> None:
        super().__init__()
        outputs, labels, head = (
            tuple(max(1, round(units * width)) for units in layers) for layers in (OUTPUTS, LABELS, HEAD)
        )
        self.outputs = _layers(classes, *outputs)
        self.labels = _layers(classes, *labels)
        self.head = nn.Sequential(*_layers(outputs[-1] + labels[-1], *head), _linear(head[-1], 1))
        self.classes = classes
        _initialise(self, generator)

    def forward(self, probabilities: Tensor, labels: Tensor) -> Tensor:
        """Log-odds (batch) that samples are members, from (batch, classes) probabilities and (batch) int64 labels."""
        truth = one_hot(labels, self.classes).to(probabilities.dtype)
        return self.head(torch.cat([self.outputs(probabilities), self.labels(truth)], dim=1)).squeeze(1)


class InternalAttacker:
    """One client's attack network with its optimiser.

    Args:
        net: the attack network, on the device and in the type it is to work in; its parameters take gradients only
            while it learns.
        lr: learning rate of Adam, above 0.
    """

    def __init__(self, net: AttackerNet, lr: float) -> None:
        self.net = net.requires_grad_(False)
        self._optimizer = Adam(net.parameters(), lr=lr)

    def learn(self, logits: Tensor, labels: Tensor, members: int) -> None:
        """One step that raises mean log h over the first `members` samples plus mean log(1 - h) over the others.

        Args:
            logits: (batch, classes) of the defended model, without a gradient.
            labels: (batch) true classes.
            members: how many samples are members, at least 1 and below the size of the batch.
        """
        self.net.requires_grad_(True)
        with torch.enable_grad():
            odds = self._odds(logits, labels)
            gain = logsigmoid(odds[:members]).mean() + logsigmoid(-odds[members:]).mean()
            self._optimizer.zero_grad(set_to_none=True)
            (-gain).backward()
        self._optimizer.step()
        self.net.requires_grad_(False)

    def gain(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Mean log h over members: the attacker's gain, which the defended model is to lower."""
        return logsigmoid(self._odds(logits, labels)).mean()

    def state_dict(self) -> dict[str, Any]:
        return {"net": self.net.state_dict(), "moments": self._optimizer.state_dict()["state"]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["net"])
        moments = {key: {name: value.clone() for name, value in own.items()} for key, own in state["moments"].items()}
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": moments, "param_groups": groups})

    def _odds(self, logits: Tensor, labels: Tensor) -> Tensor:
        like = next(self.net.parameters())
        return self.net(softmax(logits.to(like.dtype), dim=1), labels).to(like.dtype)


def _layers(*widths: int) -> nn.Sequential:
    pairs = itertools.pairwise(widths)
    return nn.Sequential(*(layer for inputs, units in pairs for layer in (_linear(inputs, units), nn.ReLU())))


def _linear(inputs: int, units: int) -> nn.Linear:
    """A layer whose values are not initialised yet."""
    return nn.utils.skip_init(nn.Linear, inputs, units)


@torch.no_grad()
def _initialise(net: nn.Module, generator: torch.Generator) -> None:
    """Uniform values up to one over the root of a layer's inputs, as torch initialises linear layers."""
    for layer in net.modules():
        if isinstance(layer, nn.Linear):
            bound = layer.in_features**-0.5
            layer.weight.uniform_(-bound, bound, generator=generator)
            layer.bias.uniform_(-bound, bound, generator=generator)
