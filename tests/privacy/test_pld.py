"""Epsilon by privacy-loss distributions: exact values, and what happens without the library."""

import sys

import pytest

from app.common.errors import UserError
from app.privacy.accounting import Steps, analytic_epsilon, epsilon, noise_for, version
from app.privacy.settings import accountant_problems

DELTA = 1e-5


@pytest.mark.parametrize(("noise", "count"), [(1.0, 1), (2.0, 4), (3.0, 20)])
def test_gaussian_releases_cost_what_the_closed_form_says(noise, count):
    """Never less, and hardly more; 4.377 for one release with z = 1. Renyi divergences give more."""
    exact = analytic_epsilon(noise, DELTA, count)
    spent = epsilon([Steps(noise, 1.0, count)], DELTA, "pld")
    assert exact <= spent <= exact * 1.002 < epsilon([Steps(noise, 1.0, count)], DELTA)
    assert (noise, count) != (1.0, 1) or exact == pytest.approx(4.377, abs=1e-3)


def test_sampled_steps_cost_less_than_rdp_and_as_much_as_prv():
    """q = .1, z = 1, 100 rounds, delta 1e-3."""
    history = [Steps(1.0, 0.1, 100)]
    assert epsilon(history, 1e-3, "pld") == pytest.approx(epsilon(history, 1e-3, "prv"), rel=0.01)
    assert epsilon(history, 1e-3, "pld") < epsilon(history, 1e-3)


def test_noise_for_a_budget():
    """What is chosen is enough."""
    noise = noise_for(2.0, DELTA, [Steps(1.0, 1.0, 1)], "pld")
    assert 1.98 < epsilon([Steps(noise, 1.0, 1)], DELTA, "pld") <= 2.0
    assert version("pld").startswith("dp-accounting ")


def test_missing_library_has_a_remedy(monkeypatch):
    """Before training, and wherever epsilon is asked for."""
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(UserError, match="pip install"):
        epsilon([Steps(1.25, 0.5, 3)], DELTA, "pld")
    assert [problem.cause for problem in accountant_problems("pld")] == [
        "the accountant pld needs dp-accounting, which is not installed"
    ]
    assert not list(accountant_problems("prv"))
