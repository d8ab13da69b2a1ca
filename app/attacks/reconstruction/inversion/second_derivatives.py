"""Smoothed second derivatives of ReLU and max-pool, for optimisation through gradients.

The true second derivatives are 0 almost everywhere: gradient matching would not see that a ReLU or a pool can switch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import one_hot

FLATTEST = 1e-6
"""Smallest root mean square of a map, so that an all-zero map gives no infinite slopes."""


class _Step(torch.autograd.Function):
    """1 where a value is above 0; its derivative is that of the logistic function."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, blur: float) -> Tensor:
        ctx.save_for_backward(values)
        ctx.blur = blur
        return (values > 0).to(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        (values,) = ctx.saved_tensors
        width = _width(values, ctx.blur)
        smooth = torch.sigmoid(values / width)
        return slope * smooth * (1 - smooth) / width, None


class _ArgMax(torch.autograd.Function):
    """One-hot of the largest value along the last axis; its derivative is that of the softmax."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, blur: float) -> Tensor:
        ctx.save_for_backward(values)
        ctx.blur = blur
        return one_hot(values.max(dim=-1).indices, values.shape[-1]).to(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        (values,) = ctx.saved_tensors
        width = _width(values, ctx.blur)
        shares = torch.softmax(values / width, dim=-1)
        return shares * (slope - (slope * shares).sum(dim=-1, keepdim=True)) / width, None


class _Relu(torch.autograd.Function):
    """ReLU, whose second derivative is the derivative of `_Step`."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, blur: float) -> Tensor:
        ctx.save_for_backward(values)
        ctx.blur = blur
        return values.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        return slope * _Step.apply(ctx.saved_tensors[0], ctx.blur), None


class _Max(torch.autograd.Function):
    """Largest value along the last axis, whose second derivative is the derivative of `_ArgMax`."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, blur: float) -> Tensor:
        ctx.save_for_backward(values)
        ctx.blur = blur
        return values.max(dim=-1).values

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        return slope.unsqueeze(-1) * _ArgMax.apply(ctx.saved_tensors[0], ctx.blur), None


def _width(values: Tensor, blur: float) -> Tensor:
    return blur * values.square().mean().sqrt().clamp(min=FLATTEST)


class _Layer(nn.Module):
    """A function of the layer's input."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._function = function

    def forward(self, values: Tensor) -> Tensor:
        return self._function(values)


def _pooled(maps: Tensor, pool: nn.MaxPool2d, blur: float) -> Tensor:
    (high, wide), (down, right) = _pair(pool.kernel_size), _pair(pool.stride)
    return _Max.apply(maps.unfold(2, high, down).unfold(3, wide, right).flatten(-2), blur)


def _pair(size: int | tuple[int, ...]) -> tuple[int, ...]:
    return (size, size) if isinstance(size, int) else tuple(size)


def _smoothed(layer: nn.Module, blur: float) -> nn.Module | None:
    """Replacement of a ReLU or a max-pool; None for all other layers."""
    if isinstance(layer, nn.ReLU):
        return _Layer(lambda values: _Relu.apply(values, blur))
    if isinstance(layer, nn.MaxPool2d) and not layer.ceil_mode and not layer.return_indices:
        plain = _pair(layer.padding) == (0, 0) and _pair(layer.dilation) == (1, 1)
        return _Layer(lambda maps: _pooled(maps, layer, blur)) if plain else None
    return None


@contextmanager
def smoothed_second_derivatives(net: nn.Module, blur: float) -> Iterator[None]:
    """Context in which ReLU and max-pool have smoothed second derivatives; values and first derivatives are exact.

    Args:
        net: network whose layers are replaced within the context. Pools with padding, dilation or rounding up keep the
            true derivative.
        blur: width as a share of the root mean square of the layer's input, 0 or more; 0 replaces nothing.
    """
    swapped = []
    for parent in list(net.modules()):
        for name, layer in list(parent.named_children()):
            replacement = _smoothed(layer, blur) if blur else None
            if replacement is not None:
                swapped.append((parent, name, layer))
                setattr(parent, name, replacement)
    try:
        yield
    finally:
        for parent, name, layer in swapped:
            setattr(parent, name, layer)
