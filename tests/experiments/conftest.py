"""What the tests of comparisons share."""

import pytest

from app.experiments.folder import ComparisonFolder


@pytest.fixture
def folder(tmp_path):
    """An empty folder of a comparison."""
    made = ComparisonFolder(tmp_path / "runs")
    made.claim()
    return made
