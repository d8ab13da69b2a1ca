"""Model inversion that also matches the running statistics of batch normalisation (DeepInversion)."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from app.attacks.reconstruction.inversion.mi_face import MIFace, Prior
from app.common.ranges import NonNegative
from app.models.norms import uses_batch_statistics


@dataclass(frozen=True)
class DeepInversion(MIFace):
    """MI-Face with the feature statistics of DeepInversion (Yin et al. 2020).

    For every batch normalisation, the Euclidean distances of the batch means from the running means and of the batch
    variances from the running variances are added. The images of a batch share the statistics, so that many should be
    optimised at a time. Of the published method, the jitter and the competition of two networks are left out.

    Attributes:
        statistics: weight of the distance of the statistics, per image, 0 or more.
    """

    together: ClassVar[bool] = True

    prior: Prior = "noise"
    statistics: NonNegative = 1.0

    def obstacle(self, net: nn.Module) -> str | None:
        """Why the network holds no statistics of its training images; None where it does."""
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
        distances: list[Tensor] = []
        with ExitStack() as hooks:
            for norm in tracked_norms(net):
                hooks.enter_context(
                    norm.register_forward_pre_hook(lambda norm, inputs: distances.append(_distance(norm, inputs[0])))
                )
            net(images)
        return self.statistics * len(images) * sum(distances, start=images.new_zeros(()))


def tracked_norms(net: nn.Module) -> list[_BatchNorm]:
    """Batch normalisations that keep running statistics."""
    return [layer for layer in net.modules() if isinstance(layer, _BatchNorm) and layer.running_mean is not None]


def _filled(norm: _BatchNorm) -> bool:
    """Whether statistics differ from the initial ones; the counter of batches is not part of a released model."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    return bool((norm.running_mean != 0).any()) or bool((norm.running_var != 1).any())


def _distance(norm: nn.Module, inputs: Tensor) -> Tensor:
    """Distance of the means plus distance of the variances, which are unbiased, as the running ones are."""
    assert isinstance(norm, _BatchNorm)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    values = inputs.transpose(0, 1).flatten(1)
    means, variances = values.mean(dim=1), values.var(dim=1, correction=min(1, values.shape[1] - 1))
    return torch.dist(means, norm.running_mean.to(means)) + torch.dist(variances, norm.running_var.to(means))
