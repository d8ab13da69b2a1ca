"""Model inversion that makes the layers see what batch normalisation remembers of the training images."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from app.attacks.reconstruction.inversion.mi_face import MIFace, Prior
from app.models.norms import uses_batch_statistics


class DeepInversion(MIFace):
    """MI-Face with the feature statistics of DeepInversion (Yin et al. 2020): batch norms shall see what they know.

    For every batch normalisation, the Euclidean distance of the means that the images give its inputs from the running
    means is added, and that of the variances from the running variances. The images of a batch share the statistics:
    seek many at a time. Of the published method, the jitter and the competition of two networks are left out.
    """

    together: ClassVar[bool] = True

    def __init__(
        self,
        steps: int = 500,
        restarts: int = 1,
        lr: float = 0.1,
        momentum: float = 0.9,
        l2: float = 1e-2,
        tv: float = 1e-2,
        prior: Prior = "noise",
        statistics: float = 1.0,
    ) -> None:
        """Settings of the search.

        Args:
            steps: descent steps per restart, at least 1.
            restarts: searches, at least 1, of which the best counts.
            lr: step of the descent in units of normalised pixels, above 0.
            momentum: share of the last step that is taken again, at least 0 and below 1.
            l2: weight of the sum of the squared normalised pixels, 0 or more.
            tv: weight of the total variation, 0 or more.
            prior: what a search begins with.
            statistics: weight of the distance of the statistics, for every image, 0 or more.
        """
        super().__init__(steps, restarts, lr, momentum, l2, tv, prior)
        self.statistics = statistics

    def obstacle(self, net: nn.Module) -> str | None:
        """Why the network remembers no statistics of its training images; None where it does."""
        if not uses_batch_statistics(net):
            return "the network has no batch normalisation"
        norms = tracked_norms(net)
        if not norms:
            return "batch normalisation keeps no running statistics (they are those of a batch, or gathered afterwards)"
        if not any(_filled(norm) for norm in norms):
            return "the running statistics of batch normalisation still have their initial values"
        return None

    def penalty(self, net: nn.Module, images: Tensor) -> Tensor:
        """Distance of the statistics, summed over layers, times the number of images."""
        with _listening(tracked_norms(net)) as distances:
            net(images)
        return self.statistics * len(images) * sum(distances, start=images.new_zeros(()))


def tracked_norms(net: nn.Module) -> list[_BatchNorm]:
    """The batch normalisations that keep running statistics."""
    return [layer for layer in net.modules() if isinstance(layer, _BatchNorm) and layer.running_mean is not None]


def _filled(norm: _BatchNorm) -> bool:
    """Whether statistics differ from the initial ones; the counter of batches does not travel with a model."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    return bool((norm.running_mean != 0).any()) or bool((norm.running_var != 1).any())


@contextmanager
def _listening(norms: list[_BatchNorm]) -> Iterator[list[Tensor]]:
    """Within it, every run of the network appends how far the inputs of each layer are from its statistics."""
    heard: list[Tensor] = []
    handles = [
        norm.register_forward_pre_hook(lambda norm, inputs: heard.append(_distance(norm, inputs[0]))) for norm in norms
    ]
    try:
        yield heard
    finally:
        for handle in handles:
            handle.remove()


def _distance(norm: nn.Module, inputs: Tensor) -> Tensor:
    """Distance of means plus distance of variances; unbiased, as the running variances are."""
    assert isinstance(norm, _BatchNorm)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    values = inputs.transpose(0, 1).flatten(1)
    means, variances = values.mean(dim=1), values.var(dim=1, correction=min(1, values.shape[1] - 1))
    return torch.dist(means, norm.running_mean.to(means)) + torch.dist(variances, norm.running_var.to(means))
