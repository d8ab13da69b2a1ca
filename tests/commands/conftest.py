"""Fixtures of the tests that run the command line."""

import functools

import pytest
from run_kit import fast_runs, no_figures, no_run_name  # noqa: F401
from trained_kit import loaded, trained  # noqa: F401

from app.federation.channels import paillier


@pytest.fixture(scope="session", autouse=True)
def _one_key_per_length():
    """Runs encrypt with one Paillier key: making one, which `tests/crypto` tests, takes longer than two rounds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paillier, "generate", functools.cache(paillier.generate))
        yield
