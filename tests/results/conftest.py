"""Fixtures of the tests that run the command line; the kit lies beside the tests of the commands."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "commands"))

from run_kit import fast_runs, no_pictures, no_run_name  # noqa: F401
