"""Ghost clipping (mixed, Bu et al. 2022): norms of every sample's gradient first, then one weighted sum.

One backward pass gives the gradient of every layer's output. From it and from the layer's input follow, layer by
layer, the norm of each sample's gradient and, once all norms are known, the sum of the clipped gradients. Per-sample
gradients are only formed where that is cheaper than products of inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.grad import conv2d_weight

from app.errors import UserError


@dataclass(frozen=True, eq=False)
class BatchShare:
    """Contribution of the samples of a batch to the gradient of one parameter."""

    parameter: Tensor | None  # the parameter; None for a bias that the layer does not have
    squared: Tensor  # (samples,) squared norm of every sample's gradient
    weighted: Callable[[Tensor], Tensor]  # sum of the samples' gradients, given their weights (samples,)


class _Pass(NamedTuple):
    """One layer in one forward pass."""

    layer: nn.Module
    input: Tensor
    output: Tensor
    version: int


class GhostClipping:
    """Sums of clipped gradients of one network, whose layers all pass `supports_ghost`; hooks it until it is closed."""

    def __init__(self, net: nn.Module) -> None:
        self._parameters = [parameter for parameter in net.parameters() if parameter.requires_grad]
        self._passes: list[_Pass] = []
        layers = [layer for layer in net.modules() if is_trained(layer)]
        self._handles = [layer.register_forward_hook(self._watch) for layer in layers]

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._passes.clear()

    def _watch(self, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if torch.is_grad_enabled():
            self._passes.append(_Pass(layer, inputs[0].detach(), output, output._version))

    def clipped(self, loss: Tensor, samples: int, clip: float) -> list[Tensor]:
        """Sum of the samples' clipped gradients, by trained parameter.

        Args:
            loss: mean over the samples of the last forward pass, each of which influences its own term only.
            samples: how many there are.
            clip: largest Euclidean norm of one sample's gradient, over all parameters together.
        """
        passes, self._passes = self._passes, []
        _refuse_surprises(passes)
        gradients = torch.autograd.grad(loss, [entry.output for entry in passes], allow_unused=True)
        with torch.no_grad():
            shares = [
                share
                for entry, gradient in zip(passes, gradients, strict=True)
                if gradient is not None
                for share in _shares(entry.layer, entry.input, gradient)
            ]
            # the loss is a mean, so a sample's own gradient is so many times larger
            norms = samples * torch.stack([share.squared for share in shares]).sum(0).sqrt()
            weights = samples * (clip / (norms + 1e-6)).clamp(max=1.0)
            sums = {share.parameter: share.weighted(weights) for share in shares}
            return [sums[each] if each in sums else torch.zeros_like(each) for each in self._parameters]


def is_trained(layer: nn.Module) -> bool:
    """Whether a layer has parameters of its own that are trained."""
    return any(parameter.requires_grad for parameter in layer.parameters(recurse=False))


def supports_ghost(layer: nn.Module) -> bool:
    """Whether norms of a trained layer's per-sample gradients can be computed here."""
    if type(layer) is nn.Conv2d:
        return layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return type(layer) in _RULES


def _refuse_surprises(passes: list[_Pass]) -> None:
    twice = len({entry.layer for entry in passes}) < len(passes)
    overwritten = any(entry.output._version != entry.version for entry in passes)
    if twice or overwritten:
        happened = "a layer was used twice in one step" if twice else "a layer's output was overwritten in place"
        raise UserError.of(
            f"ghost clipping: {happened}",
            "the norms of the samples' gradients would be wrong",
            "set --defenses.NAME.clipping hooks",
        )


def _shares(layer: nn.Module, inputs: Tensor, gradient: Tensor) -> Iterator[BatchShare]:
    """Contributions of one layer, in the precision of its parameters (mixed precision rounds activations only)."""
    dtype = next(layer.parameters(recurse=False)).dtype
    for share in _RULES[type(layer)](layer, inputs.to(dtype), gradient.to(dtype)):
        if share.parameter is not None and share.parameter.requires_grad:
            yield share


