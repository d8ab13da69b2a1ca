"""Checks of a received model: numbers by which a client notices that it was made to extract its data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from app.models.layers import SeededDropout

Check = Literal["architecture", "repeated", "plan", "constant_fill", "gradient_suppression", "commitment"]

REASONS: Mapping[Check, str] = {
    "architecture": "the network has layers that the announced one does not have",
    "repeated": "the model has not changed since the last round in which the client's update arrived",
    "plan": "the submodel is not the one that follows from the announced method and the public seed",
    "constant_fill": "a layer is filled with a constant or with copies of the same rows",
    "gradient_suppression": "the model passes no gradient back to its first layer",
    "commitment": "the model is not the one that the server has committed to before all clients",
}
"""Reasons of a refusal; the same words for all clients, so that their warnings can be grouped."""

LEAST_WEIGHTS = 16
"""Weight tensors with fewer coordinates are not judged: a handful of honest values can be alike by chance."""


def repeated_share(index_before: Tensor, before: Tensor, index: Tensor, now: Tensor) -> float:
    """Share of the weights present both times that have exactly the value they had; NaN without a common weight.

    Args:
        index_before: coordinates of the server's vector that the client had (int64, ascending).
        before: their values.
        index: coordinates that it has now.
        now: their values.
    """
    if torch.equal(index_before, index):
        same = before == now
    else:
        if not len(index_before):
            return math.nan
        place = torch.searchsorted(index_before, index).clamp(max=len(index_before) - 1)
        common = index_before[place] == index
        same = before[place[common]] == now[common]
    return float(same.double().mean()) if len(same) else math.nan


def distinct_rows(weight: Tensor) -> float:
    """Share of distinct rows of a layer's weight (two dimensions or more), in (0, 1]; 1 where all of them differ.

    Rows of zeros are units that pruning has silenced and are left out, unless there are no others.
    """
    rows = weight.detach().flatten(1).float() if weight.element_size() < 4 else weight.detach().flatten(1)
    active = rows[(rows != 0).any(dim=1)]
    counted = (active if len(active) else rows).cpu() + 0.0  # minus zero has other bytes than zero
    return len({row.tobytes() for row in counted.numpy()}) / len(counted)


def variation(weight: Tensor) -> float:
    """Coefficient of variation: population standard deviation over the absolute mean; 0 for a tensor of zeros.

    A constant has 0, noise of p around a constant p / sqrt(3), values drawn between 0 and a bound 0.58; weights around
    zero have far more than 1.
    """
    values = weight.detach().double()
    std, mean = float(values.std(correction=0)), abs(float(values.mean()))
    if std == 0:
        return 0.0
    return std / mean if mean else math.inf


def least_distinct_rows(weights: Iterable[Tensor]) -> float:
    """The smallest `distinct_rows` of the layers that are large enough; infinite without any."""
    return min((distinct_rows(weight) for weight in _judged(weights)), default=math.inf)


def least_variation(weights: Iterable[Tensor]) -> float:
    """The smallest `variation` of the layers that are large enough; infinite without any."""
    return min((variation(weight) for weight in _judged(weights)), default=math.inf)


def gradient_ratio(net: nn.Module, loss: Tensor) -> float:
    """Norm of the gradient of the first layer's weight over that of the last; NaN for one layer, or without gradient.

    A model made to suppress its receiver's update passes no gradient back to the first layer: equal rows of the last
    layer get errors that add up to zero. The loss is of the network on some samples, with its graph.
    """
    weights = [parameter for parameter in net.parameters() if parameter.dim() > 1]
    if len(weights) < 2:
        return math.nan
    first, last = (
        float(part.double().norm()) for part in torch.autograd.grad(loss, [weights[0], weights[-1]], allow_unused=False)
    )
    return first / last if last > 0 else math.nan


def without_dropout(net: nn.Module) -> nn.Module:
    """The network in training mode, but with dropout off: a probe must not draw random numbers."""
    net.train()
    for layer in net.modules():
        if isinstance(layer, (SeededDropout, _DropoutNd)):
            layer.eval()
    return net


def _judged(weights: Iterable[Tensor]) -> Iterable[Tensor]:
    return (weight for weight in weights if weight.dim() > 1 and weight.numel() >= LEAST_WEIGHTS)
