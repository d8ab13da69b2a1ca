"""The buffet prior: samples have the distributions they claim, divergences equal what sampling and torch give."""

import math

import pytest
import torch
from scipy.stats import kstest
from torch.distributions import Bernoulli, Beta, Kumaraswamy, kl_divergence
from torch.func import grad, vmap

from app.models import ibp

MANY = 200_000


def uniform(*shape, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.double)


def test_prior_means_fall_geometrically_and_are_clipped():
    """The k-th mean is (alpha / (alpha + 1))^k, never within a thousandth of 0 or 1."""
    torch.testing.assert_close(ibp.prior_means(1.0, 4), torch.tensor([0.5, 0.25, 0.125, 0.0625]))
    assert ibp.prior_means(1.0, 60)[-1] == pytest.approx(1e-3)
    assert ibp.prior_means(1e6, 2)[0] == pytest.approx(1 - 1e-3)


@pytest.mark.parametrize(("alpha", "factors", "share"), [(120.0, 120, 0.63), (96.0, 120, 0.57), (48.0, 120, 0.37)])
def test_expected_factors_are_the_sum_of_the_prior(alpha, factors, share):
    """The closed form equals the sum of the means, and the shares are those of alpha / F = 1, .8 and .4."""
    expected = ibp.expected_factors(alpha, factors)
    assert expected == pytest.approx(float(ibp.prior_means(alpha, factors).double().sum()), rel=1e-4)
    assert expected / factors == pytest.approx(share, abs=6e-3)


@pytest.mark.parametrize("temperature", [0.1, 2 / 3, 3.0])
def test_a_relaxed_choice_exceeds_one_half_with_its_probability(temperature):
    """P(b > 1/2) is pi at every temperature."""
    pi = torch.tensor([0.03, 0.4, 0.9], dtype=torch.double)
    chosen = ibp.relaxed_bernoulli(torch.logit(pi), uniform(MANY, 3), temperature) > 0.5
    torch.testing.assert_close(chosen.double().mean(0), pi, atol=4e-3, rtol=0)