def _stored(parameter: Tensor | None, gradients: Tensor) -> BatchShare:
    """Per-sample gradients (samples, ...) of a small parameter, kept as they are."""
    flat = gradients.flatten(1)
    squared = torch.linalg.vector_norm(flat, dim=1).square()
    return BatchShare(parameter, squared, lambda weights: (weights @ flat).view(gradients.shape[1:]))


def _linear(layer: nn.Linear, inputs: Tensor, gradient: Tensor) -> Iterator[BatchShare]:
    if gradient.dim() > 2:  # positions of a sequence share the weight
        yield _stored(layer.weight, torch.einsum("n...i,n...j->nij", gradient, inputs))
        gradient = gradient.flatten(1, -2).sum(1)
    else:
        squared = gradient.square().sum(1) * inputs.square().sum(1)
        yield BatchShare(layer.weight, squared, lambda weights: (weights[:, None] * gradient).T @ inputs)
    yield _stored(layer.bias, gradient)


def _group_norm(layer: nn.GroupNorm, inputs: Tensor, gradient: Tensor) -> Iterator[BatchShare]:
    normal = functional.group_norm(inputs, layer.num_groups, eps=layer.eps)
    yield _stored(layer.weight, (normal * gradient).flatten(2).sum(2))
    yield _stored(layer.bias, gradient.flatten(2).sum(2))


def _conv(layer: nn.Conv2d, inputs: Tensor, gradient: Tensor) -> Iterator[BatchShare]:
    out, fan_in = gradient.shape[1], layer.weight[0].numel()
    rows = gradient.permute(0, 2, 3, 1).flatten(1, 2)  # samples, places, output channels
    patches = _patches(layer, inputs)  # samples, places, fan-in
    if 2 * rows.shape[1] * (out + fan_in) < out * fan_in:  # few places: the products between them are smaller
        products = torch.bmm(patches, patches.mT) * torch.bmm(rows, rows.mT)
        squared = products.sum((1, 2)).clamp(min=0)
        yield BatchShare(layer.weight, squared, lambda weights: _conv_gradient(layer, inputs, weights, gradient))
    else:
        share = _stored(layer.weight, torch.bmm(rows.mT, patches))
        yield BatchShare(layer.weight, share.squared, lambda weights: _as_kernel(layer, share.weighted(weights)))
    yield _stored(layer.bias, rows.sum(1))


def _patches(layer: nn.Conv2d, inputs: Tensor) -> Tensor:
    """(samples, places, height * width * channels of the kernel): the input under the kernel at every place."""
    (high, wide), (down, right), (apart, beside) = layer.kernel_size, layer.stride, layer.dilation
    vertical, horizontal = (int(pixels) for pixels in layer.padding)
    padded = functional.pad(inputs.permute(0, 2, 3, 1), (0, 0, horizontal, horizontal, vertical, vertical)).contiguous()
    samples, height, width, channels = padded.shape
    rows = (height - apart * (high - 1) - 1) // down + 1
    columns = (width - beside * (wide - 1) - 1) // right + 1
    first, step_down, step_right, step_channel = padded.stride()
    strides = (first, step_down * down, step_right * right, step_down * apart, step_right * beside, step_channel)
    seen = padded.as_strided((samples, rows, columns, high, wide, channels), strides)
    return seen.reshape(samples, rows * columns, high * wide * channels)


def _as_kernel(layer: nn.Conv2d, flat: Tensor) -> Tensor:
    """(outputs, height * width * inputs) in the order of a convolution's weight."""
    outputs, inputs, high, wide = layer.weight.shape
    return flat.view(outputs, high, wide, inputs).permute(0, 3, 1, 2)


def _conv_gradient(layer: nn.Conv2d, inputs: Tensor, weights: Tensor, gradient: Tensor) -> Tensor:
    scaled = weights.view(-1, 1, 1, 1) * gradient
    return conv2d_weight(inputs, layer.weight.shape, scaled, layer.stride, layer.padding, layer.dilation, layer.groups)


_RULES: dict[type[nn.Module], Callable[..., Iterator[BatchShare]]] = {
    nn.Conv2d: _conv,
    nn.GroupNorm: _group_norm,
    nn.Linear: _linear,
}
