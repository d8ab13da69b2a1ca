"""Noise that clients share: divergences against numerical ones, epsilon against dp-accounting, grids that fit."""

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import rdp
from dp_accounting.pld import privacy_loss_distribution
from scipy.special import ive, logsumexp

from app.common.errors import UserError
from app.privacy.accounting import ORDERS, Steps, epsilon
from app.privacy.distributed.discrete_noise import WIDEST
from app.privacy.distributed.rotation import padded_size
from app.privacy.distributed.shared_noise import WIDE, Block, Sensitivity, SharedNoise, multiplier, variance_for

MECHANISMS = ("gaussian", "skellam")
DELTA = 1e-5
WHOLE = [float(order) for order in (2, 3, 4, 6, 8, 12, 16, 24, 32, 64)]


def log_probabilities(mechanism, variance, shares):
    """(2 reach + 1) logarithms of the probabilities of the sum of so many clients' noise, by definition."""
    reach = int(14 * math.sqrt(variance)) + 30
    k = np.abs(np.arange(-reach, reach + 1))
    if mechanism == "skellam":  # sums of Skellam numbers are Skellam
        return np.log(np.maximum(ive(k, variance), 1e-300))
    one = np.exp(-(k**2) / (2 * variance / shares))
    total = np.array([1.0])
    for _ in range(shares):
        total = np.convolve(total, one / one.sum())
        middle = len(total) // 2
        total = total[max(0, middle - reach) : middle + reach + 1]
    return np.log(np.maximum(total, 1e-300))


def divergence(log_p, moved, order):
    """Renyi divergence of a distribution on the integers and the same, moved; tails without weight are left out."""
    p, q = log_p[moved:], log_p[: len(log_p) - moved]
    held = (p > -600) & (q > -600)
    return float(logsumexp(order * p[held] - (order - 1) * q[held]) / (order - 1))


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(("variance", "shares"), [(9.0, 1), (20.0, 5), (300.0, 12), (2000.0, 3)])
@pytest.mark.parametrize("moved", [1, 5])
def test_the_bound_holds_and_is_close(mechanism, variance, shares, moved):
    """For one coordinate, where the change is a whole number; discrete Gaussians at all orders."""
    bound = 1 / (2 * multiplier(mechanism, variance, shares, Sensitivity(moved, 1)) ** 2)
    log_p = log_probabilities(mechanism, variance, shares)
    orders = [*WHOLE, *([1.05, 1.5, 2.5] if mechanism == "gaussian" else [])]
    actual = np.array([divergence(log_p, moved, order) / order for order in orders])
    assert (actual <= bound * (1 + 1e-6)).all()
    if variance > 100:
        assert bound == pytest.approx(actual[0], rel=0.02)


def test_few_shares_of_little_noise_are_no_discrete_gaussian():
    """The term for sums matters there: without it, the bound would be too small."""
    actual = divergence(log_probabilities("gaussian", 6 * 0.16, 6), 1, 16.0) / 16
    assert actual > 1 / (2 * 0.96) * 1.01
    assert multiplier("gaussian", 6 * 0.16, 6, Sensitivity(1, 1)) == 0
    assert actual <= 1 / (2 * multiplier("gaussian", 6 * 0.3, 6, Sensitivity(1, 1)) ** 2)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_multiplier_that_is_asked_for_is_reached(mechanism):
    """And hardly exceeded; with a fine grid it is that of the Gaussian mechanism."""
    for norm, size, shares in ((3.0, 4, 2), (900.0, 65_536, 30)):
        moved = Sensitivity(norm, size)
        for noise in (0.3, 2.0, 40.0):
            variance = variance_for(mechanism, noise, shares, moved)
            assert noise <= multiplier(mechanism, variance, shares, moved) <= noise * (1 + 1e-5) or variance < 1e3
            assert variance >= (noise * norm) ** 2 * (1 - 1e-9)
    assert variance == pytest.approx((40.0 * 900) ** 2, rel=1e-4)
    assert variance_for(mechanism, 0.0, 1, moved) == 0


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("rounds", [1, 20])
def test_epsilon_is_what_dp_accounting_says(mechanism, rounds):
    """Its zero-concentrated event at the same orders; and its exact distribution of losses for one coordinate."""
    moved = Sensitivity(10.0, 1)
    variance, noise = 900.0, multiplier(mechanism, 900.0, 1, moved)
    composition = "rdp" if mechanism == "gaussian" else "rdp-whole"
    spent = epsilon([Steps(noise, 1.0, rounds)], DELTA, composition)
    accountant = rdp.RdpAccountant([one for one in ORDERS if mechanism == "gaussian" or one.is_integer()])
    rho = 10.0**2 / (2 * variance) if mechanism == "gaussian" else 1 / (2 * noise**2)
    accountant.compose(dp_accounting.SelfComposedDpEvent(dp_accounting.ZCDpEvent(rho), rounds))
    assert spent == pytest.approx(accountant.get_epsilon(DELTA), rel=2e-3)
    if mechanism == "gaussian":
        losses = privacy_loss_distribution.from_discrete_gaussian_mechanism(
            math.sqrt(variance), sensitivity=10, value_discretization_interval=1e-3
        )
        truth = losses.self_compose(rounds).get_epsilon_for_delta(DELTA)
        assert truth <= spent <= 1.12 * truth


