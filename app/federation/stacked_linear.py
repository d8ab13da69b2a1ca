"""Linear layers of many clients in one batched product, with gradients in the layout of the weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode


class StackedLinear(TorchFunctionMode):
    """Within it, `torch.func.vmap` turns linear layers into one batched product per direction.

    Left to itself, it makes gradients with inputs and outputs exchanged, and the optimiser then crosses both tensors
    against their layout: a step of ten clients of an MLP takes half as long again.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Reroute plain calls of a linear layer; everything else is left alone."""
        if func is not linear or kwargs or torch.is_autocast_enabled(args[0].device.type):
            return func(*args, **(kwargs or {}))
        product = _Linear.apply(args[0], args[1])
        return product if len(args) < 3 or args[2] is None else product + args[2]


class _Linear(torch.autograd.Function):
    """x @ weight.T of one client; what matters is the rule for many."""

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
