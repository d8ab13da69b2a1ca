"""Fixtures of the tests that run the command line; the kits lie beside the tests of the commands and of federations."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "federation"))
sys.path.insert(0, str(Path(__file__).parents[1] / "commands"))

from run_kit import fast_runs, no_pictures, no_run_name  # noqa: F401
