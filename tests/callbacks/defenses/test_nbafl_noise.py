"""The noise of NbAFL and of the code that is compared under its name, against published settings."""

import math
from dataclasses import replace

import pytest

from app.common.errors import UserError
from callbacks.defenses.nbafl import NbAFLSetting, downlink_noise, uplink_noise, weight_clip_noise

CIFAR, MNIST, FMNIST = (8000, 2500), (25, 3000), (30, 3000)


def setting(epsilon=50.0, samples=1000, clip=30.0, **changes):
    """MemDefense's setting: delta 1e-5, 100 rounds, 20 clients, all of them in every round."""
    plain = NbAFLSetting(epsilon, 1e-5, clip, 2 * clip / samples, 100, 100, 20, 20)
    return replace(plain, **changes)


@pytest.mark.parametrize(
    ("data", "compared", "often", "once_up", "once_down"),
    [
        (CIFAR, 1.4e-4, 1.5e-3, 1.5e-5, 7.3e-5),
        (MNIST, 3.8e-2, 0.39, 3.9e-3, 1.9e-2),
        (FMNIST, 3.2e-2, 0.32, 3.2e-3, 1.6e-2),
    ],
)
def test_noise_of_the_compared_settings(data, compared, often, once_up, once_down):
    """Noise per coordinate for MemDefense's budgets, worked out by hand to two digits."""
    values = setting(*data)
    once = replace(values, exposures=1)
    assert weight_clip_noise(values) == pytest.approx(compared, rel=0.04)
    assert (uplink_noise(values), downlink_noise(values)) == (pytest.approx(often, rel=0.04), 0.0)
    assert uplink_noise(once) == pytest.approx(once_up, rel=0.04)
    assert downlink_noise(once) == pytest.approx(once_down, rel=0.04)


def test_closed_form():
    """sigma_U = c L 2C / (m eps) and sigma_D = 2 c C sqrt(T^2 - L^2 N) / (m N eps)."""
    values = setting(epsilon=10.0, samples=500, clip=3.0, rounds=40, exposures=5)
    factor = math.sqrt(2 * math.log(1.25e5))
    assert uplink_noise(values) == pytest.approx(factor * 5 * 2 * 3 / (500 * 10), rel=1e-12)
    down = 2 * factor * 3 * math.sqrt(40**2 - 25 * 20) / (500 * 20 * 10)
    assert downlink_noise(values) == pytest.approx(down, rel=1e-12)


@pytest.mark.parametrize("noise", [uplink_noise, downlink_noise, weight_clip_noise])
def test_twice_the_budget_halves_the_noise(noise):
    """Noise is inversely proportional to epsilon."""
    values = setting(exposures=1)
    assert noise(values) == pytest.approx(2 * noise(replace(values, epsilon=100.0)), rel=1e-12)


def test_enough_noise_on_the_way_up_needs_none_on_the_way_down():
    """The branch T <= L sqrt(N)."""
    assert downlink_noise(setting(rounds=44, exposures=10)) == 0.0
    assert downlink_noise(setting(rounds=45, exposures=10)) > 0.0


def test_some_of_the_clients():
    """K of N clients: the theorem's constant b, which is 1 for K = N."""
    values = setting(epsilon=10.0, exposures=1)
    some = replace(values, participants=10)
    b = -(100 / 10) * math.log(1 - 2 + 2 * math.exp(-0.1))
    expected = values.factor * values.sensitivity * math.sqrt((100 / b) ** 2 - 10) / (10 * 10)
    assert downlink_noise(some) == pytest.approx(expected, rel=1e-12)
    assert downlink_noise(replace(values, participants=20)) == pytest.approx(downlink_noise(values), rel=1e-12)


def test_budget_that_the_theorem_has_no_number_for():
    """A logarithm of a negative number is refused with the number of clients that would do."""
    with pytest.raises(UserError, match="more than 8 clients"):
        downlink_noise(setting(epsilon=50.0, exposures=1, participants=2))
    downlink_noise(setting(epsilon=50.0, exposures=1, participants=9))