def test_a_relaxed_choice_is_the_stated_function_of_its_noise():
    """sigmoid((logit pi + logit U) / t), with U kept away from 0 and 1."""
    logits, noise = torch.tensor([0.3, -2.0]), torch.tensor([0.2, 0.7])
    expected = torch.sigmoid((logits + noise.log() - (1 - noise).log()) / 0.5)
    torch.testing.assert_close(ibp.relaxed_bernoulli(logits, noise, 0.5), expected)
    ends = ibp.relaxed_bernoulli(torch.zeros(2), torch.tensor([0.0, 1.0]), 1.0)
    torch.testing.assert_close(ends, torch.tensor([1e-4, 1 - 1e-4]), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(("c", "d"), [(2.0, 3.0), (120.0, 1.0), (0.5, 0.7)])
def test_sticks_are_kumaraswamy(c, d):
    """A Kolmogorov-Smirnov test against 1 - (1 - x^c)^d does not object."""
    drawn = ibp.kumaraswamy(torch.tensor(c).double(), torch.tensor(d).double(), uniform(20_000))
    assert kstest(drawn.numpy(), lambda x: 1 - (1 - x**c) ** d).pvalue > 0.01


def test_sticks_multiply_up_and_are_clipped():
    """Products of the sticks, at most 1 - 1e-3 and at least 1e-3 even where a stick has no length."""
    v = torch.tensor([1.0, 0.5, 0.5, 0.0, 0.9], requires_grad=True)
    p = ibp.stick_probabilities(v)
    torch.testing.assert_close(p, torch.tensor([0.999, 0.5, 0.25, 0.001, 0.001]))
    p.sum().backward()
    assert v.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("end", [-1.0, 1.0])
def test_everything_is_finite_at_the_bounds(dtype, end):
    """Values and gradients are numbers where all parameters and all noise are extreme."""
    logs = torch.tensor([-1.0, 1.0, -1.0, 1.0], dtype=dtype) * ibp.LOG_LIMIT
    parameters = [(end * torch.full((4,), ibp.LIMIT, dtype=dtype)), logs, -logs]
    parameters = [parameter.requires_grad_() for parameter in parameters]
    for noise in (torch.tensor([0.0, 0.0, 1.0, 1.0], dtype=dtype), torch.full((4,), 0.5, dtype=dtype)):
        logits, c, d = parameters[0], parameters[1].exp(), parameters[2].exp()
        p = ibp.stick_probabilities(ibp.kumaraswamy(c, d, noise))
        total = ibp.bernoulli_kl(torch.sigmoid(logits), p) + ibp.concrete_kl(logits, p, noise)
        total = total + ibp.kumaraswamy_beta_kl(c, d, 5.0) + ibp.relaxed_bernoulli(logits, noise, 0.5).sum()
        assert total.isfinite()
        assert all(part.isfinite().all() for part in torch.autograd.grad(total, parameters))


def test_divergence_of_choices_is_torchs():
    """The closed form equals torch's divergence of Bernoulli distributions, summed."""
    pi, p = 0.01 + 0.98 * uniform(2, 7), 0.01 + 0.98 * uniform(2, 7, seed=1)
    expected = kl_divergence(Bernoulli(pi), Bernoulli(p)).sum(-1)
    torch.testing.assert_close(ibp.bernoulli_kl(pi, p), expected)


def test_divergence_of_choices_vanishes_at_the_prior():
    """At pi = p both the divergence and its gradient are 0."""
    p = torch.tensor([0.2, 0.7, 0.95], dtype=torch.double)
    assert ibp.bernoulli_kl(p, p).abs() < 1e-12
    torch.testing.assert_close(grad(ibp.bernoulli_kl)(p, p), torch.zeros_like(p), atol=1e-9, rtol=0)


def test_the_sampled_divergence_is_a_difference_of_concrete_log_densities():
    """At any temperature, log q(y) - log p(y) of the binary concrete densities at the sample."""
    logits, p = torch.tensor([0.4, -1.5], dtype=torch.double), torch.tensor([0.3, 0.6], dtype=torch.double)
    noise = uniform(2, seed=3).clamp(0.01, 0.99)
    for temperature in (0.5, 2 / 3, 2.0):
        y = (logits + torch.logit(noise)) / temperature
        log_densities = [
            a - temperature * y + math.log(temperature) - 2 * torch.nn.functional.softplus(a - temperature * y)
            for a in (logits, torch.logit(p))
        ]
        expected = (log_densities[0] - log_densities[1]).sum()
        torch.testing.assert_close(ibp.concrete_kl(logits, p, noise), expected)


def test_the_sampled_divergence_has_the_mean_of_the_logistic_distributions():
    """Its mean is the integral of log q - log p over the logistic density q, and it is not below 0."""
    logits, p = torch.tensor([1.0], dtype=torch.double), torch.tensor([0.3], dtype=torch.double)
    grid = torch.linspace(-40, 40, 400_001, dtype=torch.double)

    def log_logistic(location):
        return location - grid - 2 * torch.nn.functional.softplus(location - grid)

    q = log_logistic(logits)
    exact = torch.trapezoid(q.exp() * (q - log_logistic(torch.logit(p))), grid)
    drawn = ibp.concrete_kl(logits.expand(MANY, 1), p.expand(MANY, 1), uniform(MANY, 1)).mean()
    assert drawn == pytest.approx(float(exact), abs=6e-3)


@pytest.mark.parametrize(("c", "d", "alpha"), [(2.0, 3.0, 5.0), (7.0, 0.6, 2.0), (0.8, 1.5, 1.0)])
def test_divergence_of_sticks_equals_its_sampled_mean(c, d, alpha):
    """The closed form is the mean of log q - log p over samples of q."""
    c, d = torch.tensor(c, dtype=torch.double), torch.tensor(d, dtype=torch.double)
    sticks = ibp.kumaraswamy(c, d, uniform(MANY)).clamp(1e-12, 1 - 1e-12)
    differences = Kumaraswamy(c, d).log_prob(sticks) - Beta(alpha, torch.ones_like(c)).log_prob(sticks)
    closed = float(ibp.kumaraswamy_beta_kl(c[None], d[None], alpha))
    assert closed == pytest.approx(float(differences.mean()), abs=5 * float(differences.std()) / MANY**0.5 + 2e-3)


def test_divergence_of_sticks_vanishes_at_the_prior():
    """Kumaraswamy(alpha, 1) is Beta(alpha, 1): divergence and gradient are 0, and both are positive elsewhere."""
    c, d = torch.full((3,), 5.0, dtype=torch.double), torch.ones(3, dtype=torch.double)
    assert ibp.kumaraswamy_beta_kl(c, d, 5.0).abs() < 1e-12
    for argument in (0, 1):
        slope = grad(ibp.kumaraswamy_beta_kl, argnums=argument)(c, d, 5.0)
        torch.testing.assert_close(slope, torch.zeros_like(c), atol=1e-9, rtol=0)
    assert ibp.kumaraswamy_beta_kl(1.3 * c, d, 5.0) > 0 < ibp.kumaraswamy_beta_kl(c, 0.7 * d, 5.0)


def test_functions_can_be_vectorised():
    """vmap over clients gives what one call per client gives, gradients included."""

    def objective(logits, c, d, noise):
        p = ibp.stick_probabilities(ibp.kumaraswamy(c, d, noise))
        choices = ibp.bernoulli_kl(torch.sigmoid(logits), p) + ibp.concrete_kl(logits, p, noise)
        return choices + ibp.kumaraswamy_beta_kl(c, d, 3.0) + ibp.relaxed_bernoulli(logits, noise, 0.7).sum()

    arguments = [uniform(4, 5, seed=seed) + shift for seed, shift in enumerate([-0.5, 1, 0.5, 0])]
    slopes = grad(objective, argnums=(0, 1, 2))
    together = vmap(slopes)(*arguments)
    for client in range(4):
        one = slopes(*(argument[client] for argument in arguments))
        torch.testing.assert_close([part[client] for part in together], list(one))
