"""The folder of a comparison: states of runs, what is stored about them, and who may work there."""

import json
import os
import subprocess
import sys

import pytest
import yaml
from comparison_kit import spec_of

from app.common.errors import UserError
from app.experiments.folder import ComparisonFolder, State
from app.experiments.locks import at_work
from app.experiments.matrix import planned_runs
from app.experiments.parsing import ParsedRun
from app.results.run.store import COMPARISON

CONFIG = {"trainer": {"max_epochs": 3}, "model": {"net": "MLP", "workers": None}, "data": {"a": 1}}
LOCKER = """
import fcntl, os, sys, time
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
print(os.getpid(), file=file, flush=True)
print("locked", flush=True)
time.sleep(120)
"""


@pytest.fixture
def spec(tmp_path):
    """Two methods, one seed."""
    return spec_of(tmp_path)


def parsed(runs, config=CONFIG):
    """The same configuration for every combination."""
    return {planned.combination: ParsedRun(config) for planned in runs}


def leave_run(folder, name, config=CONFIG, finished=True):
    """What a run leaves behind."""
    folder.run(name).mkdir()
    (folder.run(name) / "config.yaml").write_text(yaml.safe_dump(config))
    (folder.run(name) / "metrics.jsonl").write_text('{"round": 1}\n{"round": 2}\n{"rou')
    if finished:
        (folder.run(name) / "summary.json").write_text("{}")


def test_states(folder):
    """Nothing, a configuration, a summary."""
    leave_run(folder, "part", finished=False)
    leave_run(folder, "whole")
    assert [folder.state(name) for name in ("none", "part", "whole")] == [State.NEW, State.PARTLY, State.FINISHED]
    assert [folder.rounds_done(name) for name in ("none", "part")] == [0, 2]


def test_what_is_stored(folder, spec):
    """Places and arguments of all runs, the baseline, the purpose."""
    runs = planned_runs(spec)
    folder.write(spec, runs)
    record = json.loads((folder.path / COMPARISON).read_text())
    assert (record["name"], record["purpose"], record["published"]) == ("mine", "What it is for.", [])
    assert record["scale"] == "full"
    assert record["baseline"] == {"method": "fedavg", "defense": "none"}
    assert [entry["run"] for entry in record["cells"]] == [planned.name for planned in runs]
    first = {"dataset": "digits", "method": "fedavg", "defense": "none", "seed": 0}
    assert record["cells"][0] == {"run": runs[0].name, **first, "arguments": list(runs[0].arguments)}


@pytest.mark.parametrize("finished", [True, False])
def test_other_arguments_are_noticed(folder, spec, finished, tmp_path):
    """A run that was made under other options is not taken for the new one, finished or not."""
    folder.write(spec, planned_runs(spec))
    leave_run(folder, "digits-fedavg-none-s0", finished=finished)
    changed = planned_runs(spec_of(tmp_path, set={"trainer.max_epochs": 9}))
    [problem] = folder.problems(changed, parsed(changed))
    assert "digits-fedavg-none-s0 was made with other settings" in problem.cause
    assert "now --trainer.max_epochs 9" in problem.cause
    assert "delete" in problem.remedy
    assert not list(folder.problems(planned_runs(spec), parsed(changed)))


def test_edited_recipes_are_noticed(folder, spec):
    """The arguments are the same, but they mean something else now."""
    runs = planned_runs(spec)
    folder.write(spec, runs)
    leave_run(folder, "digits-fedavg-none-s0")
    [problem] = folder.problems(runs, parsed(runs, {**CONFIG, "data": {"a": 2}}))
    assert "(data differ)" in problem.cause


def test_runs_that_are_no_longer_asked_for_keep_their_places(folder, spec, tmp_path):
    """They are still in the folder, so they are still labelled; those that were never run are forgotten."""
    folder.write(spec, planned_runs(spec))
    leave_run(folder, "digits-heterofl-none-s0")
    smaller = spec_of(tmp_path, methods=["fedprox"])
    runs = planned_runs(smaller)
    assert folder.left_over(runs) == ["digits-heterofl-none-s0"]
    folder.write(smaller, runs)
    record = json.loads((folder.path / COMPARISON).read_text())
    assert [entry["run"] for entry in record["cells"]] == ["digits-fedprox-none-s0", "digits-heterofl-none-s0"]


def test_folder_of_a_single_run_is_refused(tmp_path):
    """A comparison does not move into a run."""
    (tmp_path / "config.yaml").touch()
    with pytest.raises(UserError, match="choose another --name"):
        ComparisonFolder(tmp_path).claim()


def test_only_one_at_a_time(folder):
    """The second is record who is there; after kill -9 of the first, the lock is free."""
    process = subprocess.Popen(
        [sys.executable, "-c", LOCKER, str(folder.path / ".lock")], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "locked\n"
        with pytest.raises(UserError, match=f"process {process.pid}"), at_work(folder.path):
            pass
    finally:
        process.kill()
        process.wait()
    with at_work(folder.path):
        assert (folder.path / ".lock").read_text() == f"{os.getpid()}\n"


def test_threads_of_a_run_stay_what_they_were(folder, spec):
    """A resumed run gets the number it was begun with, as a run may not change its settings on the way."""
    runs = planned_runs(spec)
    begun = {**CONFIG, "model": {"workers": 3}}
    leave_run(folder, runs[0].name, begun, finished=False)
    jobs = [folder.job(planned, parsed(runs)[planned.combination], "mine") for planned in runs]
    assert [(job.begun, job.workers) for job in jobs] == [(True, 3), (False, None)]
    assert jobs[1].command[-6:] == ("--run.root", str(folder.path), "--run.name", runs[1].name, "--group", "mine")
    alone = folder.job(runs[1], ParsedRun({**begun, "tracking": "disabled"}), "mine")
    assert alone.command[-4:] == ("--run.figures", "false", "--group", "mine"), "the report draws them"
    job = folder.job(runs[1], ParsedRun(begun), "mine")
    assert job.workers == 3
