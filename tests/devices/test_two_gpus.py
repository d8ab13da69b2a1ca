"""Two GPUs end where one does, and one where the CPU does."""

import federation_script
import pytest
import torch
from process_kit import SCRIPTS, on_two_processes

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What two processes with a GPU each wrote."""
    if torch.cuda.device_count() < 2:
        pytest.skip("there are no two GPUs")
    place = tmp_path_factory.mktemp("two_gpus")
    on_two_processes(SCRIPTS / "federation_script.py", place, "gpu")
    return place


@pytest.mark.parametrize("case", federation_script.CASES)
def test_one_gpu_agrees_with_the_cpu(case):
    """In double precision, where the order of additions hardly shows."""
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    there, here = (federation_script.outcome(case, 1, place)["vector"] for place in ("gpu", "cpu"))
    torch.testing.assert_close(there, here, rtol=0, atol=1e-6)


@pytest.mark.parametrize("case", federation_script.CASES)
def test_two_gpus_agree_with_one(folder, case):
    """Clients are dealt to the processes, and their sums are added up."""
    alone = federation_script.outcome(case, 1, "gpu")
    together = torch.load(folder / f"{case}.pt", weights_only=True, map_location="cpu")
    torch.testing.assert_close(together["vector"], alone["vector"], rtol=0, atol=1e-9)
