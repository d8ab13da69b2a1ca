"""Fixtures of the tests that run the command line."""

from run_kit import fast_runs, no_figures, no_run_name  # noqa: F401
from trained_kit import loaded, trained  # noqa: F401
