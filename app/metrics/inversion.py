"""Leakage of a model inversion: similarity to training images beyond similarity to other images of the class.

A reconstruction of a class resembles every image of that class, trained on or not. Leakage is how much more similar it
is to its nearest training image than to its nearest image from outside the training set.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor

from app.metrics.image_similarity import pearson_matrix
from app.metrics.intervals import Estimate, Interval, clopper_pearson, student_quantile
from app.metrics.membership import NotAvailable


@dataclass(frozen=True, eq=False)
class LabelledImages:
    """Images (n, ...), finite, with their classes (n,) int64."""

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        assert len(self.images) == len(self.labels)

    def of_class(self, label: int) -> Tensor:
        return self.images[self.labels == label]


@dataclass(frozen=True)
class ClassInversion:
    """Pearson correlations, -1 to 1, of the reconstructions of one class; means where there are several."""

    label: int  # the class
    to_mean: float  # with the mean of the training images of the class
    to_member: float  # with the nearest of `compared` training images of the class
    to_other: float  # with the nearest of `compared` images of the class that were not trained on
    compared: int  # number of images of either kind, 1 or more

    @property
    def gap(self) -> float:
        """Member minus other, -2 to 2; above 0 where training images leak."""
        return self.to_member - self.to_other


@dataclass(frozen=True)
class InversionScores:
    """Scores of one model inversion; correlations are means over classes."""

    classes: tuple[ClassInversion, ...]  # classes that have a reconstruction, training images and others, by label
    to_mean: float
    to_member: float
    to_other: float
    gap: Estimate  # mean gap with Student's interval over classes, which are taken as a sample of classes
    # share of reconstructions that an independent classifier puts into their class, with its Clopper-Pearson interval
    accuracy: Estimate | NotAvailable
    left_out: int  # number of classes that have a reconstruction, but lack training images or others


def inversion_scores(
    reconstructions: LabelledImages,
    members: LabelledImages,
    others: LabelledImages,
    predicted: Tensor | None,
) -> InversionScores | NotAvailable:
    """Scores of the reconstructions.

    The nearest of many images is nearer than the nearest of few. Of the kind with more images in a class, the
    correlation with the nearest is therefore averaged over all subsets as large as the other kind.

    Args:
        reconstructions: images with the classes they were made for.
        members: training images.
        others: images from the same source that were not trained on.
        predicted: (reconstructions,) predictions of an independent classifier, None without one.
    """
    labels = sorted(set(reconstructions.labels.tolist()))
    compared = [_class_scores(label, reconstructions, members, others) for label in labels]
    classes = tuple(row for row in compared if row is not None)
    if not classes:
        return NotAvailable("no class has a reconstruction, training images and images that were not trained on")
    return InversionScores(
        classes=classes,
        to_mean=fmean(row.to_mean for row in classes),
        to_member=fmean(row.to_member for row in classes),
        to_other=fmean(row.to_other for row in classes),
        gap=_student([row.gap for row in classes]),
        accuracy=_accuracy(reconstructions.labels, predicted),
        left_out=len(labels) - len(classes),
    )


def expected_largest(values: Tensor, size: int) -> Tensor:
    """Mean, over all subsets of a size (1 to n) of the last axis of (..., n) values, of the largest value."""
    number = values.shape[-1]
    assert 1 <= size <= number
    # The i-th smallest (counted from 1) is the largest of C(i-1, size-1) of the C(n, size) subsets.
    ranks = torch.arange(number, size, -1, dtype=torch.float64, device=values.device)
    falling = torch.cumprod((ranks - size) / (ranks - 1), dim=0)
    weights = torch.cat([falling.new_ones(1), falling]) * (size / number)
    return (values.double().sort(dim=-1, descending=True).values[..., : len(weights)] * weights).sum(dim=-1)


def _class_scores(
    label: int, reconstructions: LabelledImages, members: LabelledImages, others: LabelledImages
) -> ClassInversion | None:
    """Scores of one class; None where training images or others are lacking."""
    images, inside, outside = (kind.of_class(label) for kind in (reconstructions, members, others))
    compared = min(len(inside), len(outside))
    if not compared:
        return None
    near, far = (float(expected_largest(pearson_matrix(images, kind), compared).mean()) for kind in (inside, outside))
    centre = inside.double().mean(dim=0, keepdim=True)
    return ClassInversion(label, float(pearson_matrix(images, centre).mean()), near, far, compared)


def _accuracy(labels: Tensor, predicted: Tensor | None) -> Estimate | NotAvailable:
    if predicted is None:
        return NotAvailable("there is no independent classifier")
    assert len(predicted) == len(labels)
    right = int((predicted.cpu() == labels.cpu()).sum())
    return Estimate(right / len(labels), clopper_pearson(right, len(labels)))


def _student(values: Sequence[float], confidence: float = 0.95) -> Estimate:
    """Mean with Student's interval; none of fewer than 2 values."""
    mean, count = fmean(values), len(values)
    if count < 2:
        return Estimate(mean, NotAvailable("an interval needs at least 2 classes"))
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    reach = student_quantile(count, confidence) * deviation / math.sqrt(count)
    return Estimate(mean, Interval(mean - reach, mean + reach, confidence))
