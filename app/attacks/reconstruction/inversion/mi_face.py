"""Model inversion by optimisation: images that a released model classifies with confidence (MI-Face)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD

from app.attacks.reconstruction.inversion.gradient_matching import (
    Bounds,
    OptimisedImages,
    kept_modes,
    noise,
    per_pixel,
    search_bar,
    total_variation,
)
from app.common.errors import UserError, raise_all
from app.common.progress import Step
from app.common.ranges import Count, Decay, NonNegative, Positive, range_problems
from app.models.base import DataShape

Prior = Literal["black", "mean", "noise"]
"""Starting point: black images, the mean of the attacker's own images, or noise."""

JITTER = 0.1
"""Standard deviation, in normalised pixels, of the noise added to the starting point from the second restart on."""


@dataclass(frozen=True)
class MIFace:
    """Optimises, for every class, an image that the model classifies with confidence (Fredrikson et al. 2015).

    It minimises the cross-entropy of the class plus `l2` x squared norm plus `tv` x total variation of the image. The
    result is typical of the class: leakage is only its similarity to training images beyond other images of the class.

    Attributes:
        steps: gradient steps per restart, at least 1.
        restarts: optimisations, at least 1, of which the best counts.
        lr: step size in units of normalised pixels, above 0.
        momentum: momentum of SGD, at least 0 and below 1.
        l2: weight of the sum of the squared normalised pixels, 0 or more.
        tv: weight of the total variation, 0 or more.
        prior: starting point; from the second restart on with noise.
    """

    together: ClassVar[bool] = False
    """Whether the images of a batch depend on each other, so that one restart must win for all of them."""

    steps: Count = 500
    restarts: Count = 1
    lr: Positive = 0.1
    momentum: Decay = 0.9
    l2: NonNegative = 1e-2
    tv: NonNegative = 1e-2
    prior: Prior = "black"

    def __post_init__(self) -> None:
        raise_all(range_problems(self))

    def obstacle(self, net: nn.Module) -> str | None:
        """Why the attack cannot be run on this network; None where it can."""
        return None

    def penalty(self, net: nn.Module, images: Tensor) -> Tensor:
        """A further term of the objective, one number for all images."""
        return images.new_zeros(())

    def images(
        self,
        net: nn.Module,
        labels: Tensor,
        shape: DataShape,
        bounds: Bounds,
        start: Tensor | None,
        generator: torch.Generator,
    ) -> OptimisedImages:
        """One image for every label.

        Args:
            net: the attacked model on any device; run in evaluation mode and left as it was.
            labels: (count,) classes, which may repeat.
            shape: size of an image.
            bounds: normalised values of a black and of a white pixel.
            start: (channels, height, width) or (count, channels, height, width) normalised mean of the attacker's own
                images; needed for the prior "mean" only.
            generator: generator of the noise.
        """
        like = next(net.parameters())
        targets, bounds = labels.to(like.device), per_pixel(bounds, like)
        size = (len(labels), shape.channels, shape.height, shape.width)
        with _frozen(net), search_bar("model inversion", self.steps * self.restarts) as bar:
            starts = (self._start(size, bounds, start, restart, generator) for restart in range(self.restarts))
            return reduce(self._better, (self._search(net, images, targets, bounds, bar) for images in starts))

    def _start(
        self, size: tuple[int, ...], bounds: Bounds, mean: Tensor | None, restart: int, generator: torch.Generator
    ) -> Tensor:
        like = bounds[0]
        if self.prior == "noise":
            images = noise(size, like, generator)
        elif self.prior == "black":
            images = like.expand(size).clone()
        elif mean is not None:
            images = mean.to(like).expand(size).clone()
        else:
            cause = "the search is to begin with the mean image, but the attacker has none"
            raise UserError.of(cause, "it cannot begin", "give the attacker data, or set prior to black or noise")
        if restart and self.prior != "noise":
            images += JITTER * noise(size, like, generator)
        return images.clamp_(*bounds)

    def _search(self, net: nn.Module, images: Tensor, labels: Tensor, bounds: Bounds, bar: Step) -> OptimisedImages:
        """Optimise the images in place."""
        images.requires_grad_()
        optimizer = SGD([images], lr=self.lr, momentum=self.momentum)
        for _ in range(self.steps):
            (images.grad,) = torch.autograd.grad(self._objective(net, images, labels).sum(), images)
            optimizer.step()
            with torch.no_grad():
                images.clamp_(*bounds)
            bar.update()
        images.requires_grad_(False).grad = None
        return OptimisedImages(images, labels, self._objective(net, images, labels))

    def _objective(self, net: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        """(count,) objective of every image; the penalty is divided evenly."""
        loss = cross_entropy(net(images), labels, reduction="none")
        loss = loss + self.l2 * images.square().flatten(1).sum(dim=1) + self.tv * total_variation(images)
        return loss + self.penalty(net, images) / len(images)

    def _better(self, best: OptimisedImages, new: OptimisedImages) -> OptimisedImages:
        won = new.losses < best.losses
        if self.together:
            won = (new.losses.sum() < best.losses.sum()).expand_as(won)
        images = torch.where(won.view(-1, 1, 1, 1), new.images, best.images)
        return OptimisedImages(images, best.labels, torch.where(won, new.losses, best.losses))


@contextmanager
def _frozen(net: nn.Module) -> Iterator[None]:
    """Context in which the network is in evaluation mode and takes no gradients."""
    trainable = {parameter: parameter.requires_grad for parameter in net.parameters()}
    with kept_modes(net):
        net.eval().requires_grad_(False)
        try:
            yield
        finally:
            for parameter, gradient in trainable.items():
                parameter.requires_grad_(gradient)
