"""L2 regularisation as a defense: in the loss, or as decoupled weight decay."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import torch
from lightning.pytorch import Trainer
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from app.common.errors import Problem
from app.common.ranges import NonNegative
from app.federation.client import ClientModule
from app.federation.hooks import FederatedCallback, Knob
from app.federation.module import FederatedModule
from app.privacy.settings import setting_problem
from app.privacy.traits import Trait


class L2(FederatedCallback):
    """Keeps the weights small in local training, so that networks memorise less.

    `loss` adds weight/2 |theta|^2 over all parameters, biases included: with SGD the same as the optimiser's own
    weight_decay. `decoupled` first multiplies the parameters by 1 - lr * weight in every step, as AdamW does
    (Loshchilov and Hutter 2019). The two agree for SGD without momentum and differ for Adam, which rescales the
    gradient of the loss. It lowers overfitting, which membership inference exploits, and gives no formal guarantee.

    Example::

        rampart fit --defenses.l2 L2 --defenses.l2.weight 0.01

    Args:
        weight: factor of the penalty, at least 0 (no defense). MemDefense compares itself with 0.001.
        mode: `loss` adds the penalty to the loss; `decoupled` shrinks the parameters separately from the gradient step.
    """

    knob = Knob("weight", (1e-4, 1e-3, 1e-2))

    def __init__(self, weight: NonNegative = 1e-3, mode: Literal["loss", "decoupled"] = "loss") -> None:
        self.weight, self.mode = weight, mode
        self.vectorisable = mode == "loss" or weight == 0
        self._handles: dict[int, RemovableHandle] = {}

    def traits(self) -> frozenset[Trait]:
        return frozenset({"trains-differently"}) if self.weight > 0 else frozenset()

    def problems(self, federation: FederatedModule) -> Iterable[Problem]:
        if self.mode not in ("loss", "decoupled"):
            yield setting_problem("L2", "mode", repr(self.mode), "it would do nothing", "to loss or decoupled")

    def client_penalty(self, federation: FederatedModule, client: ClientModule) -> Tensor:
        squares = torch.stack([parameter.square().sum() for parameter in client.net.parameters()])
        return (self.weight if self.mode == "loss" else 0.0) / 2 * squares.sum()

    def on_client_start(self, trainer: Trainer, federation: FederatedModule, client: ClientModule) -> None:
        if self.mode == "decoupled" and self.weight > 0:
            assert client.optimizer is not None
            # also an optimiser that another defense has wrapped
            optimizer: Optimizer = getattr(client.optimizer, "original_optimizer", client.optimizer)
            self._handles[client.client] = optimizer.register_step_pre_hook(self._shrink)

    def on_client_end(self, trainer: Trainer, federation: FederatedModule, client: ClientModule) -> None:
        if client.client in self._handles:
            self._handles.pop(client.client).remove()

    @torch.no_grad()
    def _shrink(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.mul_(1 - group["lr"] * self.weight)
