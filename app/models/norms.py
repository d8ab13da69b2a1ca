"""Normalisation layers that survive cutting channels, and the statistics they use in evaluation.

MaPP-FL (sec. 5.2) and HeteroFL train with the statistics of each batch and let no running statistics travel.
They differ in evaluation: MaPP-FL's public code uses the evaluation batch itself ("batch"), HeteroFL gathers statistics
after training by a pass over training data ("posthoc", its sBN). "running" is ordinary batch normalisation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import gcd
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from app.common.errors import Problem, UserError, raise_all
from app.common.ranges import Count, range_problems
from app.models.checks import choice_problems

NormKind = Literal["batch", "group", "none"]
BatchStatistics = Literal["batch", "posthoc", "running"]


def make_norm(
    kind: NormKind, channels: int, statistics: BatchStatistics = "batch", channels_per_group: Count = 8
) -> nn.Module:
    """Normalisation of a map with `channels` channels; of the batch statistics, only "running" keeps buffers.

    The size of a group is fixed, not the number of groups, so that a submodel of whole groups normalises each one as
    the full model does. A layer with fewer channels is one group.
    """
    raise_all(range_problems(partial(make_norm, channels_per_group=channels_per_group), "model.net"))
    raise_all(norm_problems(kind, [channels], statistics, channels_per_group))
    if kind == "batch":
        return nn.BatchNorm2d(channels, track_running_stats=statistics == "running")
    if kind == "group":
        return nn.GroupNorm(max(1, channels // channels_per_group), channels)
    return nn.Identity()


def norm_problems(
    kind: str, widths: Sequence[int], statistics: str = "batch", channels_per_group: int = 8
) -> Iterator[Problem]:
    """Everything that keeps `make_norm` from normalising layers of these widths."""
    yield from choice_problems("norm", kind, get_args(NormKind))
    yield from choice_problems("statistics", statistics, get_args(BatchStatistics))
    if kind == "group":
        yield from _group_problems(widths, channels_per_group)


def _group_problems(widths: Sequence[int], size: int) -> Iterator[Problem]:
    if uneven := [width for width in widths if width > size and width % size]:
        yield Problem(
            f"layers of {', '.join(map(str, uneven))} channels do not split into groups of {size}",
            "a submodel would normalise other groups of channels than the model it is cut from",
            f"use --model.net.channels_per_group {gcd(*widths)}, another width or rate, "
            "or --model.net.norm batch or none",
        )


def uses_batch_statistics(net: nn.Module) -> bool:
    """Whether a layer normalises over the batch in training, so that the samples of a batch influence each other."""
    return any(isinstance(layer, _BatchNorm) for layer in net.modules())


@contextmanager
def posthoc_statistics(net: nn.Module, batches: Iterable[Tensor]) -> Iterator[None]:
    """Evaluate `net` with statistics gathered over `batches`: the static batch normalisation of HeteroFL.

    Inside the context the net is in evaluation mode and each of its untracked batch norms uses the plain average, over
    batches, of the batch means and of the unbiased batch variances. On leaving, the net is as it was before.

    Args:
        net: network to evaluate; norms that track running statistics keep using their own.
        batches: normalised training images, each (batch, channels, height, width), passed through the net once. Batches
            of equal size give every image the same weight.
    """
    modes = {layer: layer.training for layer in net.modules()}
    norms = [layer for layer in modes if isinstance(layer, _BatchNorm) and not layer.track_running_stats]
    momenta = [norm.momentum for norm in norms]
    try:
        net.eval()
        if norms:
            _gather(net, norms, batches)
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.running_mean = norm.running_var = norm.num_batches_tracked = None
            norm.track_running_stats, norm.momentum = False, momentum
        for layer, training in modes.items():
            layer.training = training


def _gather(net: nn.Module, norms: Sequence[_BatchNorm], batches: Iterable[Tensor]) -> None:
    """Fill the norms' statistics; only the norms are in training mode, so dropout and scalers act as in evaluation."""
    for norm in norms:
        norm.running_mean = torch.zeros_like(norm.weight, requires_grad=False)
        norm.running_var = torch.ones_like(norm.weight, requires_grad=False)
        norm.num_batches_tracked = torch.zeros((), dtype=torch.long, device=norm.weight.device)
        norm.track_running_stats, norm.momentum = True, None
        norm.train()
    passed = 0
    with torch.no_grad():
        for images in batches:
            _pass_through(net, images)
            passed += 1
    if not passed:
        cause, consequence = "no images to gather batch statistics from", "the norms would not normalise at all"
        raise UserError.of(cause, consequence, "give a client some data, or use --model.net.statistics batch")
    for norm in norms:
        norm.eval()


def _pass_through(net: nn.Module, images: Tensor) -> None:
    try:
        net(images)
    except ValueError as error:  # torch refuses a single value per channel: one image whose map is a single pixel
        if len(images) > 1:
            raise
        cause, consequence = "a batch of one image whose last map is one pixel", "its variance is not defined"
        remedy = "gather statistics over batches of at least 2 images, or use --model.net.norm group"
        raise UserError.of(cause, consequence, remedy) from error
