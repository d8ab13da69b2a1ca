"""DP-SGD steps of one network: every sample's gradient is clipped, noise is added to their sum (through Opacus)."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from opacus.grad_sample import GradSampleModule, GradSampleModuleExpandedWeights, register_grad_sampler
from opacus.optimizers import DPOptimizer
from opacus.optimizers.optimizer_fast_gradient_clipping import DPOptimizerFastGradientClipping
from opacus.validators import ModuleValidator
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from app.models.factor_layers import FactorConv2d, FactorLayer, FactorLinear, per_sample_gradients
from app.privacy.clipping import check_rows, clipped_sums
from app.privacy.ghost_clipping import GhostClipping, is_trained, supports_ghost
from app.privacy.noise import NoiseStream

Batch = tuple[Tensor, Tensor]
ClippingMethod = Literal["ghost", "hooks", "ew"]
"""How gradients of single samples are found: by their norms where that is cheaper, by hooks, or by expanded weights."""

UNBOUNDED = 1e30
"""Stands for an infinite clipping norm: Opacus multiplies it by a noise of 0."""

_EXPANDABLE = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.GroupNorm, nn.LayerNorm, nn.InstanceNorm2d, nn.Embedding)

# the first layer's input is an image, which needs no gradient
warnings.filterwarnings("ignore", "Full backward hook is firing when gradients are computed with respect to module")


@dataclass(frozen=True)
class Mechanism:
    """Clipping and noise of a step."""

    clip: float  # largest Euclidean norm of one sample's gradient; infinity only without noise
    noise: float  # standard deviation of the noise on the sum of the clipped gradients, over `clip`
    # how per-sample gradients are computed; all give the same step, but ghost clips more where its norms cancel
    method: ClippingMethod = "ghost"
    # most samples that pass the network at once, None for whole batches; bounds memory
    physical_batch: int | None = None
    expected_batch: float | None = None  # divisor of the noisy sum; None for the length of each batch


class PrivateSteps:
    """DP-SGD steps of one network with one (fresh) optimiser, until it is closed.

    None of the network's trained layers may be among `unsupported_layers`.

    Attributes:
        net: the module that the loss must call instead of the network.
        plain: the network itself.
    """

    def __init__(self, net: nn.Module, optimizer: Optimizer, mechanism: Mechanism, noise: NoiseStream) -> None:
        self._mechanism = mechanism
        self._clip = UNBOUNDED if math.isinf(mechanism.clip) else mechanism.clip
        self._method = _METHODS[mechanism.method](net, self._clip)
        self.net, self.plain = self._method.net, net
        self._optimizer = _StreamNoise(
            optimizer,
            noise_multiplier=mechanism.noise,
            max_grad_norm=self._clip,
            expected_batch_size=mechanism.expected_batch or 1.0,
            generator=noise,
        )
        self._optimizer.attach_step_hook(self._finish_gradient)
        self._optimizer.zero_grad(set_to_none=True)
        self._penalty: Callable[[], Tensor | None] = lambda: None
        self._device = next(net.parameters()).device

    def step(
        self,
        batch: Batch,
        loss_of: Callable[[Batch], Tensor],
        penalty: Callable[[], Tensor | None] = lambda: None,
    ) -> Tensor:
        """One step of the optimiser.

        Args:
            batch: images and labels; an empty batch moves the network by noise alone.
            loss_of: mean loss over the samples of a part of the batch, by way of `net`; each sample must influence its
                own term only.
            penalty: a term of the loss that does not depend on data: neither clipped nor noised.

        Returns:
            Mean loss over the samples, detached; an empty tensor for an empty batch.
        """
        samples, self._penalty = len(batch[1]), penalty
        if self._mechanism.expected_batch is None:
            self._optimizer.expected_batch_size = max(1, samples)
        if samples == 0:
            for parameter in self._optimizer.params:
                parameter.grad = torch.zeros_like(parameter)
            self._move(last=True)
            return torch.zeros(0, device=self._device)
        losses = [self._add(part, loss_of, last) for part, last in self._parts(batch)]
        return torch.stack(losses).sum() / samples

    def close(self) -> None:
        parameters = self._optimizer.params
        self._method.close()
        self._optimizer.original_optimizer.zero_grad(set_to_none=True)
        for parameter in parameters:
            for name in ("grad_sample", "summed_grad", "_forward_counter", "_current_grad_sample", "_norm_sample"):
                parameter.__dict__.pop(name, None)

    def _parts(self, batch: Batch) -> Iterator[tuple[Batch, bool]]:
        images, labels = batch
        size = self._mechanism.physical_batch or len(labels)
        pieces = list(zip(images.split(size), labels.split(size), strict=True))
        yield from ((piece, number == len(pieces) - 1) for number, piece in enumerate(pieces))

    def _add(self, part: Batch, loss_of: Callable[[Batch], Tensor], last: bool) -> Tensor:
        """Add the clipped gradients of a part to the sum; returns the sum of its losses."""
        loss = loss_of(part)
        with _full_precision(self._device):
            gradients = self._method.clipped(loss, len(part[1]), self._optimizer.params)
            for parameter, gradient in zip(self._optimizer.params, gradients, strict=True):
                parameter.grad = gradient
        self._move(last)
        return loss.detach() * len(part[1])

    def _move(self, last: bool) -> None:
        self._optimizer.signal_skip_step(not last)
        with _full_precision(self._device):
            self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def _finish_gradient(self, optimizer: DPOptimizer) -> None:
        """After clipping and noise: add the gradient of the penalty."""
        penalty = self._penalty()
        for parameter in optimizer.params:
            if parameter.grad.stride() != parameter.stride():  # fused optimisers read memory in the parameter's order
                parameter.grad = torch.empty_like(parameter).copy_(parameter.grad)
        if penalty is not None:
            gradients = torch.autograd.grad(penalty, optimizer.params, allow_unused=True)
            for parameter, gradient in zip(optimizer.params, gradients, strict=True):
                if gradient is not None:
                    parameter.grad.add_(gradient)


class _StreamNoise(DPOptimizerFastGradientClipping):
    """Opacus's optimiser with noise of a stream (its `generator`) instead of one of torch's generators."""

    def accumulate(self) -> None:
        """Opacus copies every gradient; these are ours alone, and are kept."""
        for parameter in self.params:
            if parameter.summed_grad is None:
                parameter.summed_grad = parameter.grad
            else:
                parameter.summed_grad.add_(parameter.grad)

    def add_noise(self) -> None:
        sums = [parameter.summed_grad for parameter in self.params]
        like = sums[0].new_empty(sum(each.numel() for each in sums))
        noise = self.generator.normal_like(like, self.noise_multiplier * self.max_grad_norm)
        for parameter, total, part in zip(self.params, sums, noise.split([each.numel() for each in sums]), strict=True):
            parameter.grad = (total + part.view(total.shape)).view_as(parameter)


class _ClippingMethod(ABC):
    """One way to compute clipped per-sample gradients."""

    def __init__(self, net: nn.Module, clip: float) -> None:
        self.net, self._clip = net, clip

    def clipped(self, loss: Tensor, samples: int, parameters: list[nn.Parameter]) -> list[Tensor]:
        """Sum over the samples of the clipped gradients of each parameter."""
        loss.backward()
        gradients = [_taken(parameter, samples) for parameter in parameters]
        return clipped_sums(gradients, self._clip)

    @abstractmethod
    def close(self) -> None:
        """Detach from the network."""


def _taken(parameter: nn.Parameter, samples: int) -> Tensor:
    """Per-sample gradients (samples, ...) that the backward pass has left; zeros where the loss needs no such layer."""
    gradient, parameter.grad_sample = getattr(parameter, "grad_sample", None), None  # type: ignore[attr-defined]
    if gradient is None:
        return parameter.new_zeros((samples, *parameter.shape))
    check_rows(len(gradient), samples)
    return gradient.to(parameter.dtype)


class _Ghost(_ClippingMethod):
    """Sums of clipped gradients without those of single samples, where these cost more."""

    def __init__(self, net: nn.Module, clip: float) -> None:
        super().__init__(net, clip)
        self._ghost = GhostClipping(net)

    def clipped(self, loss: Tensor, samples: int, parameters: list[nn.Parameter]) -> list[Tensor]:
        return self._ghost.clipped(loss, samples, self._clip)

    def close(self) -> None:
        self._ghost.close()


class _Hooks(_ClippingMethod):
    """Gradients of single samples by Opacus's hooks: any layer that treats samples separately."""

    def __init__(self, net: nn.Module, clip: float) -> None:
        super().__init__(net, clip)
        self._wrapped = _ContiguousHooks(net, strict=False)  # `unsupported_layers` is stricter

    def close(self) -> None:
        self._wrapped.to_standard_module()
        for layer in self.net.modules():
            for name in ("activations", "max_batch_len"):
                layer.__dict__.pop(name, None)


