"""Scores whose metrics have closed forms, and slow formulas written straight from the definitions."""

import math

import numpy as np
from scipy.stats import norm

from app.metrics.membership import MembershipScores


def gaussian(distance, members, nonmembers, seed=0):
    """Members from N(distance, 1), non-members from N(0, 1), shuffled."""
    rng = np.random.default_rng(seed)
    truth = rng.permutation(np.arange(members + nonmembers) < members)
    return MembershipScores.of(rng.normal(size=truth.size) + distance * truth, truth)


def gaussian_auc(distance):
    """Area under the ROC curve of two unit Gaussians."""
    return float(norm.cdf(distance / math.sqrt(2)))


def clustered(clients, rows, spread, rng, distance=1.0):
    """Clients with equally many members and non-members whose distances vary with a standard deviation."""
    owner = np.repeat(np.arange(clients), rows)
    truth = np.tile(np.arange(rows) < rows // 2, clients)
    shift = rng.normal(distance, spread, clients)[owner]
    return MembershipScores.of(rng.normal(size=truth.size) + shift * truth, truth, clients=owner)


def twins(distance, members, nonmembers, seed=0, shared=0.5, gain=0.0):
    """Two runs of the same samples whose scores have a common part; the first separates better by a gain."""
    rng = np.random.default_rng(seed)
    truth = np.arange(members + nonmembers) < members
    common = rng.normal(size=truth.size) * math.sqrt(shared)
    noise = rng.normal(size=(2, truth.size)) * math.sqrt(1 - shared)
    return [MembershipScores.of(common + noise[k] + (distance + gain * (k == 0)) * truth, truth) for k in (0, 1)]


def tied(seed=0, members=40, nonmembers=60, levels=5):
    """Scores with many ties."""
    rng = np.random.default_rng(seed)
    truth = rng.permutation(np.arange(members + nonmembers) < members)
    return MembershipScores.of(rng.integers(0, levels, truth.size) + (rng.random(truth.size) < 0.3) * truth, truth)


def pair_wins(scores):
    """1 where a member outscores a non-member, 1/2 for ties; members x non-members."""
    inside, outside = scores.scores[scores.members][:, None], scores.scores[~scores.members]
    return (inside > outside) + 0.5 * (inside == outside)


def delong_variance(first, second=None):
    """Variance of an area, or of the difference of two on the same rows (DeLong and others 1988)."""
    wins = pair_wins(first) - (0 if second is None else pair_wins(second))
    rows, columns = wins.mean(axis=1), wins.mean(axis=0)
    return rows.var(ddof=1) / rows.size + columns.var(ddof=1) / columns.size
