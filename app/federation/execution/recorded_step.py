"""Losses and gradients of a stack of clients: computed under vmap once, then replayed from a recording."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode


class StackedLinear(TorchFunctionMode):
    """Within it, `torch.func.vmap` turns linear layers into one batched product per direction.

    Without it, gradients have inputs and outputs exchanged, and the optimiser reads both tensors against their memory
    layout: a step of ten clients of an MLP takes half as long again.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func is not linear or kwargs or torch.is_autocast_enabled(args[0].device.type):
            return func(*args, **(kwargs or {}))
        product = _Linear.apply(args[0], args[1])
        return product if len(args) < 3 or args[2] is None else product + args[2]


class _Linear(torch.autograd.Function):
    """x @ weight.T of one client, with its own vmap rule."""

    @staticmethod
    def forward(inputs: Tensor, weight: Tensor) -> Tensor:
        return linear(inputs, weight)

    @staticmethod
    def setup_context(context: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        context.save_for_backward(*inputs)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        inputs, weight = context.saved_tensors
        (gradient,) = gradients
        return gradient @ weight, gradient.flatten(0, -2).T @ inputs.flatten(0, -2)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, int | None], inputs: Tensor, weight: Tensor) -> tuple[Tensor, int]:
        if in_dims != (0, 0) or inputs.dim() != 3:
            return torch.func.vmap(linear, in_dims)(inputs, weight), 0
        return _Products.apply(inputs, weight), 0


class _Products(torch.autograd.Function):
    """The same for a stack of clients: (clients, batch, inputs) by (clients, outputs, inputs)."""

    @staticmethod
    def forward(context: Any, inputs: Tensor, weight: Tensor) -> Tensor:
        context.save_for_backward(inputs, weight)
        return torch.bmm(inputs, weight.transpose(1, 2))

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor]:
        inputs, weight = context.saved_tensors
        (gradient,) = gradients
        towards_inputs = torch.bmm(gradient, weight) if context.needs_input_grad[0] else None
        return towards_inputs, torch.bmm(gradient.transpose(1, 2), inputs)


Objective = Callable[[dict[str, Tensor], Tensor, Tensor], Tensor]
"""One client's loss, given its parameters and constants by name, its images and its labels."""

WORTHWHILE = 16
"""Steps of one shape after which it is recorded: recording costs as much as some hundred replayed steps save."""

_Recording = Callable[[Sequence[Tensor], Sequence[Tensor], Tensor, Tensor], tuple[Tensor, Sequence[Tensor | None]]]


@dataclass(frozen=True, eq=False)
class Recordings:
    """Recorded steps of one objective by the layout of their arguments, and how often each layout has occurred."""

    steps: dict[Hashable, _Recording] = field(default_factory=dict)
    seen: Counter[Hashable] = field(default_factory=Counter)


@lru_cache(maxsize=64)
def recordings_of(description: Hashable) -> Recordings:
    """Recordings of all objectives of this process with one description; those used last are kept."""
    return Recordings()


class RecordedStep:
    """Losses and gradients of one objective for stacks of clients.

    `objective` is that of one client. Steps of a shape that occurs often are recorded and replayed, for all objectives
    with the same `description`: it holds everything that they depend on beside their arguments. Without a description,
    nothing is recorded.
    """

    def __init__(self, objective: Objective, description: Hashable | None = None) -> None:
        self._objective = objective
        self._recordings = None if description is None else recordings_of(description)

    def __call__(
        self, values: Mapping[str, Tensor], constants: Mapping[str, Tensor], images: Tensor, labels: Tensor
    ) -> tuple[Tensor, Sequence[Tensor | None]]:
        """Loss of every client, and its gradient with respect to the client's own values (None for unused ones).

        All arguments have the clients along the first axis: parameters and other inputs of the objective by name,
        images and labels (clients, batch, ...).
        """
        arguments = (list(values.values()), list(constants.values()), images, labels)
        step, recordings = self._step(tuple(values), tuple(constants)), self._recordings
        if recordings is None:
            return step(*arguments)
        layout = (tuple(values), tuple(constants), _layout([*arguments[0], *arguments[1], images, labels]))
        recordings.seen[layout] += 1
        if recordings.seen[layout] < WORTHWHILE:
            return step(*arguments)
        if layout not in recordings.steps:
            recordings.steps[layout] = _recorded(step, *arguments)
        with torch.no_grad():
            return recordings.steps[layout](*arguments)

    def _step(self, names: tuple[str, ...], constant_names: tuple[str, ...]) -> _Recording:
        def step(
            values: Sequence[Tensor], constants: Sequence[Tensor], images: Tensor, labels: Tensor
        ) -> tuple[Tensor, Sequence[Tensor | None]]:
            leaves = [value.detach().requires_grad_() for value in values]
            named = dict(zip((*names, *constant_names), (*leaves, *constants), strict=True))
            with StackedLinear(), torch.enable_grad():
                losses = vmap(self._objective)(named, images, labels)
                gradients = torch.autograd.grad(losses.sum(), leaves, allow_unused=True)
            return losses.detach(), gradients

        return step


def _layout(tensors: Sequence[Tensor]) -> Hashable:
    """What the operations of a step depend on beside the values: shapes, types, memory, and mixed precision."""
    kind = tensors[-2].device.type
    autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    return autocast, tuple((tensor.shape, tensor.stride(), tensor.dtype, tensor.device) for tensor in tensors)


def _recorded(step: _Recording, *arguments: Any) -> _Recording:
    recording = make_fx(step)(*arguments)
    recording.graph.eliminate_dead_code()
    recording.recompile()
    return recording
