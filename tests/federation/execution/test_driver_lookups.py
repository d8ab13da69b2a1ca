"""Steps of Adam do not look for a GPU's driver where there is none."""

import os

import pytest
import torch

from app.federation.execution.distributed import spare_driver_lookups

SETTING = "PYTORCH_NVML_BASED_CUDA_CHECK"


@pytest.mark.parametrize("gpu", [False, True])
def test_the_library_of_the_driver_is_looked_for_only_beside_a_gpu(gpu, monkeypatch):
    monkeypatch.setenv(SETTING, "1")  # as Lightning sets it
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    spare_driver_lookups()
    assert os.environ[SETTING] == ("1" if gpu else "0")


@pytest.mark.skipif(torch.cuda.is_available(), reason="beside a GPU the look-up stays, and torch remembers its answer")
def test_steps_of_adam_do_not_look_for_the_library(monkeypatch):
    monkeypatch.setenv(SETTING, "1")
    looked = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: looked.append(1) or 0)
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    torch.optim.Adam([parameter]).step()
    spare_driver_lookups()
    before = len(looked)
    torch.optim.Adam([parameter]).step()
    assert before > 0
    assert len(looked) == before
