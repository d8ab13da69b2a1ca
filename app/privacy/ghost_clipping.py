"""Ghost clipping (mixed, Bu et al. 2022): norms of every sample's gradient first, then one weighted sum.

One backward pass gives the gradient of every layer's output. From it and from the layer's input follow, layer by
layer, the norm of each sample's gradient and, once all norms are known, the sum of the clipped gradients. Per-sample
gradients are only formed where that is cheaper than products of inputs.

What is added up for one sample has at most the clipping norm, times 1.001, for all weights that a server may choose:

- Where gradients are stored, the norm is that of the very tensor that is added up.
- The gradient of a linear layer is an outer product, whose norm is a product of norms: nothing cancels.
- The norm of a convolution's gradient, sum_i r_i p_i^T over places i, comes from sum_ij (p_i . p_j)(r_i . r_j), whose
  terms may cancel. In floating point (unit roundoff u) an inner product of k terms is off by at most k u |p_i| |p_j|
  (Higham 2002, section 3.1), hence the sum by at most E = terms u (sum_i |p_i| |r_i|)^2. Where E might matter, it is
  added: see `_bounded`. The norm is then at least sqrt(terms u) sum_i |p_i| |r_i|, which also covers the rounding of
  the gradient itself, places u sum_i |p_i| |r_i|.
- A sample whose norm overflows counts as zero, and underflow matters below a norm of 1e-6 only (`clip_factors`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.grad import conv2d_weight

from app.common.errors import UserError
from app.privacy.clipping import check_rows, clip_factors, row_norms, without


@dataclass(frozen=True, eq=False)
class BatchShare:
    """Contribution of the samples of a batch to the gradient of one parameter."""

    parameter: Tensor | None  # the parameter; None for a bias that the layer does not have
    squared: Tensor  # (samples,) squared norm of every sample's gradient, or a little more; not finite on overflow
    weighted: Callable[[Tensor], Tensor]  # sum of the samples' gradients, given their weights (samples,)


class _Pass(NamedTuple):
    """One layer in one forward pass."""

    layer: nn.Module
    input: Tensor
    output: Tensor
    version: int
    statistics: tuple[Tensor, ...]  # of a group norm: mean and one over the standard deviation (samples, groups)


_Signal = tuple[nn.Module, tuple[Tensor, ...]]
"""A layer with its input, the gradient of its output, and its statistics."""


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
            features = inputs[0].detach()
            self._passes.append(_Pass(layer, features, output, output._version, _statistics(layer, features, output)))

    def clipped(self, loss: Tensor, samples: int, clip: float) -> list[Tensor]:
        """Sum of the samples' clipped gradients, by trained parameter.

        Args:
            loss: mean over the samples of the last forward pass, each of which influences its own term only.
            samples: how many there are.
            clip: largest Euclidean norm of one sample's gradient, over all parameters together.
        """
        passes, self._passes = self._passes, []
        _refuse_surprises(passes, samples)
        gradients = torch.autograd.grad(loss, [entry.output for entry in passes], allow_unused=True)
        with torch.no_grad():
            signals: list[_Signal] = [
                (entry.layer, (entry.input, gradient, *entry.statistics))
                for entry, gradient in zip(passes, gradients, strict=True)
                if gradient is not None
            ]
            shares, squared = _all_shares(signals)
            overflown = ~squared.isfinite()
            if overflown.any():
                signals = [(layer, tuple(without(overflown, each) for each in tensors)) for layer, tensors in signals]
                shares, squared = _all_shares(signals)
            # the loss is a mean, so a sample's own gradient is so many times larger
            weights = samples * clip_factors(samples * squared.sqrt(), clip)
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


def _refuse_surprises(passes: list[_Pass], samples: int) -> None:
    for entry in passes:
        check_rows(len(entry.input), samples)
    twice = len({entry.layer for entry in passes}) < len(passes)
    overwritten = any(entry.output._version != entry.version for entry in passes)
    if twice or overwritten:
        happened = "a layer was used twice in one step" if twice else "a layer's output was overwritten in place"
        raise UserError.of(
            f"ghost clipping: {happened}",
            "the norms of the samples' gradients would be wrong",
            "set --defenses.NAME.clipping hooks",
        )


def _all_shares(signals: list[_Signal]) -> tuple[list[BatchShare], Tensor]:
    """Contributions of all layers, given their inputs and gradients, and the samples' squared norms (samples,)."""
    shares = [share for signal in signals for share in _shares(*signal)]
    return shares, torch.stack([share.squared for share in shares]).sum(0)


