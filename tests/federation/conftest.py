"""One intra-op thread: the problems here are so small that threads would only wait for each other."""

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """Every operation runs on the calling thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
