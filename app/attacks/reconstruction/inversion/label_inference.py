"""Labels of a batch, read from the gradient of the layer that makes the logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from app.attacks.model_query import last_linear

TIED = 1e-4
"""Relative difference up to which two rows of a gradient count as equally long."""


@dataclass(frozen=True, eq=False)
class HeadGradient:
    """The gradient of the mean cross-entropy by the classifier.

    Attributes:
        weight: (classes, features).
        bias: (classes,), None where the classifier has no bias.
    """

    weight: Tensor
    bias: Tensor | None


def inferred_labels(net: nn.Module, gradient: Tensor, count: int, classes: int) -> Tensor:
    """The labels, ascending, that a batch most probably had, from the gradient of its mean cross-entropy.

    The gradient by the logit of a class is its mean predicted probability less its share of the batch. Of one sample
    only the label's is negative (Zhao et al. 2020, iDLG), so the answer is certain; without a bias it is the longest
    row of the weights, since all rows are multiples of the same features. In a batch, every class with a negative
    gradient is taken first; the other places go, one by one, to the class whose gradient the labels so far explain
    least, as if the network predicted all classes alike. That holds for a fresh network and less the longer it was
    trained: the larger the batch and the better the network, the closer this comes to guessing. Without a bias, the sum
    of a class' row stands for its gradient, which needs features that are not negative, as after a ReLU.

    Args:
        net: network that the batch was put through.
        gradient: (parameters,) flat over `net.parameters()`; coordinates that nobody could read must be 0, and a class
            whose bias is among them is missed. Its size matters where labels repeat: a clipped gradient makes the
            classes look evenly spread.
        count: samples of the batch, at least 1.
        classes: number of classes.

    Returns:
        (count,) int64 on the device of the gradient.
    """
    layer = last_linear(net)
    assert layer.out_features == classes
    assert count >= 1
    head = head_gradient(net, layer, gradient)
    if head.bias is not None and not head.bias.any():  # nobody could read it
        head = HeadGradient(head.weight, None)
    if count == 1:
        return _single(head).reshape(1)
    per_logit = _scaled_sums(head.weight) if head.bias is None else head.bias
    return _greedy(per_logit, count)


def head_gradient(net: nn.Module, layer: nn.Linear, gradient: Tensor) -> HeadGradient:
    """The part of a flat gradient over `net.parameters()` that belongs to one linear layer."""
    found: dict[int, Tensor] = {}
    start = 0
    for parameter in net.parameters():
        found[id(parameter)] = gradient[start : start + parameter.numel()].view(parameter.shape)
        start += parameter.numel()
    assert start == len(gradient), f"the network has {start} parameters, the gradient {len(gradient)} weights"
    bias = None if layer.bias is None else found[id(layer.bias)]
    return HeadGradient(found[id(layer.weight)], bias)


def _single(head: HeadGradient) -> Tensor:
    """The label of a batch of one."""
    if head.bias is not None:
        return head.bias.argmin()
    lengths = head.weight.norm(dim=1)
    longest = lengths * (1 + TIED) >= lengths.max()
    # Two classes have rows of the same length: then the features are taken to be positive, as after a ReLU.
    return torch.where(longest, head.weight.sum(dim=1), torch.inf).argmin()


def _scaled_sums(weight: Tensor) -> Tensor:
    """Sums of the rows, scaled to gradients by the logits.

    If all classes are predicted alike, the negative gradients sum to the share of the classes that are absent, less 1.
    """
    sums, classes = weight.sum(dim=1), len(weight)
    absent = int((sums >= 0).sum()) / classes
    negative = -sums.clamp(max=0).sum()
    return sums * absent / negative if negative > 0 else sums


def _greedy(per_logit: Tensor, count: int) -> Tensor:
    """So many labels, ascending: first every class with a negative gradient, then whatever is explained least.

    Args:
        per_logit: (classes,) gradient by each logit.
        count: number of labels.
    """
    # Where all classes are predicted alike, a sample lowers the gradient of its class by 1 / count beside a constant.
    values = per_logit.tolist()
    chosen = [label for label in sorted(range(len(values)), key=values.__getitem__) if values[label] < 0][:count]
    left = [-count * value for value in values]
    for label in chosen:
        left[label] -= 1
    while len(chosen) < count:
        label = max(range(len(left)), key=left.__getitem__)
        chosen.append(label)
        left[label] -= 1
    return torch.tensor(sorted(chosen), dtype=torch.long, device=per_logit.device)
