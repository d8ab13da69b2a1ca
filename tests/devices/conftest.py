"""The devices that tests run on: a simulated accelerator, and a real GPU where there is one."""

import pytest
import torch
from device_kit import EXECUTOR_CHOICE
from run_kit import fast_runs, no_figures, no_run_name  # noqa: F401
from simulated_device import AVAILABLE, simulated_device


@pytest.fixture(scope="module", params=["sim", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request):
    """Name of the accelerator."""
    if request.param == "gpu":
        if not torch.cuda.is_available():
            pytest.skip("there is no GPU")
        yield "gpu"
    else:
        if not AVAILABLE:
            pytest.skip("this torch has no backends in Python")
        with simulated_device() as name:
            yield name


@pytest.fixture(autouse=True)
def same_executor(monkeypatch):
    """The CPU trains clients as a GPU does by default, in one vectorised call where possible, for equal numbers."""
    monkeypatch.setattr(EXECUTOR_CHOICE, lambda context: True)