def noise(mechanism="gaussian", z=1.0, bits=16, **settings):
    """As a defense would have it."""
    return SharedNoise(mechanism, z, 1.0, bits, **{"failure": 1e-6, "dropouts": 1 / 3, "colluders": 1, **settings})


def test_least_contributors_and_shares():
    """A third may drop out, one more may reveal its noise; a protected client always has its own."""
    blocks = [noise().block(100, count) for count in (1, 2, 3, 9, 20)]
    assert [(block.least, block.shares) for block in blocks] == [(1, 1), (2, 1), (2, 1), (6, 5), (14, 13)]
    assert all(block.size == padded_size(100) for block in blocks)
    everybody = noise(dropouts=0.0, colluders=0).block(8, 9)
    assert (everybody.least, everybody.shares) == (9, 9)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_more_bits_make_finer_grids(mechanism):
    """Up to the widest noise; fewer are refused, and every grid keeps to its own bounds."""
    blocks = (noise().block(40_000, 20), noise().block(3_000, 8))
    size = sum(block.size for block in blocks)
    grids = [noise(mechanism, bits=bits).grid(blocks, size) for bits in (14, 16, 18, 20, None)]
    assert [grid.scale for grid in grids] == sorted(grid.scale for grid in grids)
    for grid in grids:
        assert max(map(grid.share, blocks)) <= WIDE**2
        assert min(grid.share(block) * block.shares for block in blocks) == pytest.approx(grid.variance)
        assert multiplier(mechanism, grid.variance, blocks[0].shares, grid.moved) >= 1.0
        assert multiplier(mechanism, grid.variance, blocks[1].shares, grid.moved) >= 1.0
    assert grids[-1].variance == pytest.approx((1.0 * grids[-1].scale) ** 2, rel=1e-3)
    with pytest.raises(UserError, match="10 bits are too few"):
        noise(mechanism, bits=10).grid(blocks, size)


def test_much_noise_for_many_coordinates_gets_wider_tables():
    """Where the usual width would force too coarse a grid; what even the widest cannot hold is refused."""
    block = noise().block(2**22, 20)
    grid = noise(z=50.0, bits=None).grid((block,), 2**22)
    assert WIDE**2 < grid.share(block) <= WIDEST**2
    with pytest.raises(UserError, match="a noise of 65536 units per client are too few"):
        noise(z=1000.0, bits=None).grid((block,), 2**22)


def test_sums_wrap_around_no_more_often_than_stated():
    """The bound of one coordinate for sums of equal changes: not exceeded by draws, nor far above them."""
    shared = noise(bits=11, failure=0.01, z=0.5)
    block, generator = Block(1, 4, 3, 2), np.random.default_rng(0)
    at = shared.at(340.0, (block,), 1)
    spread = math.sqrt(at.share(block) * 4)
    totals = 4 * 340.0 * generator.choice([-1, 1], 100_000) * 0.3 + generator.normal(0, spread, 100_000)
    wrapped = (np.abs(totals) >= 2**10).mean()
    assert 1e-3 < wrapped < math.exp(shared.wrapping(at, (block,)))


def test_without_noise_the_grid_is_as_fine_as_the_bits_allow():
    """Identity up to the rounding."""
    block = noise().block(1000, 5)
    assert noise(z=0.0, bits=32).grid((block,), 1024).scale > 1e7
    assert noise(z=0.0, bits=None).grid((block,), 1024).scale == pytest.approx(2**30, rel=1e-5)
