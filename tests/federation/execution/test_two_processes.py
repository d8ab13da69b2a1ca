"""Two processes end where one does: models, personal coordinates and every client's report."""

import json

import federation_script
import pytest
import torch
from process_kit import SCRIPTS, on_two_processes

CLIENTS = {
    "three": 3,
    "seven": 7,
    "one participant": 1,
    "personal": 4,
    "threads": 7,
    "posthoc": 3,
    "resampled": 7,
    "fjord": 7,
    "label masks": 3,
    "memdefense": 7,
    "nbafl": 7,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What two processes wrote; a deadlock ends in a timeout."""
    place = tmp_path_factory.mktemp("two_processes")
    on_two_processes(SCRIPTS / "federation_script.py", place)
    return place


@pytest.mark.slow
@pytest.mark.parametrize("case", federation_script.CASES)
def test_two_processes_agree_with_one(folder, case):
    """More clients than processes, fewer, unequal widths, local heads, redrawn widths, label masks, worker threads."""
    alone = federation_script.outcome(case, devices=1)
    written = json.loads((folder / f"{case}.json").read_text())
    together = torch.load(folder / f"{case}.pt", weights_only=True)
    assert (alone["world"], written["world"]) == (1, 2)
    torch.testing.assert_close(together["vector"], alone["vector"], rtol=0, atol=1e-11)
    torch.testing.assert_close(together["personal"], alone["personal"], rtol=0, atol=1e-11)
    if case in ("paillier", "simulated", "masked", "masked for some"):
        assert torch.equal(together["vector"], alone["vector"]), "sums of integers do not depend on their order"
    for mine, theirs in zip(written["told"], alone["told"], strict=True):
        assert mine == pytest.approx(theirs)
    assert len(written["reports"]) == len(alone["reports"]) == 3
    for mine, theirs in zip(written["reports"], alone["reports"], strict=True):
        assert mine["server"] == pytest.approx(theirs["server"], abs=1e-9)
        assert mine["server"][1] == 29
        assert len(mine["clients"]) == CLIENTS.get(case, len(theirs["clients"]))
        for left, right in zip(mine["clients"], theirs["clients"], strict=True):
            assert left == pytest.approx(right, abs=1e-9, nan_ok=True)
