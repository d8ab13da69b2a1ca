"""Labels of a batch, inferred from the gradient of the last linear layer (iDLG, Zhao et al. 2020, and extensions)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from app.attacks.model_query import last_linear

TIED = 1e-4
"""Relative difference up to which the norms of two rows count as equal."""


def inferred_labels(net: nn.Module, gradient: Tensor, count: int, classes: int) -> Tensor:
    """The most probable labels of a batch, ascending, from the gradient of its mean cross-entropy.

    The gradient by the logit of a class is its mean predicted probability minus its share of the batch. For one sample
    only that of the label is negative (iDLG), so the answer is exact; without a bias it is the row of the largest norm,
    since all rows are multiples of the same features. In a batch, every class with a negative gradient is taken first;
    the remaining labels go, one by one, to the class whose gradient is explained least, assuming uniform predictions.
    That holds for an untrained network, and less the longer it was trained. Without a bias, the sum of a row takes the
    place of the gradient by the logit, which needs non-negative features, as after a ReLU.

    Args:
        net: network that the batch was put through.
        gradient: (parameters,) flat over `net.parameters()`; unknown entries must be 0, and a class whose bias is among
            them is missed. Its norm matters where labels repeat: a clipped gradient makes the classes look balanced.
        count: samples of the batch, at least 1.
        classes: number of classes.

    Returns:
        (count,) int64 on the device of the gradient.
    """
    layer = last_linear(net)
    assert layer.out_features == classes
    assert count >= 1
    weight, bias = _layer_gradient(net, layer, gradient)
    if bias is not None and not bias.any():  # unknown
        bias = None
    if count == 1:
        return _single(weight, bias).reshape(1)
    return _greedy(_scaled_sums(weight) if bias is None else bias, count)


def _layer_gradient(net: nn.Module, layer: nn.Linear, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
    """Gradient by the weights and the biases of one layer, from a flat gradient over `net.parameters()`."""
    sizes: dict[Tensor, int] = {parameter: parameter.numel() for parameter in net.parameters()}
    parts = dict(zip(sizes, gradient.split(list(sizes.values())), strict=True))
    return parts[layer.weight].view(layer.weight.shape), None if layer.bias is None else parts[layer.bias]


def _single(weight: Tensor, bias: Tensor | None) -> Tensor:
    """The label of a batch of one."""
    if bias is not None:
        return bias.argmin()
    norms = weight.norm(dim=1)
    longest = norms * (1 + TIED) >= norms.max()
    # Two rows of the same norm: the features are assumed to be positive, as after a ReLU.
    return torch.where(longest, weight.sum(dim=1), torch.inf).argmin()


def _scaled_sums(weight: Tensor) -> Tensor:
    """Sums of the rows, scaled to gradients by the logits.

    With uniform predictions, the negative gradients sum to minus the share of the classes that are absent.
    """
    sums, classes = weight.sum(dim=1), len(weight)
    absent = int((sums >= 0).sum()) / classes
    negative = -sums.clamp(max=0).sum()
    return sums * absent / negative if negative > 0 else sums


def _greedy(per_logit: Tensor, count: int) -> Tensor:
    """Labels, ascending, from the (classes,) gradient by each logit: negative ones, then the least explained."""
    # With uniform predictions, a sample lowers the gradient of its class by 1 / count.
    values = per_logit.tolist()
    chosen = [label for label in sorted(range(len(values)), key=values.__getitem__) if values[label] < 0][:count]
    unexplained = [-count * value for value in values]
    for label in chosen:
        unexplained[label] -= 1
    while len(chosen) < count:
        label = max(range(len(unexplained)), key=unexplained.__getitem__)
        chosen.append(label)
        unexplained[label] -= 1
    return torch.tensor(sorted(chosen), dtype=torch.long, device=per_logit.device)
