"""Logits of a model on labelled samples, and the quantities that attacks derive from them, in double precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax, logsumexp

from app.metrics.membership import Array

Ids = NDArray[np.int64]
"""Sample ids."""


@dataclass(frozen=True, eq=False)
class Responses:
    """Responses of one model.

    Attributes:
        logits: (samples, classes) float64.
        labels: (samples,) int64, the true classes.
    """

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
    """What a white-box attacker computes from a model beside its responses.

    Attributes:
        responses: the logits, the output of the last layer.
        inputs: (samples, features) float64, inputs of the last linear layer.
    """

    responses: Responses
    inputs: Array

    @property
    def bias_gradients(self) -> Array:
        """(samples, classes) gradient of each sample's loss by the last layer's bias: p - onehot."""
        gradients = self.responses.probabilities
        gradients[np.arange(len(gradients)), self.responses.labels] -= 1
        return gradients
