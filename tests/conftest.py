"""Settings that must be in place before the first tensor operation, in this process and in those that tests start."""

import os

# Some virtual machines announce AMX units that they do not have: bf16 products would end the process there.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

from simulated_device import register

register()


def pytest_collection_modifyitems(items):
    """Slow tests first, so that no worker is left alone with them in the end."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
