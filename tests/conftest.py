"""What holds for all tests."""

import process_settings  # noqa: F401  before anything that computes


def pytest_configure(config):
    """Heavy libraries are imported where tests run: the process that only deals them out would do so for nothing."""
    if config.getoption("dist", "no") == "no":
        config.pluginmanager.import_plugin("short_runs")


def pytest_collection_modifyitems(items):
    """Slow tests first, so that no worker is left alone with them in the end."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