def _shares(layer: nn.Module, tensors: tuple[Tensor, ...]) -> Iterator[BatchShare]:
    """Contributions of one layer, in the precision of its parameters (mixed precision rounds activations only)."""
    dtype = next(layer.parameters(recurse=False)).dtype
    for share in _RULES[type(layer)](layer, *(each.to(dtype) for each in tensors)):
        if share.parameter is not None and share.parameter.requires_grad:
            yield share


def _stored(parameter: Tensor | None, gradients: Tensor) -> BatchShare:
    """Per-sample gradients (samples, ...) of a small parameter, kept as they are."""
    flat = gradients.flatten(1)
    return BatchShare(parameter, row_norms(flat).square(), lambda weights: (weights @ flat).view(gradients.shape[1:]))


def _linear(layer: nn.Linear, inputs: Tensor, gradient: Tensor) -> Iterator[BatchShare]:
    if gradient.dim() > 2:  # positions of a sequence share the weight
        yield _stored(layer.weight, torch.einsum("n...i,n...j->nij", gradient, inputs))
        gradient = gradient.flatten(1, -2).sum(1)
    else:
        least = _least_square(gradient.dtype)
        squared = gradient.square().sum(1).clamp(min=least) * inputs.square().sum(1).clamp(min=least)
        yield BatchShare(layer.weight, squared, lambda weights: (weights[:, None] * gradient).T @ inputs)
    yield _stored(layer.bias, gradient)


def _statistics(layer: nn.Module, inputs: Tensor, output: Tensor) -> tuple[Tensor, ...]:
    """Statistics of a layer's forward pass; those that torch keeps for the backward pass, where it does."""
    if not isinstance(layer, nn.GroupNorm):
        return ()
    kept = [getattr(output.grad_fn, name, None) for name in ("_saved_result1", "_saved_result2")]
    if kept[0] is not None and kept[1] is not None:
        return kept[0], kept[1]
    variance, mean = torch.var_mean(inputs.reshape(len(inputs), layer.num_groups, -1), dim=2, correction=0)
    return mean, (variance + layer.eps).rsqrt()


def _group_norm(
    layer: nn.GroupNorm, inputs: Tensor, gradient: Tensor, mean: Tensor, scale: Tensor
) -> Iterator[BatchShare]:
    """A channel's gradient, a sum of g (x - mean) scale over places, from sums of g x and of g."""
    mean, scale = (each.repeat_interleave(layer.num_channels // layer.num_groups, dim=1) for each in (mean, scale))
    sums = gradient.flatten(2).sum(2)
    yield _stored(layer.weight, ((inputs * gradient).flatten(2).sum(2) - mean * sums) * scale)
    yield _stored(layer.bias, sums)


def _conv(layer: nn.Conv2d, inputs: Tensor, gradient: Tensor) -> Iterator[BatchShare]:
    out, fan_in = gradient.shape[1], layer.weight[0].numel()
    rows = gradient.permute(0, 2, 3, 1).flatten(1, 2)  # samples, places, output channels
    patches = _patches(layer, inputs)  # samples, places, fan-in
    if 2 * rows.shape[1] * (out + fan_in) < out * fan_in:  # few places: the products between them are smaller
        terms = fan_in + out + rows.shape[1]
        squared = _bounded(torch.bmm(patches, patches.mT), torch.bmm(rows, rows.mT), terms)
        yield BatchShare(layer.weight, squared, lambda weights: _conv_gradient(layer, inputs, weights, gradient))
    else:
        share = _stored(layer.weight, torch.bmm(rows.mT, patches))
        yield BatchShare(layer.weight, share.squared, lambda weights: _as_kernel(layer, share.weighted(weights)))
    yield _stored(layer.bias, rows.sum(1))


def _bounded(patches: Tensor, rows: Tensor, terms: int) -> Tensor:
    """Squared norms (samples,) of a convolution's gradients, no smaller than 0.999 times the true ones.

    Args:
        patches: (samples, places, places) inner products of the inputs at two places.
        rows: (samples, places, places) inner products of the gradients of the outputs at two places.
        terms: how many numbers are added up, in both inner products and in the sum over places.
    """
    squared = (patches * rows).sum((1, 2)).clamp(min=0)
    least = _least_square(squared.dtype)
    seen, sent = (each.diagonal(dim1=1, dim2=2).clamp(min=least) for each in (patches, rows))
    error = terms * torch.finfo(squared.dtype).eps / 2 * (seen * sent).sqrt().sum(1).square()
    return torch.where(error > 1e-3 * squared, squared + error, squared)


def _least_square(dtype: torch.dtype) -> float:
    """A square below which underflow may spoil the relative precision of a sum of squares."""
    limits = torch.finfo(dtype)
    return limits.tiny / limits.eps


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
