"""A clipping norm that follows a quantile: where it converges to, and what its bits cost."""

import math

import numpy as np
import pytest

from app.common.errors import UserError
from app.privacy.accounting import Steps, composed_epsilon
from app.privacy.adaptive_clipping import AdaptiveClipping


@pytest.mark.parametrize(("quantile", "start"), [(0.5, 0.1), (0.9, 30.0)])
def test_norm_converges_to_the_quantile(quantile, start):
    """On norms that are log-normal, whose quantiles are known; with noise on the counts and sampled clients."""
    adaptive, rng, norm = AdaptiveClipping(quantile, 0.2, 5.0), np.random.default_rng(0), start
    seen = []
    for _ in range(400):
        norms = rng.lognormal(0.5, 0.7, rng.binomial(1000, 0.1))
        norm = adaptive.next_norm(norm, int((norms <= norm).sum()), len(norms), 100, rng.normal(0, 5))
        seen.append(norm)
    z = {0.5: 0.0, 0.9: 1.2815515655446004}[quantile]
    assert np.mean(seen[200:]) == pytest.approx(math.exp(0.5 + 0.7 * z), rel=0.1)


def test_one_step_is_the_papers():
    """C exp(-eta (b - gamma)), where all clients that are expected take part."""
    adaptive = AdaptiveClipping(0.5, 0.2, 1.0)
    assert adaptive.next_norm(2.0, 9, 10, 10, 0.0) == pytest.approx(2.0 * math.exp(-0.2 * (0.9 - 0.5)))
    assert adaptive.next_norm(2.0, 9, 10, 10, 1.0) == pytest.approx(2.0 * math.exp(-0.2 * (1.0 - 0.5)))


def test_changes_and_bits_cost_what_the_noise_alone_would():
    """Exactly: a Gaussian mechanism with z_delta, and one on bits of sensitivity 1/2."""
    adaptive = AdaptiveClipping(0.5, 0.2, 3.0)
    change = adaptive.change_noise(1.5)
    assert change > 1.5
    both = composed_epsilon([Steps(change, 1.0, 1), Steps(2 * 3.0, 1.0, 1)], 1e-5)
    assert both == pytest.approx(composed_epsilon([Steps(1.5, 1.0, 1)], 1e-5), rel=1e-9)
    assert adaptive.change_noise(0.0) == 0.0


def test_bits_that_cost_everything_are_refused():
    """sigma_b of half the noise."""
    with pytest.raises(UserError, match=r"count_noise above 1"):
        AdaptiveClipping(0.5, 0.2, 1.0).change_noise(2.0)
