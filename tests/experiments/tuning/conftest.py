"""What the tests of tuning share."""

import functools

import pytest
import tuning_kit

from app.experiments import parsing


@pytest.fixture(scope="module", autouse=True)
def parsed_once():
    """Equal options are parsed once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parsing, "_parse", functools.cache(parsing._parse))
        patch.setattr(tuning_kit, "complete", functools.cache(tuning_kit.complete))
        yield
