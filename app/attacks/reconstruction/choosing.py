"""What an attacker shows of all that was found, and what anybody could have guessed instead."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from app.attacks.reconstruction.images import Candidates, Truth
from app.metrics.likeness import CHUNK, standardised
from app.metrics.reconstruction import RECOVERED


def choose(candidates: Candidates, count: int) -> Tensor:
    """Positions of the candidates that an attacker without the truth would show, the surest first.

    Candidates that show what one chosen before them shows (Pearson RECOVERED or more) are passed over, and so are
    images without any contrast. Of equally sure ones, the one with the strongest contrast comes first.

    Args:
        candidates: all that were found.
        count: how many to show at most, 0 or more.
    """
    rows = torch.cat([standardised(part) for part in candidates.images.split(CHUNK)])
    open_ = rows.any(dim=1)
    chosen: list[int] = []
    for place in _ranked(candidates):
        if len(chosen) == count:
            break
        if open_[place]:
            chosen.append(place)
            open_ &= rows @ rows[place] < RECOVERED
    return torch.tensor(chosen, dtype=torch.int64)


def nulls_for(truth: Truth, others: Tensor, other_labels: Tensor, count: int) -> dict[str, Tensor]:
    """Images that can be had without reading any update, by name; none that would be the truth itself or is empty.

    `batch mean` is the mean of the true images; a single image has none, as it would be its own mean. `class mean` is,
    for every true image, the mean of the attacker's own images of its class, or of all of them where that class is
    absent. `best of M others` are single images of the attacker's own.

    Args:
        truth: what the clients trained on.
        others: (images, channels, height, width) that the attacker owns, on the pixel scale; none of the true ones.
        other_labels: (images,) their classes.
        count: most of them that are offered as guesses; the number of candidates makes both choices equally rich.
    """
    nulls = {}
    if len(truth) > 1:
        nulls["batch mean"] = truth.images.mean(dim=0, keepdim=True).expand_as(truth.images)
    if len(others):
        means = {label: _mean_of(others, other_labels == label) for label in truth.labels.unique().tolist()}
        nulls["class mean"] = torch.stack([means[label] for label in truth.labels.tolist()])
    if guesses := min(count, len(others)):
        nulls[f"best of {guesses} others"] = others[:guesses]
    return nulls


def _ranked(candidates: Candidates) -> list[int]:
    rows = candidates.images.flatten(1).double()
    contrast = (rows - rows.mean(dim=1, keepdim=True)).norm(dim=1)
    order = np.lexsort((-contrast.cpu().numpy(), -candidates.confidence.double().cpu().numpy()))
    ranked: list[int] = order.tolist()
    return ranked


def _mean_of(images: Tensor, wanted: Tensor) -> Tensor:
    return (images[wanted] if bool(wanted.any()) else images).mean(dim=0)
