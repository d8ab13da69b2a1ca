"""The Indian buffet process as a prior over weight factors: relaxed choices, stick breaking, exact divergences.

Pure functions of tensors of any floating type; noise comes in as uniform numbers, so that they can be differentiated,
vectorised over clients and repeated exactly. Factors lie along the last dimension; divergences are summed over it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

LIMIT = 6.9
"""Largest |logit| of the probability that a client uses a factor."""

LOG_LIMIT = math.log(999)
"""Largest |log| of the two parameters of a Kumaraswamy distribution."""

EDGE = 1e-3
"""Probabilities are kept this far from 0 and 1 before logarithms are taken."""

_NOISE_EDGE = 1e-4
_EULER = 0.5772156649015329


def prior_means(alpha: float, factors: int) -> Tensor:
    """Prior probability (factors,) that a client uses each factor: (alpha / (alpha + 1))^k for k = 1, 2, ..."""
    return _within(torch.pow(alpha / (alpha + 1), torch.arange(1, factors + 1)), EDGE)


def expected_factors(alpha: float, factors: int) -> float:
    """Expected number of factors a client uses under the prior: alpha * (1 - (alpha / (alpha + 1))^factors)."""
    return alpha * (1 - (alpha / (alpha + 1)) ** factors)


def relaxed_bernoulli(logits: Tensor, uniform: Tensor, temperature: float) -> Tensor:
    """Choices in (0, 1), each above 1/2 with the probability that its logit stands for.

    `uniform` holds independent uniform numbers in [0, 1]; the smaller the temperature (above 0), the closer to 0 or 1.
    """
    return torch.sigmoid((logits + _noise_logit(uniform)) / temperature)


def kumaraswamy(c: Tensor, d: Tensor, uniform: Tensor) -> Tensor:
    """Samples (1 - (1 - U)^(1/d))^(1/c) of Kumaraswamy(c, d) distributions (c, d > 0) from uniform U in [0, 1]."""
    survival = torch.log1p(-_within(uniform, _NOISE_EDGE)) / d
    return torch.exp(torch.log(-torch.expm1(survival)) / c)


def stick_probabilities(v: Tensor) -> Tensor:
    """Probabilities of the factors: products v_1 v_2 ... v_k of the sticks (..., factors), away from 0 and 1."""
    logs = torch.log(v.clamp(min=torch.finfo(v.dtype).tiny))  # a stick may be too short for its type
    return _within(torch.exp(logs.cumsum(-1)), EDGE)


def bernoulli_kl(pi: Tensor, p: Tensor) -> Tensor:
    """Divergence of Bernoulli(pi), the posterior, from Bernoulli(p), the prior, summed over factors."""
    pi, p = _within(pi, EDGE), _within(p, EDGE)
    return (pi * (torch.logit(pi) - torch.logit(p)) + torch.log1p(-pi) - torch.log1p(-p)).sum(-1)


def concrete_kl(logits: Tensor, p: Tensor, uniform: Tensor) -> Tensor:
    """One-sample estimate of the divergence between two binary concrete distributions, summed over factors.

    The temperature, equal in both, cancels: with y = (logits + logit U) / t, the log density of y around a location a
    is a - t y + log t - 2 softplus(a - t y). The posterior has these logits as locations, the prior the probabilities
    p; `uniform` are the numbers U that `relaxed_bernoulli` made the sample of.
    """
    noise = _noise_logit(uniform)
    posterior, prior = -noise, torch.logit(_within(p, EDGE)) - logits - noise
    return (posterior - 2 * softplus(posterior) - prior + 2 * softplus(prior)).sum(-1)


def kumaraswamy_beta_kl(c: Tensor, d: Tensor, alpha: float) -> Tensor:
    """Divergence of Kumaraswamy(c, d) from Beta(alpha, 1), summed over factors.

    Exact: the series of the general case is multiplied by the second parameter of the Beta distribution minus 1.
    """
    mean_log = -(_EULER + torch.digamma(d) + 1 / d) / c
    return ((c - alpha) * mean_log + (c * d).log() - math.log(alpha) - (d - 1) / d).sum(-1)


def _noise_logit(uniform: Tensor) -> Tensor:
    return torch.logit(_within(uniform, _NOISE_EDGE))


def _within(p: Tensor, edge: float) -> Tensor:
    """Probabilities at least `edge`, and at least the resolution of their type, from 0 and 1."""
    edge = max(edge, torch.finfo(p.dtype).eps)
    return p.clamp(edge, 1 - edge)
