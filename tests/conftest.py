"""What holds for all tests."""

import base64
import functools
import os

import process_settings  # noqa: F401  before anything that computes
import pytest
from lightning.fabric.utilities import registry
from simulated_device import register

from app.common import files
from app.federation.execution import recorded_step

register()

DRAWN = files.png_bytes
BLANK = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII=")
"""A PNG file of one transparent pixel."""


def pytest_collection_modifyitems(items):
    """Slow tests first, so that no worker is left alone with them in the end."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


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


@pytest.fixture
def pixels(monkeypatch):
    """Files of figures hold what was drawn."""
    monkeypatch.setattr(files, "png_bytes", DRAWN)
