"""A plugin of pytest for processes that run tests: what runs of seconds do without, and the simulated device."""

import base64
import functools
import gc
import os

import pytest
from jsonargparse import _core, _subcommands
from lightning.fabric.utilities import registry
from simulated_device import register

from app.common import files
from app.federation.execution import recorded_step

register()

DRAWN = files.png_bytes
BLANK = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII=")
"""A PNG file of one transparent pixel."""


def pytest_configure(config):
    """Lightning's advice is no finding; a filter in the settings would import it in every process."""
    config.addinivalue_line("filterwarnings", "ignore::lightning.pytorch.utilities.warnings.PossibleUserWarning")


def pytest_collection_finish():
    """What is imported stays: looking through it for garbage again and again takes a tenth of all tests' time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


@pytest.fixture(scope="session", autouse=True)
def _no_pixels():
    """Figures of runs are made, but not turned into pixels, which takes a third of a tiny run; see `pixels`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "png_bytes", lambda figure: BLANK)
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_disks():
    """What tests write need not survive a power cut, and the smallest run would wait for the disk 29 times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_recordings():
    """Recording a step takes as long as some hundred replayed ones save, and runs of tests are shorter than that."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorded_step, "WORTHWHILE", 10**9)
        yield


@pytest.fixture(scope="session", autouse=True)
def _entry_points_read_once():
    """Every trainer asks all installed packages for callbacks, which takes a third of the smallest run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "entry_points", functools.cache(registry.entry_points))
        yield


@pytest.fixture(scope="session", autouse=True)
def _options_found_once():
    """Every value is looked up in the list of all options more than once, which takes a third of reading them."""
    search = _subcommands.find_action_and_subcommand

    def found(parser, option, exclude=None):
        known = parser.__dict__.setdefault("_found", {})
        key = (option, exclude, len(parser._actions))
        if key not in known:
            known[key] = search(parser, option, exclude)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_subcommands, "find_action_and_subcommand", found)
        patch.setattr(_core, "find_action_and_subcommand", found)
        yield


@pytest.fixture
def pixels(monkeypatch):
    """Files of figures hold what was drawn."""
    monkeypatch.setattr(files, "png_bytes", DRAWN)
