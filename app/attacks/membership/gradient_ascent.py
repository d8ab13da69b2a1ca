"""Nasr et al. 2019, active attacks: gradient ascent on target samples in a model that victims train on.

A victim whose training set holds a sample lowers its loss again; the losses of other samples stay raised. So the loss
after the victim's training tells members from non-members better than without the ascent, also those non-members whose
loss was low before.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from app.attacks.membership.base import Threat
from app.attacks.model_query import ModelQuery
from app.attacks.models import Ids, Snapshot

SERVER = Threat(
    sees="each upload, and decides what the client is sent",
    data="the target samples with their labels",
    trains="gradient ascent on the model before it is sent",
)
PARTICIPANT = Threat(
    sees="the models that it receives as a participant",
    data="the target samples with their labels",
    trains="gradient ascent on its own upload",
)


def ascend(query: ModelQuery, model: Snapshot, samples: Ids, strength: float, steps: int) -> Snapshot:
    """The model after some steps of gradient ascent on the mean loss of the samples.

    Args:
        query: runs the model.
        model: before; its buffers stay as they are.
        samples: targets.
        strength: learning rate, 0 or more.
        steps: 0 or more.
    """
    for _ in range(steps):
        gradient = query.loss_gradient(model, samples)
        vector = model.vector.clone()
        vector[: gradient.numel()] += strength * gradient.to(vector)
        model = replace(model, vector=vector)
    return model


def drawn_targets(pool: Ids, most: int, generator: np.random.Generator) -> Ids:
    """At most so many of the samples, ascending."""
    distinct = np.unique(pool)
    return np.sort(generator.permutation(distinct)[:most])
