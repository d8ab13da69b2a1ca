"""Model inversion by optimisation: images that a released model takes for its classes (MI-Face)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD
from tqdm import tqdm

from app.attacks.reconstruction.inversion.gradient_matching import (
    Box,
    OptimisedImages,
    noise,
    search_bar,
    search_problems,
    total_variation,
)
from app.errors import Problem, UserError, raise_all
from app.models.base import DataShape

Prior = Literal["black", "mean", "noise"]
"""What a search begins with: black images, the mean of the attacker's own images, or noise."""

JITTER = 0.1
"""Standard deviation, in normalised pixels, of what tells the second and further restarts from the first."""


class MIFace:
    """Seeks, for every class, an image that the model is sure of (Fredrikson et al. 2015).

    It minimises the cross-entropy of the class plus `l2` times the squared length of the image plus `tv` times the mean
    absolute difference of neighbouring pixels. What it finds is typical of the class: only what it shares with training
    images beyond other images of the class is leakage.
    """

    together: ClassVar[bool] = False
    """Whether the images of a batch depend on each other, so that one restart must win for all of them."""

    def __init__(
        self,
        steps: int = 500,
        restarts: int = 1,
        lr: float = 0.1,
        momentum: float = 0.9,
        l2: float = 1e-2,
        tv: float = 1e-2,
        prior: Prior = "black",
    ) -> None:
        """Settings of the search.

        Args:
            steps: descent steps per restart, at least 1.
            restarts: searches, at least 1, of which the best counts; from the second on, noise is added to the start.
            lr: step of the descent in units of normalised pixels, above 0.
            momentum: share of the last step that is taken again, at least 0 and below 1.
            l2: weight of the sum of the squared normalised pixels, 0 or more.
            tv: weight of the total variation, 0 or more.
            prior: what the first search begins with.
        """
        self.steps, self.restarts, self.lr, self.momentum = steps, restarts, lr, momentum
        self.l2, self.tv, self.prior = l2, tv, prior
        raise_all([*search_problems(steps, restarts, lr, l2=l2, tv=tv), *_momentum_problems(momentum)])

    def obstacle(self, net: nn.Module) -> str | None:
        """Why the attack cannot be run on this network; None where it can."""
        return None

    def penalty(self, net: nn.Module, images: Tensor) -> Tensor:
        """A further term, one number for all images, that subclasses put in place of 0."""
        return images.new_zeros(())

    def images(
        self,
        net: nn.Module,
        labels: Tensor,
        shape: DataShape,
        low: Tensor,
        high: Tensor,
        start: Tensor | None,
        generator: torch.Generator,
        progress: bool = False,
    ) -> OptimisedImages:
        """One image for every label.

        Args:
            net: the released model on any device. It is run in evaluation mode and left as it was.
            labels: (count,) classes to find, which may repeat.
            shape: size of an image.
            low: (channels,) smallest value of a pixel as the network sees it: black.
            high: (channels,) largest value.
            start: (channels, height, width) or (count, channels, height, width) mean of the attacker's own images as
                the network sees them; needed for the prior "mean" alone.
            generator: of noise; nothing else is drawn.
            progress: show a bar.
        """
        like = next(net.parameters())
        sought, box = labels.to(like.device), Box.of(low, high, like)
        size = (len(labels), shape.channels, shape.height, shape.width)
        best: OptimisedImages | None = None
        with _frozen(net), search_bar("model inversion", self.steps * self.restarts, progress) as bar:
            for restart in range(self.restarts):
                images = self._start(size, box, start, restart, like, generator)
                losses = self._search(net, images, sought, box, bar)
                best = self._better(best, OptimisedImages(images, sought, losses))
        assert best is not None
        return best

    def _start(
        self,
        size: tuple[int, ...],
        box: Box,
        mean: Tensor | None,
        restart: int,
        like: Tensor,
        generator: torch.Generator,
    ) -> Tensor:
        """What a search begins with, within the box."""
        if self.prior == "noise":
            images = noise(size, like, generator)
        elif self.prior == "black":
            images = box.low.expand(size).clone()
        elif mean is not None:
            images = mean.to(like).expand(size).clone()
        else:
            cause = "the search is to begin with the mean image, but the attacker has none"
            raise UserError.of(cause, "it cannot begin", "give the attacker data, or set prior to black or noise")
        if restart and self.prior != "noise":
            images += JITTER * noise(size, like, generator)
        box.project_(images)
        return images

    def _search(self, net: nn.Module, images: Tensor, labels: Tensor, box: Box, bar: tqdm) -> Tensor:
        """Improve the images in place; returns what is left of the objective of each."""
        images.requires_grad_()
        optimizer = SGD([images], lr=self.lr, momentum=self.momentum)
        for _ in range(self.steps):
            (images.grad,) = torch.autograd.grad(self._objective(net, images, labels).sum(), images)
            optimizer.step()
            box.project_(images)
            bar.update()
        images.requires_grad_(False).grad = None
        return self._objective(net, images, labels)

    def _objective(self, net: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        """What is minimised, for every image (count,); the penalty is shared out evenly."""
        loss = cross_entropy(net(images), labels, reduction="none")
        loss = loss + self.l2 * images.square().flatten(1).sum(dim=1) + self.tv * total_variation(images)
        return loss + self.penalty(net, images) / len(images)

    def _better(self, best: OptimisedImages | None, found: OptimisedImages) -> OptimisedImages:
        if best is None:
            return found
        won = found.losses < best.losses
        if self.together:
            won = (found.losses.sum() < best.losses.sum()).expand_as(won)
        images = torch.where(won.view(-1, 1, 1, 1), found.images, best.images)
        return OptimisedImages(images, best.labels, torch.where(won, found.losses, best.losses))


@contextmanager
def _frozen(net: nn.Module) -> Iterator[None]:
    """Within it the network is in evaluation mode and takes no gradients; afterwards it is as it was."""
    modes = {layer: layer.training for layer in net.modules()}
    wanted = {parameter: parameter.requires_grad for parameter in net.parameters()}
    net.eval().requires_grad_(False)
    try:
        yield
    finally:
        for layer, training in modes.items():
            layer.training = training
        for parameter, gradient in wanted.items():
            parameter.requires_grad_(gradient)


def _momentum_problems(momentum: float) -> Iterator[Problem]:
    if not 0 <= momentum < 1:
        yield Problem(f"momentum is {momentum:g}", "the search would not settle", "set momentum to 0 or more, below 1")
