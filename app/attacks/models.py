"""Attacked models, shadow models, and their responses to labelled samples in double precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax, logsumexp
from torch import Tensor

from app.metrics.membership import Array

if TYPE_CHECKING:
    from app.attacks.adaptive.base import ReadingStrategy

Ids = NDArray[np.int64]
"""Sample ids."""


@dataclass(frozen=True, eq=False)
class Responses:
    """Logits (samples, classes), float64, of one model, and the true classes (samples,), int64."""

    logits: Array
    labels: Ids

    @classmethod
    def joined(cls, parts: Sequence[Responses]) -> Responses:
        """Responses of several queries, one below the other."""
        return cls(np.concatenate([part.logits for part in parts]), np.concatenate([part.labels for part in parts]))

    @cached_property
    def log_probabilities(self) -> Array:
        """(samples, classes) logarithm of the softmax."""
        return np.asarray(log_softmax(self.logits, axis=1))

    @property
    def probabilities(self) -> Array:
        """(samples, classes) softmax, each row adds up to 1."""
        return np.exp(self.log_probabilities)

    @property
    def true_log_probabilities(self) -> Array:
        """(samples,) logarithm of the true class's probability, at most 0."""
        return self.log_probabilities[np.arange(len(self.labels)), self.labels]

    @property
    def losses(self) -> Array:
        """(samples,) cross-entropy, 0 or more."""
        return -self.true_log_probabilities

    @property
    def margins(self) -> Array:
        """(samples,) logit of the true class's probability: z_y - log sum of exp z_j over the other classes.

        Computed from logits, so that probabilities near 1 keep their differences (Carlini et al. 2022, section V-B).
        """
        rows = np.arange(len(self.labels))
        others = self.logits.copy()
        others[rows, self.labels] = -np.inf
        return np.asarray(self.logits[rows, self.labels] - logsumexp(others, axis=1))


@dataclass(frozen=True, eq=False)
class Activations:
    """Responses, and the inputs of the last linear layer (samples, features), float64, of a white-box attacker."""

    responses: Responses
    inputs: Array

    @property
    def bias_gradients(self) -> Array:
        """(samples, classes) gradient of each sample's loss by the last layer's bias: p - onehot."""
        gradients = self.responses.probabilities
        gradients[np.arange(len(gradients)), self.responses.labels] -= 1
        return gradients


TargetKind = Literal["global", "uploads"]
"""The model of the whole federation, or each client's upload."""


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Flat parameters and buffers of a model after one round (from 1); its width rate is in (0, 1]."""

    round: int
    rate: float
    vector: Tensor


@dataclass(frozen=True, eq=False)
class AttackedModel:
    """A model as one adversary has observed it, over one or several rounds."""

    key: str  # unique among all models of the run, shadows included
    client: int  # whose upload it is, NO_CLIENT for the model of the whole federation
    size: int  # samples it was trained on; the server knows how many samples its clients have
    snapshots: tuple[Snapshot, ...]  # by round; the last one is the model itself
    # how an attacker who knows the defense has adapted what it observed, None for as observed
    reading: ReadingStrategy | None = None

    @property
    def last(self) -> Snapshot:
        return self.snapshots[-1]

    @property
    def rounds(self) -> tuple[int, ...]:
        """Rounds of the snapshots, counted from 1."""
        return tuple(snapshot.round for snapshot in self.snapshots)

    def only_last(self) -> AttackedModel:
        """The same model with its last snapshot only."""
        return replace(self, snapshots=self.snapshots[-1:])


@dataclass(frozen=True, eq=False)
class Shadow:
    """A model like the attacked one, at the same rounds, whose training set the attacker knows.

    Members are ids it was trained on, non-members ids from the same source that it was not; both ascending.
    """

    model: AttackedModel
    members: Ids
    nonmembers: Ids

    @property
    def samples(self) -> Ids:
        """Members and non-members, ascending."""
        return np.sort(np.concatenate([self.members, self.nonmembers]))

    def trained_on(self, samples: Ids) -> np.ndarray:
        """Whether each of the samples is a member (bool)."""
        return np.isin(samples, self.members)
