"""Gradient inversion by optimisation: images whose gradient points where the observed one does (Geiping et al.)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy, interpolate
from torch.nn.modules.dropout import _DropoutNd
from torch.optim import Adam
from torch.optim.lr_scheduler import MultiStepLR
from tqdm import tqdm

from app.attacks.reconstruction.inversion.label_inference import inferred_labels
from app.attacks.reconstruction.inversion.second_derivatives import smoothed_second_derivatives
from app.errors import Problem, UserError, raise_all
from app.models.base import DataShape
from app.models.layers import SeededDropout

DECAY = (3 / 8, 5 / 8, 7 / 8)
"""Shares of the steps after which the learning rate falls to a tenth, as in the published attack."""


@dataclass(frozen=True, eq=False)
class OptimisedImages:
    """Images that an optimisation ended with.

    Attributes:
        images: (count, channels, height, width) as the network sees them.
        labels: (count,) int64, the class each was made for.
        losses: (count,) what was left of the objective, the smaller the better; images that were sought together share
            one number.
    """

    images: Tensor
    labels: Tensor
    losses: Tensor


@dataclass(frozen=True, eq=False)
class Box:
    """Values that a pixel may take, as the network sees them.

    Attributes:
        low: (channels, 1, 1) smallest value of each channel.
        high: (channels, 1, 1) largest value of each channel.
    """

    low: Tensor
    high: Tensor

    @classmethod
    def of(cls, low: Tensor, high: Tensor, like: Tensor) -> Box:
        """A box from one bound per channel, on the device and in the type of `like`."""
        return cls(*(bound.to(like).view(-1, 1, 1) for bound in (low, high)))

    @torch.no_grad()
    def project_(self, images: Tensor) -> None:
        """Move every pixel, in place, to the nearest value it may take."""
        images.copy_(torch.minimum(torch.maximum(images, self.low), self.high))


class GradientMatching:
    """Seeks a batch whose gradient has the direction of the observed one, preferring smooth images.

    The distance is 1 less the cosine of the two gradients over the coordinates that were read, plus `tv` times the mean
    absolute difference of neighbouring pixels. Only the direction counts, so that the learning rate need not be known.

    Two things are added for convolutional networks. Every step also moves blocks of pixels together, since the layout
    of an image is otherwise hardly found. And the derivative by the pixels sees that a ReLU may open or shut and that a
    max-pool may choose another pixel, which the true second derivative, being 0 almost everywhere, does not; the
    distance itself stays exact.
    """

    def __init__(
        self,
        steps: int = 1000,
        restarts: int = 1,
        lr: float = 0.1,
        tv: float = 0.02,
        labels: Literal["inferred", "known"] = "inferred",
        signed: bool = True,
        scales: int = 3,
        blur: float = 0.3,
    ) -> None:
        """Settings of the search.

        Args:
            steps: optimisation steps per restart, at least 1.
            restarts: searches from different noise, at least 1; the one with the smallest distance wins.
            lr: step of Adam in units of normalised pixels, above 0; a tenth after 3/8, 5/8 and 7/8 of the steps.
            tv: weight of the total variation, 0 or more; falls as the learning rate does.
            labels: whether labels are read from the gradient, or given to the attacker.
            signed: follow the signs of the derivatives by the pixels instead of their values.
            scales: halvings of the image whose pixels are moved as well, 0 or more; 0 moves single pixels alone.
            blur: width of the opening of a ReLU and of the choice of a max-pool in the derivative by the pixels, as a
                share of the root mean square of what comes in, 0 or more; 0 takes the true derivative.
        """
        self.steps, self.restarts, self.lr, self.tv = steps, restarts, lr, tv
        self.labels, self.signed, self.scales, self.blur = labels, signed, scales, blur
        raise_all(search_problems(steps, restarts, lr, tv=tv, scales=scales, blur=blur))

    def images(
        self,
        net: nn.Module,
        gradient: Tensor,
        known: Tensor | None,
        shape: DataShape,
        count: int,
        labels: Tensor | None,
        low: Tensor,
        high: Tensor,
        generator: torch.Generator,
        progress: bool = False,
    ) -> OptimisedImages:
        """The batch that was found; its order means nothing.

        Args:
            net: network with the values it had when the batch was put through it, on any device. It is run in training
                mode with the batch statistics of the sought images and without dropout; it is left as it was.
            gradient: (parameters,) of the mean cross-entropy, flat over `net.parameters()`, up to a positive factor.
            known: (parameters,) bool, coordinates that the attacker could read, None for all; others are never looked
                at.
            shape: size of an image and number of classes.
            count: images in the batch, at least 1.
            labels: (count,) their labels, needed where labels are known.
            low: (channels,) smallest value of a pixel as the network sees it.
            high: (channels,) largest value.
            generator: of the noise that restarts begin with; nothing else is drawn.
            progress: show a bar.
        """
        like = next(net.parameters())
        readable = _readable(gradient.to(like), known)
        sought = self._labels(net, readable, count, labels, shape.classes)
        target = _Target(net, readable, known, sought)
        box, size = Box.of(low, high, like), (count, shape.channels, shape.height, shape.width)
        best: tuple[float, Tensor] | None = None
        bar = search_bar("gradient matching", self.steps * self.restarts, progress)
        with as_clients_train(net), smoothed_second_derivatives(net, self.blur), bar:
            for _ in range(self.restarts):
                images = noise(size, like, generator)
                distance = self._search(target, images, box, bar)
                if best is None or distance < best[0]:
                    best = (distance, images)
        assert best is not None
        return OptimisedImages(best[1], sought, torch.full((count,), best[0], dtype=like.dtype, device=like.device))

    def _labels(self, net: nn.Module, gradient: Tensor, count: int, labels: Tensor | None, classes: int) -> Tensor:
        if self.labels == "inferred":
            return inferred_labels(net, gradient, count, classes)
        if labels is None or len(labels) != count:
            cause = f"labels are said to be known, but {count} images come without {count} labels"
            raise UserError.of(cause, "no gradient can be computed", "give the labels, or let them be inferred")
        return labels.to(gradient.device)

    def _search(self, target: _Target, images: Tensor, box: Box, bar: tqdm) -> float:
        """Improve the images in place; returns their distance."""
        box.project_(images)
        images.requires_grad_()
        moves = _Moves(images, self.scales)
        optimizer = Adam(moves.parts, lr=self.lr)
        schedule = MultiStepLR(optimizer, [max(1, int(share * self.steps)) for share in DECAY])
        for _ in range(self.steps):
            tv = self.tv * schedule.get_last_lr()[0] / self.lr
            objective = target.distance(images) + tv * total_variation(images).mean()
            (slope,) = torch.autograd.grad(objective, images)
            moves.point(slope, self.signed)
            optimizer.step()
            schedule.step()
            moves.apply()
            box.project_(images)
            bar.update()
        distance = float(target.distance(images).detach())
        images.requires_grad_(False).grad = None
        return distance


class _Moves:
    """Images and coarser grids over them, whose values are added to the images after every step."""

    def __init__(self, images: Tensor, scales: int) -> None:
        self._images = images
        sides = [[side >> scale for side in images.shape[2:]] for scale in range(1, scales + 1)]
        self._grids = [images.new_zeros((*images.shape[:2], *side), requires_grad=True) for side in sides if all(side)]
        self.parts = [images, *self._grids]

    def point(self, slope: Tensor, signed: bool) -> None:
        """Set the gradient of the images and of every grid, from that of the images."""
        slopes = [slope]
        for grid in self._grids:
            slopes += torch.autograd.grad(self._spread(grid), grid, slope)
        for part, value in zip(self.parts, slopes, strict=True):
            part.grad = value.sign() if signed else value

    @torch.no_grad()
    def apply(self) -> None:
        """Move what the grids have gathered to the images."""
        for grid in self._grids:
            self._images += self._spread(grid)
            grid.zero_()

    def _spread(self, grid: Tensor) -> Tensor:
        return interpolate(grid, self._images.shape[2:], mode="bilinear", align_corners=False)


class _Target:
    """The observed gradient, and how far that of other images is from it."""

    def __init__(self, net: nn.Module, gradient: Tensor, known: Tensor | None, labels: Tensor) -> None:
        self._net, self._labels = net, labels
        self._parameters = {name: value.detach().clone().requires_grad_() for name, value in net.named_parameters()}
        # Running statistics are written in training mode: these copies take the writing.
        self._buffers = {name: value.clone() for name, value in net.named_buffers()}
        self._coordinates = (
            None if known is None or bool(known.all()) else known.to(gradient.device).nonzero().squeeze(1)
        )
        self._wanted = self._direction(gradient)

    def distance(self, images: Tensor) -> Tensor:
        """1 less the cosine, 0 to 2; 1 where one of the gradients vanishes."""
        logits = self._run(images)
        loss = cross_entropy(logits, self._labels)
        parts = torch.autograd.grad(
            loss, list(self._parameters.values()), create_graph=True, allow_unused=True, materialize_grads=True
        )
        return 1 - self._direction(torch.cat([part.reshape(-1) for part in parts])) @ self._wanted

    def _direction(self, gradient: Tensor) -> Tensor:
        seen = gradient if self._coordinates is None else gradient[self._coordinates]
        return seen / seen.norm().clamp(min=torch.finfo(seen.dtype).tiny)

    def _run(self, images: Tensor) -> Tensor:
        try:
            return functional_call(self._net, {**self._parameters, **self._buffers}, (images,))
        except ValueError as error:  # torch refuses a single value per channel: one image whose map is a single pixel
            cause = f"a batch of {len(images)} images has no batch statistics"
            remedy = "attack batches of 2 or more, or set --model.net.norm group"
            raise UserError.of(cause, "no client can have trained on it", remedy) from error


def _readable(gradient: Tensor, known: Tensor | None) -> Tensor:
    """The gradient with 0 where it could not be read."""
    seen = gradient if known is None else torch.where(known.to(gradient.device), gradient, 0)
    if not bool(torch.isfinite(seen).all()):
        raise UserError.of("the gradient is not finite", "nothing can be matched with it", "attack an earlier round")
    return seen


@contextmanager
def as_clients_train(net: nn.Module) -> Iterator[None]:
    """Within it the network is in training mode, apart from dropout; afterwards every layer is as it was."""
    modes = {layer: layer.training for layer in net.modules()}
    net.train()
    for layer in modes:
        if isinstance(layer, (SeededDropout, _DropoutNd)):
            layer.eval()
    try:
        yield
    finally:
        for layer, training in modes.items():
            layer.training = training


def total_variation(images: Tensor) -> Tensor:
    """Mean absolute difference of neighbouring pixels along rows, plus that along columns, of every image (count,)."""
    pairs = (images.diff(dim=-1).abs().flatten(1), images.diff(dim=-2).abs().flatten(1))
    return sum((pair.sum(dim=1) / max(1, pair.shape[1]) for pair in pairs), start=images.new_zeros(len(images)))


def noise(size: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
    """Standard normal numbers, drawn where the generator is, so that devices and types agree."""
    return torch.randn(size, generator=generator, device=generator.device, dtype=torch.float32).to(like)


def search_bar(name: str, steps: int, shown: bool) -> tqdm:
    """A bar over the steps of a search, on terminals, after a second."""
    return tqdm(total=steps, desc=name, delay=1, leave=False, disable=None if shown else True)


def search_problems(steps: int, restarts: int, lr: float, **weights: float) -> Iterator[Problem]:
    """What is wrong with the settings of a search."""
    for name, value in (("steps", steps), ("restarts", restarts)):
        if value < 1:
            yield Problem(f"{name} is {value}", "nothing would be sought", f"set {name} to 1 or more")
    if lr <= 0:
        yield Problem(f"lr is {lr:g}", "no step would lead anywhere", "set lr above 0, for example 0.1")
    for name, weight in weights.items():
        if weight < 0:
            yield Problem(f"{name} is {weight:g}", "the worst images would be preferred", f"set {name} to 0 or more")
