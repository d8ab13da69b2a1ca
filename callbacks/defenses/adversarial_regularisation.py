"""Adversarial regularisation: each client trains against its own membership-inference network."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import torch
from lightning.pytorch import Trainer
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, one_hot, softmax
from torch.optim import Adam

from app.common.errors import Problem
from app.common.ranges import Count, NonNegative, Positive, Whole
from app.common.seeding import torch_generator
from app.federation.channels.base import Aggregate
from app.federation.client import Batch, ClientModule
from app.federation.execution.distributed import gather
from app.federation.hooks import FederatedCallback, Knob
from app.federation.module import FederatedModule
from app.privacy.traits import Trait


class AdversarialRegularisation(FederatedCallback):
    """Trains each client so that its own attack network cannot tell its members from its reference set.

    The min-max game of Nasr, Shokri and Houmansadr (2018, Algorithm 1), played by each client alone. In every local
    step the attack network h first learns to tell training samples from reference samples by the model's probabilities
    and the label; then the model minimises its loss plus weight * E[log h] over the batch. Attack network and reference
    set never leave the client. For h the model runs in evaluation mode, as an attacker would run it; under FjORD at the
    client's full width. With ten classes h has 652,801 parameters, kept with Adam's two moments for every client.

    It aims at membership inference on the released model and on uploads. It gives no formal guarantee, and attackers
    other than h may do better. It needs --data.holdout.reference.

    Example::

        rampart fit --data.holdout.reference 0.2 --defenses.adv AdversarialRegularisation --defenses.adv.weight 3

    Args:
        weight: factor lambda of the attacker's gain in the loss, at least 0 (no defense). MemDefense compares itself
            with 3.
        warmup: rounds at the start in which only the attack networks learn, at least 0.
        attacker_steps: steps of the attack network before each step of the model, at least 1.
        attacker_lr: learning rate of the attack network's Adam, above 0.
        reference_batch: members, and as many reference samples, in a step of the attack network, at least 1 and at
            most what the client has; without a number, the size of the local batch.
        width: factor of the attack network's hidden widths, above 0; 1 has the widths of the published code.
    """

    knob = Knob("weight", (1.0, 3.0, 10.0))

    def __init__(
        self,
        weight: NonNegative = 3.0,
        warmup: Whole = 1,
        attacker_steps: Count = 1,
        attacker_lr: Positive = 1e-3,
        reference_batch: Count | None = None,
        width: Positive = 1.0,
    ) -> None:
        self.weight, self.warmup = weight, warmup
        self.attacker_steps, self.attacker_lr = attacker_steps, attacker_lr
        self.reference_batch, self.width = reference_batch, width
        self.vectorisable = weight == 0
        self._states: dict[int, dict[str, Any]] = {}
        self._fresh: dict[int, dict[str, Any]] = {}
        self._playing: dict[int, tuple[InternalAttacker, torch.Generator]] = {}

    def traits(self) -> frozenset[Trait]:
        return frozenset({"trains-differently", "local-adversary"}) if self.weight > 0 else frozenset()

    def problems(self, federation: FederatedModule) -> Iterable[Problem]:
        if self.weight > 0 and self.warmup >= federation.rounds:
            cause = f"AdversarialRegularisation warms up for {self.warmup} of {federation.rounds} rounds"
            remedy = "shorten --defenses.NAME.warmup, or train longer: --trainer.max_epochs"
            yield Problem(cause, "clients would never train against their attackers", remedy)
        if self.weight != 0:
            yield from federation.data.membership.reference_problems()

    def hindrance(self, federation: FederatedModule) -> Problem | None:
        cause = f"AdversarialRegularisation counts the attacker's gain {self.weight:g} times in the loss"
        return Problem(cause, remedy="lower --defenses.NAME.weight") if self.weight > 0 else None

    def on_client_start(self, trainer: Trainer, federation: FederatedModule, client: ClientModule) -> None:
        if self.weight > 0:
            draws = torch_generator(federation.seed, "adversary", client.round, client.client)
            self._playing[client.client] = (self._adversary(federation, client), draws)

    def client_loss(
        self, federation: FederatedModule, client: ClientModule, batch: Batch, logits: Tensor, loss: Tensor
    ) -> Tensor:
        if self.weight == 0:
            return loss
        adversary, draws = self._playing[client.client]
        labels = batch[1]
        for _ in range(self.attacker_steps):
            adversary.learn(*self._evidence(federation, client, self.reference_batch or len(labels), draws))
        if client.round < self.warmup:
            return loss
        return loss + self.weight * adversary.gain(logits, labels)

    def on_client_end(self, trainer: Trainer, federation: FederatedModule, client: ClientModule) -> None:
        if client.client in self._playing:
            adversary, _ = self._playing.pop(client.client)
            if all(bool(value.isfinite().all()) for value in adversary.net.parameters()):
                self._fresh[client.client] = _moved(adversary.state_dict(), torch.device("cpu"))

    def _adversary(self, federation: FederatedModule, client: ClientModule) -> InternalAttacker:
        like = next(client.net.parameters())
        values = torch_generator(federation.seed, "attacker", client.client)
        net = AttackerNet(federation.data.shape.classes, values, self.width)
        adversary = InternalAttacker(
            net.to(like.device, torch.promote_types(like.dtype, torch.float32)), self.attacker_lr
        )
        if client.client in self._states:
            adversary.load_state_dict(self._states[client.client])
        return adversary

    def _evidence(
        self, federation: FederatedModule, client: ClientModule, size: int, draws: torch.Generator
    ) -> tuple[Tensor, Tensor, int]:
        """Logits and labels of drawn members, then of drawn reference samples, and the number of members."""
        assert client.load_samples is not None
        inside, inside_labels = client.load_samples(torch.randperm(client.samples, generator=draws)[:size])
        reference = federation.data.reference_indices(client.client)
        chosen = reference[torch.randperm(len(reference), generator=draws)[:size]]
        outside, outside_labels = federation.data.store.batch(chosen, inside.dtype)
        outside = federation.data.augmented(outside, draws)  # as members are, or h would tell crops from whole images
        logits = _answers(client.net, torch.cat([inside, outside]))
        return logits, torch.cat([inside_labels, outside_labels]), len(inside)

    def on_server_update(self, trainer: Trainer, federation: FederatedModule, aggregate: Aggregate) -> None:
        for part in gather(self._fresh):  # another process may train these clients next time
            self._states.update(part)
        self._fresh = {}

    def state_dict(self) -> dict[str, Any]:
        return {"clients": dict(self._states)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._states = dict(state_dict["clients"])


@torch.no_grad()
def _answers(net: nn.Module, images: Tensor) -> Tensor:
    """Logits in evaluation mode; the mode is restored, and running statistics do not change."""
    was_training = net.training
    net.eval()
    logits = net(images)
    net.train(was_training)
    return logits


def _moved(state: Any, device: torch.device) -> Any:
    if isinstance(state, Tensor):
        return state.to(device)
    return {key: _moved(value, device) for key, value in state.items()}


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
