"""A client's local steps as a differentiable function of its images (Geng et al. 2021; Dimitrov et al. 2022)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD

from app.federation.local_training import LocalTraining

Tensors = tuple[Tensor, ...]
"""One tensor for each parameter of a network, in their order."""

Gradient = Callable[[Tensors, Tensor], Tensors]
"""Gradient at some parameters of the mean loss over the images at some positions (int64)."""


@dataclass(frozen=True, eq=False)
class LocalSteps:
    """The SGD steps of one round, as the public training recipe tells them.

    In which order a client shuffles its images is unknown. In the first epoch any order will do, as candidates have
    none; later epochs are assumed to repeat the batches of the first.
    """

    batches: tuple[Tensor, ...]  # positions (int64) of the images of every step, at least one step
    lr: float
    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    proximal: float = 0.0  # FedProx's mu
    clip_norm: float | None = None  # largest norm of a step's gradient

    @classmethod
    def of(cls, local: LocalTraining, lr: float, samples: int, least: int = 1) -> LocalSteps:
        """Steps of a client with so many samples; `least` is the smallest batch that its network can use.

        The optimiser must be SGD.
        """
        optimizer = local.build_optimizer([torch.nn.Parameter(torch.zeros(1))], lr)
        assert isinstance(optimizer, SGD)
        batches = tuple(replace(local, shuffle=False).batches(samples, torch.Generator(), least))
        names = ("momentum", "dampening", "nesterov", "weight_decay")
        settings: dict[str, Any] = {name: optimizer.param_groups[0][name] for name in names}
        return cls(batches, lr, **settings, proximal=local.proximal, clip_norm=local.clip_norm)

    def change(self, start: Tensors, gradient: Gradient) -> Tensors:
        """Parameters before the steps minus those after them, differentiable by whatever the gradient depends on."""
        values, velocity = start, None
        for positions in self.batches:
            slopes = self._slopes(start, values, gradient(values, positions))
            velocity = slopes if velocity is None else _sum(velocity, self.momentum, slopes, 1 - self.dampening)
            steps = _sum(velocity, self.momentum, slopes) if self.nesterov else velocity
            values = _sum(steps, -self.lr, values)
        return _sum(values, -1.0, start)

    def _slopes(self, start: Tensors, values: Tensors, gradient: Tensors) -> Tensors:
        """What SGD steps along: the gradient with the proximal term, clipped, and weight decay."""
        if self.proximal:
            gradient = _sum(_sum(start, -1.0, values), self.proximal, gradient)
        if self.clip_norm is not None:  # as `torch.nn.utils.clip_grad_norm_`, which works in place
            norm = torch.stack([part.norm() for part in gradient]).norm()
            factor = (self.clip_norm / (norm + 1e-6)).clamp(max=1.0)
            gradient = tuple(part * factor for part in gradient)
        return _sum(values, self.weight_decay, gradient) if self.weight_decay else gradient


def _sum(first: Tensors, factor: float, second: Tensors, weight: float = 1.0) -> Tensors:
    """The first tensors times a factor plus the second ones times a weight."""
    return tuple(factor * one + weight * other for one, other in zip(first, second, strict=True))