class _ContiguousHooks(GradSampleModule):
    """Opacus unfolds images as if channels came first in memory, and would add up bfloat16 in mixed precision."""

    def rearrange_grad_samples(self, *, module: nn.Module, **settings: Any) -> tuple[list[Tensor], Tensor]:
        inputs, gradient = super().rearrange_grad_samples(module=module, **settings)
        dtype = next(module.parameters()).dtype
        cast = [each.to(dtype) if each.is_floating_point() else each for each in inputs]
        # a map of one pixel counts as contiguous in either order, so only its strides tell how it will be padded
        return [each.reshape(-1).view(each.shape) for each in cast], gradient.to(dtype).contiguous()


class _ContiguousWeights(GradSampleModuleExpandedWeights):
    """With channels last in memory, torch cannot view the gradients of a small batch as it wants to."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images.contiguous())


@register_grad_sampler([FactorLinear, FactorConv2d])
def _factor_samples(layer: FactorLayer, inputs: list[Tensor], gradient: Tensor) -> dict[nn.Parameter, Tensor]:
    return per_sample_gradients(layer, inputs[0], gradient)


class _ExpandedWeights(_ClippingMethod):
    """Gradients of single samples by torch's expanded weights."""

    def __init__(self, net: nn.Module, clip: float) -> None:
        super().__init__(net, clip)
        self._plain = net
        self._last = any(p.dim() == 4 and not p.is_contiguous() for p in net.parameters())
        self._wrapped = _ContiguousWeights(net.to(memory_format=torch.contiguous_format))
        self.net = self._wrapped.train()

    def close(self) -> None:
        self._wrapped.to_standard_module()
        if self._last:
            self._plain.to(memory_format=torch.channels_last)


