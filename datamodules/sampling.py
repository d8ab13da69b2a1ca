"""Drawing from labelled samples: a fraction with every class its share, and wrong labels."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from app.seeding import numpy_generator


def stratified_mask(labels: np.ndarray, fraction: float, generator: np.random.Generator) -> np.ndarray:
    """Which samples are drawn: a seeded coin that lands `fraction` of the time, balanced over the classes.

    Systematic sampling along an order that is sorted by class and random otherwise. Each sample is drawn with
    probability exactly `fraction`, and a class of n samples gives floor or ceil of n * fraction. Rounding each class on
    its own would instead leave small classes always in or always out, which a membership attack could read from the
    label alone.

    Args:
        labels: class of every sample, shape (n,).
        fraction: share to draw, in [0, 1].
        generator: source of the randomness.

    Returns:
        Boolean mask of shape (n,).
    """
    class_order = generator.permutation(int(labels.max(initial=-1)) + 1)
    order = np.lexsort((generator.random(len(labels)), class_order[labels]))
    ticks = np.floor(np.arange(len(labels) + 1) * fraction + generator.random())
    mask = np.zeros(len(labels), dtype=bool)
    mask[order] = np.diff(ticks) > 0
    return mask


def wrong_labels(labels: Tensor, share: float, classes: int, seed: int) -> Tensor:
    """Labels of which a random share is replaced by other classes, each as likely as the next.

    Args:
        labels: (n,) int64 classes.
        share: of the samples, in [0, 1).
        classes: number of classes, at least 2.
        seed: of the draw.
    """
    generator = numpy_generator(seed, "label noise")
    chosen = generator.permutation(len(labels))[: round(share * len(labels))]
    shifted = (labels[chosen].numpy() + generator.integers(1, classes, len(chosen))) % classes
    result = labels.clone()
    result[chosen] = torch.from_numpy(shifted)
    return result
