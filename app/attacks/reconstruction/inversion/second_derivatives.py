"""Second derivatives where a network has kinks, so that a search by gradients of gradients sees masks change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import one_hot

FLATTEST = 1e-6
"""Smallest root mean square that a map is taken to have, so that an empty one gives no infinite slopes."""


class _Opening(torch.autograd.Function):
    """1 where a value is above 0; its derivative is that of a logistic curve."""

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
        open_ = torch.sigmoid(values / width)
        return slope * open_ * (1 - open_) / width, None


class _Choice(torch.autograd.Function):
    """1 at the largest value along the last axis, else 0; its derivative is that of a softmax."""

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
    """ReLU, whose second derivative is that of the opening."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, blur: float) -> Tensor:
        ctx.save_for_backward(values)
        ctx.blur = blur
        return values.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        return slope * _Opening.apply(ctx.saved_tensors[0], ctx.blur), None


class _Largest(torch.autograd.Function):
    """Largest value along the last axis, whose second derivative is that of the choice."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, blur: float) -> Tensor:
        ctx.save_for_backward(values)
        ctx.blur = blur
        return values.max(dim=-1).values

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        return slope.unsqueeze(-1) * _Choice.apply(ctx.saved_tensors[0], ctx.blur), None


def _width(values: Tensor, blur: float) -> Tensor:
    return blur * values.square().mean().sqrt().clamp(min=FLATTEST)


class _BlurredRelu(nn.Module):
    def __init__(self, blur: float) -> None:
        super().__init__()
        self._blur = blur

    def forward(self, values: Tensor) -> Tensor:
        return _Relu.apply(values, self._blur)


class _BlurredPool(nn.Module):
    def __init__(self, pool: nn.MaxPool2d, blur: float) -> None:
        super().__init__()
        self._blur, self._side, self._stride = blur, _pair(pool.kernel_size), _pair(pool.stride)

    def forward(self, maps: Tensor) -> Tensor:
        windows = maps.unfold(2, self._side[0], self._stride[0]).unfold(3, self._side[1], self._stride[1])
        return _Largest.apply(windows.flatten(-2), self._blur)


def _pair(size: int | tuple[int, ...]) -> tuple[int, ...]:
    return (size, size) if isinstance(size, int) else tuple(size)


def _blurred(layer: nn.Module, blur: float) -> nn.Module | None:
    """What stands in for a layer with kinks; None for all others."""
    if isinstance(layer, nn.ReLU):
        return _BlurredRelu(blur)
    if isinstance(layer, nn.MaxPool2d):
        plain = _pair(layer.padding) == (0, 0) and _pair(layer.dilation) == (1, 1)
        return _BlurredPool(layer, blur) if plain and not layer.ceil_mode and not layer.return_indices else None
    return None


@contextmanager
def smoothed_second_derivatives(net: nn.Module, blur: float) -> Iterator[None]:
    """Within it ReLU and max-pool have a second derivative; values and first derivatives are what they were.

    Args:
        net: network whose layers are replaced; on leaving, it has its own again. Pools with padding, dilation or
            rounding up keep the true derivative.
        blur: width as a share of the root mean square of what comes in, 0 or more; 0 replaces nothing.
    """
    swapped = []
    for parent in list(net.modules()):
        for name, layer in list(parent.named_children()):
            stand_in = _blurred(layer, blur) if blur else None
            if stand_in is not None:
                swapped.append((parent, name, layer))
                setattr(parent, name, stand_in)
    try:
        yield
    finally:
        for parent, name, layer in swapped:
            setattr(parent, name, layer)
