"""Shadow models are trained by all processes of a run, and attacks find what they find on one."""

import json
import pickle

import pytest
import shadows_script
from federation_kit import LocalTraining, sgd, small_federation
from process_kit import SCRIPTS, on_two_processes

from app.federation.execution.helpers import Helpers
from callbacks.attacks.membership_inference import public_knowledge
from callbacks.attacks.shared_shadows import CentralTraining, _can_be_sent

TRAINED = {"central": 3 * [0, 1, 2, 3], "federated": [0, 1, 2, 3], "taxonomy": 2 * [0, 1, 2, 3]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What two processes wrote; a deadlock ends in a timeout."""
    place = tmp_path_factory.mktemp("two_processes")
    on_two_processes(SCRIPTS / "shadows_script.py", place)
    return place


@pytest.mark.slow
@pytest.mark.parametrize("case", shadows_script.CASES)
def test_both_processes_train_and_scores_are_equal(folder, case):
    """Each process trains half of the shadows; the first one's scores are those of a run on one process."""
    first, second = (json.loads((folder / f"{case}-{rank}.json").read_text()) for rank in (0, 1))
    assert len(first["trained"]) == len(second["trained"]) == len(TRAINED[case]) / 2
    assert sorted(first["trained"] + second["trained"]) == sorted(TRAINED[case])
    assert second["scores"] == {}, "attacks run on the first process"
    assert first["scores"] == shadows_script.outcome(case, devices=1)
    assert first["scores"]


@pytest.mark.slow
def test_failures_end_instead_of_hanging(folder):
    """That of a helper reaches the first process, which may go on; that of the first process ends the helpers."""
    assert "process 1 of the run has failed" in (folder / "second.txt").read_text()
    assert "ZeroDivisionError: no square on process 1" in (folder / "second.txt").read_text()
    assert json.loads((folder / "squares.json").read_text()) == [9, 25, 16, 49]
    assert (folder / "failed-0.txt").read_text() == "ValueError: the attack is wrong"
    assert (folder / "failed-1.txt").read_text() == "RuntimeError: the first process of the run has failed"


def test_one_process_has_no_helpers():
    """The work is simply done."""
    federation = small_federation()
    federation._trainer = type("Trainer", (), {"world_size": 1, "is_global_zero": True})()
    done = []
    Helpers(federation).run(lambda: done.append(federation.helpers.available))
    assert done == [False]


def test_what_cannot_be_sent_is_trained_here():
    """An optimiser that is a local function cannot be given to another process."""
    parts = (public_knowledge, (0.1,), {}, (1,))
    assert _can_be_sent(CentralTraining(*parts))
    local = LocalTraining(optimizer=lambda parameters: sgd(0.1)(parameters))
    assert not _can_be_sent(CentralTraining(public_knowledge, (0.1,), {"local": local}, (1,)))
    assert pickle.loads(pickle.dumps(CentralTraining(*parts))).knowledge_of is public_knowledge
    assert _can_be_sent(CentralTraining(public_knowledge, (0.1,), {"local": LocalTraining()}, (1,)))
