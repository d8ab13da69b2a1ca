"""Gradient inversion by optimisation of the cosine distance of gradients (Geiping et al. 2020)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import itemgetter
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy, interpolate
from torch.optim import Adam
from torch.optim.lr_scheduler import MultiStepLR

from app.attacks.reconstruction.inversion.label_inference import inferred_labels
from app.attacks.reconstruction.inversion.local_steps import LocalSteps, Tensors
from app.attacks.reconstruction.inversion.second_derivatives import smoothed_second_derivatives
from app.common.errors import UserError, raise_all
from app.common.progress import Step
from app.common.ranges import Count, NonNegative, Positive, Whole, range_problems
from app.models.base import DataShape
from app.privacy.model_checks import without_dropout

Bounds = tuple[Tensor, Tensor]
"""(channels,) normalised values of a black and of a white pixel."""


@dataclass(frozen=True, eq=False)
class OptimisedImages:
    """Result of an optimisation."""

    images: Tensor  # (count, channels, height, width) normalised
    labels: Tensor  # (count,) int64, the class of each
    losses: Tensor  # (count,) final objective; images that were optimised together share one number


@dataclass(frozen=True)
class GradientMatching:
    """Optimises a batch of images until its gradient has the direction of the observed one.

    The objective is 1 - cosine of the two gradients over the known entries, plus `tv` x total variation. Only the
    direction counts, so that the learning rate need not be known.

    Two additions for convolutional networks: every step also moves blocks of pixels together (coarse-to-fine), and
    ReLU and max-pool have smoothed second derivatives. The objective itself stays exact.

    Attributes:
        steps: optimisation steps per restart, at least 1.
        restarts: optimisations from different noise, at least 1; the one with the smallest distance wins.
        lr: learning rate of Adam in units of normalised pixels, above 0; a tenth after 3/8, 5/8 and 7/8 of the steps.
        tv: weight of the total variation, 0 or more; falls as the learning rate does.
        labels: whether labels are inferred from the gradient, or known to the attacker.
        signed: use the signs of the gradient by the pixels instead of its values.
        scales: number of halvings of the image whose pixels are moved as well, 0 or more.
        blur: width of the smoothing of second derivatives, as a share of the root mean square of a layer's input, 0 or
            more; 0 takes the true derivative.
    """

    steps: Count = 1000
    restarts: Count = 1
    lr: Positive = 0.1
    tv: NonNegative = 0.02
    labels: Literal["inferred", "known"] = "inferred"
    signed: bool = True
    scales: Whole = 3
    blur: NonNegative = 0.3

    def __post_init__(self) -> None:
        raise_all(range_problems(self))

    def images(
        self,
        net: nn.Module,
        gradient: Tensor,
        known: Tensor | None,
        shape: DataShape,
        count: int,
        labels: Tensor | None,
        bounds: Bounds,
        generator: torch.Generator,
        local_steps: LocalSteps | None = None,
    ) -> OptimisedImages:
        """The reconstructed batch, in no particular order.

        Args:
            net: network with the parameters that the batch was put through, on any device. It is run in training mode,
                with batch statistics and without dropout, and left as it was.
            gradient: (parameters,) of the mean cross-entropy, flat over `net.parameters()`, up to a positive factor.
            known: (parameters,) bool, entries that the attacker knows, None for all; the others are not used.
            shape: size of an image and number of classes.
            count: images in the batch, at least 1.
            labels: (count,) their labels, needed where labels are known.
            bounds: normalised values of a black and of a white pixel.
            generator: generator of the noise that restarts begin with.
            local_steps: steps that the candidates are trained through, whose change is matched; None, or a single step,
                for the gradient of the whole batch.
        """
        like = next(net.parameters())
        observed = gradient.to(like) if known is None else torch.where(known.to(like.device), gradient.to(like), 0)
        if not bool(torch.isfinite(observed).all()):
            cause = "the gradient is not finite"
            raise UserError.of(cause, "nothing can be matched with it", "attack an earlier round")
        classes = self._labels(net, observed, count, labels, shape.classes)
        several = local_steps if local_steps is not None and len(local_steps.batches) > 1 else None
        target = _Target(net, observed, known, classes, several)
        size, bounds = (count, shape.channels, shape.height, shape.width), per_pixel(bounds, like)
        bar = search_bar("gradient matching", self.steps * self.restarts)
        with kept_modes(net), smoothed_second_derivatives(without_dropout(net), self.blur), bar:
            starts = (noise(size, like, generator) for _ in range(self.restarts))
            searches = (self._search(target, images, bounds, bar) for images in starts)
            distance, images = min(searches, key=itemgetter(0))
        return OptimisedImages(images, classes, like.new_full((count,), distance))

    def _labels(self, net: nn.Module, gradient: Tensor, count: int, labels: Tensor | None, classes: int) -> Tensor:
        if self.labels == "inferred":
            return inferred_labels(net, gradient, count, classes)
        if labels is None or len(labels) != count:
            cause = f"labels are said to be known, but not given for all images ({count})"
            raise UserError.of(cause, "no gradient can be computed", "give the labels, or let them be inferred")
        return labels.to(gradient.device)

    def _search(self, target: _Target, images: Tensor, bounds: Bounds, bar: Step) -> tuple[float, Tensor]:
        """Optimise the images in place; returns their distance, and them."""
        images.clamp_(*bounds).requires_grad_()
        pyramid = _Pyramid(images, self.scales, bounds)
        optimizer = Adam(pyramid.parts, lr=self.lr)
        schedule = MultiStepLR(optimizer, [max(1, int(share * self.steps)) for share in (3 / 8, 5 / 8, 7 / 8)])
        for _ in range(self.steps):
            tv = self.tv * schedule.get_last_lr()[0] / self.lr
            objective = target.distance(images) + tv * total_variation(images).mean()
            (slope,) = torch.autograd.grad(objective, images)
            pyramid.set_gradients(slope, self.signed)
            optimizer.step()
            schedule.step()
            pyramid.apply()
            bar.update()
        distance = float(target.distance(images).detach())
        images.requires_grad_(False).grad = None
        return distance, images


class _Pyramid:
    """Images and coarser grids over them, whose values are interpolated and added to the images after every step."""

    def __init__(self, images: Tensor, scales: int, bounds: Bounds) -> None:
        self._images, self._bounds = images, bounds
        sides = [[side >> scale for side in images.shape[2:]] for scale in range(1, scales + 1)]
        self._grids = [images.new_zeros((*images.shape[:2], *side), requires_grad=True) for side in sides if all(side)]
        self.parts = [images, *self._grids]

    def set_gradients(self, slope: Tensor, signed: bool) -> None:
        """Set the gradients of the images and of the grids, from that of the images."""
        slopes = [slope]
        for grid in self._grids:
            slopes += torch.autograd.grad(self._upsampled(grid), grid, slope)
        for part, value in zip(self.parts, slopes, strict=True):
            part.grad = value.sign() if signed else value

    @torch.no_grad()
    def apply(self) -> None:
        """Add the grids to the images, which stay within their bounds, and reset the grids."""
        for grid in self._grids:
            self._images += self._upsampled(grid)
            grid.zero_()
        self._images.clamp_(*self._bounds)

    def _upsampled(self, grid: Tensor) -> Tensor:
        return interpolate(grid, self._images.shape[2:], mode="bilinear", align_corners=False)


class _Target:
    """The observed gradient, or change over several steps, and the distance of other ones from it."""

    def __init__(
        self, net: nn.Module, gradient: Tensor, known: Tensor | None, labels: Tensor, steps: LocalSteps | None = None
    ) -> None:
        self._net, self._labels, self._steps = net, labels, steps
        self._parameters = {name: value.detach().clone().requires_grad_() for name, value in net.named_parameters()}
        # Training mode overwrites running statistics: these copies keep those of the network as they are.
        self._buffers = {name: value.clone() for name, value in net.named_buffers()}
        self._coordinates = (
            slice(None) if known is None or bool(known.all()) else known.to(gradient.device).nonzero().squeeze(1)
        )
        self._observed = self._direction(gradient)

    def distance(self, images: Tensor) -> Tensor:
        """1 - cosine, 0 to 2; 1 where one of the gradients is 0."""
        start = tuple(self._parameters.values())
        if self._steps is None:
            parts = self._gradient(start, images, self._labels)
        else:
            parts = self._steps.change(start, lambda now, at: self._gradient(now, images[at], self._labels[at]))
        return 1 - self._direction(torch.cat([part.reshape(-1) for part in parts])) @ self._observed

    def _gradient(self, parameters: Tensors, images: Tensor, labels: Tensor) -> Tensors:
        loss = cross_entropy(self._run(parameters, images), labels)
        return torch.autograd.grad(loss, parameters, create_graph=True, allow_unused=True, materialize_grads=True)

    def _direction(self, gradient: Tensor) -> Tensor:
        known = gradient[self._coordinates]
        return known / known.norm().clamp(min=torch.finfo(known.dtype).tiny)

    def _run(self, parameters: Tensors, images: Tensor) -> Tensor:
        values = dict(zip(self._parameters, parameters, strict=True))
        try:
            return functional_call(self._net, {**values, **self._buffers}, (images,))
        except ValueError as error:  # torch refuses batch statistics of a single value per channel
            cause = f"a batch of {len(images)} images has no batch statistics"
            remedy = "attack batches of 2 or more, or set --model.net.norm group"
            raise UserError.of(cause, "no client can have trained on it", remedy) from error


@contextmanager
def kept_modes(net: nn.Module) -> Iterator[None]:
    """Context after which every layer is in training or evaluation mode again, as it was before."""
    modes = {layer: layer.training for layer in net.modules()}
    try:
        yield
    finally:
        for layer, training in modes.items():
            layer.training = training


def total_variation(images: Tensor) -> Tensor:
    """(count,) mean absolute difference of neighbouring pixels along rows, plus that along columns."""
    pairs = (images.diff(dim=-1).abs().flatten(1), images.diff(dim=-2).abs().flatten(1))
    return sum((pair.sum(dim=1) / max(1, pair.shape[1]) for pair in pairs), start=images.new_zeros(len(images)))


def noise(size: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
    """Normal noise, drawn in float32 on the generator's device, so that it is the same for all devices and types."""
    return torch.randn(size, generator=generator, device=generator.device, dtype=torch.float32).to(like)


def per_pixel(bounds: Bounds, like: Tensor) -> Bounds:
    """The bounds as (channels, 1, 1), on the device and in the type of `like`."""
    low, high = (bound.to(like).view(-1, 1, 1) for bound in bounds)
    return low, high


def search_bar(name: str, steps: int) -> Step:
    """Progress over the steps of an optimisation."""
    return Step(name, steps, "steps")
