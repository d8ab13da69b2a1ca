"""What a model inversion gives away: likeness to training images beyond likeness to other images of the class.

Every reconstruction of a class looks a little like every image of that class, trained on or not. Leakage is only what
it shares more with its nearest training image than with its nearest image from outside the training set.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from app.metrics.image_similarity import pearson_matrix
from app.metrics.intervals import Estimate, Interval, clopper_pearson, student_quantile
from app.metrics.membership import NotAvailable


@dataclass(frozen=True, eq=False)
class LabelledImages:
    """Images with their classes, all sets on one scale.

    Attributes:
        images: (n, ...) float, finite.
        labels: (n,) int64.
    """

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        assert len(self.images) == len(self.labels)

    def of_class(self, label: int) -> Tensor:
        """The images of one class."""
        return self.images[self.labels == label]


@dataclass(frozen=True)
class ClassInversion:
    """How alike the reconstructions of a class and its images are; a mean where the class has several reconstructions.

    Attributes:
        label: the class.
        to_mean: Pearson correlation, -1 to 1, with the mean of the class' training images.
        to_member: with the nearest of `compared` training images of the class.
        to_other: with the nearest of `compared` images of the class that were not trained on.
        compared: images of either kind that are compared, 1 or more.
    """

    label: int
    to_mean: float
    to_member: float
    to_other: float
    compared: int

    @property
    def gap(self) -> float:
        """How much nearer the nearest training image is, -2 to 2; above 0 where something leaks."""
        return self.to_member - self.to_other


@dataclass(frozen=True)
class InversionScores:
    """One model inversion.

    Attributes:
        classes: classes that have a reconstruction, training images and others, by label.
        to_mean: mean over classes.
        to_member: mean over classes.
        to_other: mean over classes.
        gap: mean gap over classes with Student's interval over classes: how it would be for other classes like these.
        accuracy: share of reconstructions that an independent classifier puts into their class, with an exact interval.
        left_out: classes that have a reconstruction, but lack training images or others.
    """

    classes: tuple[ClassInversion, ...]
    to_mean: float
    to_member: float
    to_other: float
    gap: Estimate
    accuracy: Estimate | NotAvailable
    left_out: int


def inversion_scores(
    found: LabelledImages,
    members: LabelledImages,
    others: LabelledImages,
    predicted: Tensor | None,
    confidence: float = 0.95,
) -> InversionScores | NotAvailable:
    """Scores of reconstructions.

    The nearest of many images is nearer than the nearest of few, so both kinds must offer equally many. Of the kind
    with more images in a class, the expected likeness of the nearest over all subsets as large as the other kind is
    taken: what drawing subsets at random would give on average, without depending on a draw.

    Args:
        found: reconstructions with the classes they were made for.
        members: training images.
        others: images that were not trained on, from the same source.
        predicted: (reconstructions,) classes that an independent classifier gives them, None without one.
        confidence: of intervals, between 0 and 1.
    """
    wanted = sorted(set(found.labels.tolist()))
    compared = [_class_scores(label, found, members, others) for label in wanted]
    classes = tuple(row for row in compared if row is not None)
    if not classes:
        return NotAvailable("no class has a reconstruction, training images and images that were not trained on")
    return InversionScores(
        classes=classes,
        to_mean=_mean([row.to_mean for row in classes]),
        to_member=_mean([row.to_member for row in classes]),
        to_other=_mean([row.to_other for row in classes]),
        gap=_student([row.gap for row in classes], confidence),
        accuracy=_accuracy(found.labels, predicted, confidence),
        left_out=len(wanted) - len(classes),
    )


def expected_largest(values: Tensor, size: int) -> Tensor:
    """Mean, over all subsets of one size, of the largest value in the subset.

    Args:
        values: (..., n) float; subsets are of the last axis.
        size: 1 to n.
    """
    number = values.shape[-1]
    assert 1 <= size <= number
    # The i-th smallest (counted from 1) is the largest of C(i-1, size-1) of the C(n, size) subsets.
    ranks = torch.arange(number, size, -1, dtype=torch.float64, device=values.device)
    falling = torch.cumprod((ranks - size) / (ranks - 1), dim=0)
    weights = torch.cat([falling.new_ones(1), falling]) * (size / number)
    return (values.double().sort(dim=-1, descending=True).values[..., : len(weights)] * weights).sum(dim=-1)


def _class_scores(
    label: int, found: LabelledImages, members: LabelledImages, others: LabelledImages
) -> ClassInversion | None:
    """Scores of one class; None where training images or others are lacking."""
    images, inside, outside = (kind.of_class(label) for kind in (found, members, others))
    compared = min(len(inside), len(outside))
    if not compared:
        return None
    near, far = (float(expected_largest(pearson_matrix(images, kind), compared).mean()) for kind in (inside, outside))
    centre = inside.double().mean(dim=0, keepdim=True)
    return ClassInversion(label, float(pearson_matrix(images, centre).mean()), near, far, compared)


def _accuracy(labels: Tensor, predicted: Tensor | None, confidence: float) -> Estimate | NotAvailable:
    if predicted is None:
        return NotAvailable("there is no independent classifier")
    assert len(predicted) == len(labels)
    right = int((predicted.cpu() == labels.cpu()).sum())
    return Estimate(right / len(labels), clopper_pearson(right, len(labels), confidence))


def _student(values: Sequence[float], confidence: float) -> Estimate:
    """Mean with Student's interval; none of fewer than 2 values."""
    mean, count = _mean(values), len(values)
    if count < 2:
        return Estimate(mean, NotAvailable("an interval needs at least 2 classes"))
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    reach = student_quantile(count, confidence) * deviation / math.sqrt(count)
    return Estimate(mean, Interval(mean - reach, mean + reach, confidence))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
