"""Drawing a fraction of labelled samples so that every sample has the same chance and every class its share."""

from __future__ import annotations

import numpy as np


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
