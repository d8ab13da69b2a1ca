"""Every defense on a device: the run ends where the same run on the CPU does."""

import pytest
from device_kit import MLP, assert_as_on_cpu, recipes

SETTINGS = {
    "dp-sgd": {"model.local.batch_size": 8},
    "paillier": {"defenses.paillier.key_length": 1024, "defenses.paillier.workers": 1},
    "paillier-simulated": {"defenses.paillier.key_length": 1024},
}
"""Weak keys make short tests."""

pytestmark = pytest.mark.usefixtures("no_figures")


@pytest.mark.parametrize("defense", recipes("defenses"))
def test_defense(device, tmp_path, defense):
    """Submodels of two widths under every defense, with its statements and budgets in the summary."""
    assert_as_on_cpu(device, tmp_path, "heterofl", defense, **MLP, **SETTINGS.get(defense, {}))