_METHODS: dict[ClippingMethod, type[_ClippingMethod]] = {"ghost": _Ghost, "hooks": _Hooks, "ew": _ExpandedWeights}


def unsupported_layers(net: nn.Module, method: ClippingMethod) -> list[str]:
    """Names and types of layers without per-sample gradients; batch norm has a compatibility rule of its own."""
    layers = [(name, layer) for name, layer in net.named_modules() if not isinstance(layer, _BatchNorm)]
    tied = _sharing(net) if method == "ghost" else set()  # norms of the layers apart are not that of their sum
    return [
        f"{name or 'the network'} ({type(layer).__name__}{', which shares a parameter' if layer in tied else ''})"
        for name, layer in layers
        if layer in tied or _refused(layer, method)
    ]


def _sharing(net: nn.Module) -> set[nn.Module]:
    """Layers that share a trained parameter with another layer."""
    owners: dict[nn.Parameter, list[nn.Module]] = {}
    for layer in net.modules():
        for parameter in layer.parameters(recurse=False):
            owners.setdefault(parameter, []).append(layer)
    shared = [layers for parameter, layers in owners.items() if parameter.requires_grad and len(layers) > 1]
    return {layer for layers in shared for layer in layers}


def _refused(layer: nn.Module, method: ClippingMethod) -> bool:
    kept = layer.state_dict(keep_vars=True)
    if any(buffer.is_floating_point() and name in kept for name, buffer in layer.named_buffers(recurse=False)):
        return True  # statistics of the data would be sent without noise
    if not is_trained(layer):
        return False
    check = ModuleValidator.VALIDATORS.get(type(layer))
    known = {"ghost": supports_ghost(layer), "hooks": True, "ew": type(layer) in _EXPANDABLE}
    return bool(check is not None and check(layer)) or not known[method]


@contextmanager
def _full_precision(device: torch.device) -> Iterator[None]:
    """Norms and sums are rounded neither to bfloat16 nor to TF32: the bound on a sample's influence would not hold."""
    cudnn, rounds = torch.backends.cudnn, torch.backends.cudnn.allow_tf32
    on_cuda = device.type == "cuda"  # elsewhere clients train in threads, which share the setting
    try:
        cudnn.allow_tf32 = rounds and not on_cuda
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        cudnn.allow_tf32 = rounds
