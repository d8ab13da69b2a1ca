"""`rampart compare` as a process: killed at any moment, interrupted, with a run that fails, and on a Ray cluster."""

import contextlib
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest
import yaml
from holdup import HoldUp
from process_kit import started
from run_kit import TINY, records

from app.commands.fit import fit
from app.experiments.matrix import planned_runs
from app.experiments.reading import read_spec

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL"),
]
OPTIONS = {option.removeprefix("--"): value for option, value in zip(TINY[::2], TINY[1::2], strict=True)}
SLOW = {"slow": {"configs": [], "set": {"defenses.holdup": "holdup.HoldUp"}}}
MATRIX = {
    "datasets": ["digits"],
    "methods": ["fedavg"],
    "defenses": {**SLOW, "none": None},
    "set": {**OPTIONS, "trainer.max_epochs": 5},
}
NAMES = ["digits-fedavg-slow-s0", "digits-fedavg-none-s0"]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """The comparison of two tiny runs."""
    path = tmp_path_factory.mktemp("file") / "tiny.yaml"
    path.write_text("# Two tiny runs.\n" + yaml.safe_dump(MATRIX, sort_keys=False))
    return path


def comparing(file, root, log, *options, **variables):
    """The command at work."""
    arguments = ["compare", "--config", file, "--root", root, "--jobs", "2", *options]
    return started("-m", "app", *arguments, out=log, **variables)


def ended(file, root, log, *options, **variables):
    """Exit code of the command."""
    return comparing(file, root, log, *options, **variables).wait()


def ends(root, names=NAMES):
    """What runs have come to: every round, and the last metrics."""
    summaries = {name: json.loads((root / "tiny" / name / "summary.json").read_text()) for name in names}
    return {name: (records(root / "tiny" / name), summaries[name]["final"]) for name in names}


def run_processes(root):
    """Processes of runs that are there, by the locks they hold."""
    pids = [path.read_text().strip() for path in (root / "tiny" / ".logs").glob("*.lock")]
    return [pid for pid in pids if pid and Path(f"/proc/{pid}").exists()]


def wait_until(condition, process=None, log=None):
    """Wait for something, as long as a process is at work."""
    deadline = time.monotonic() + 600
    while not condition():
        assert process is None or process.poll() is None, log.read_text()
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, file):
    """Results of an uninterrupted comparison."""
    root = tmp_path_factory.mktemp("whole")
    assert ended(file, root, root / "log") == 0, (root / "log").read_text()
    return ends(root)


def test_runs_are_those_of_fit(tmp_path, file, whole):
    """Forked from a preloaded process, they give the numbers of the same command in this process, bit for bit."""
    for planned in planned_runs(read_spec(str(file))):
        assert fit([*planned.arguments, "--run.root", str(tmp_path / "tiny"), "--run.name", planned.name]) == 0
    assert ends(tmp_path) == whole


def rounds_done(root):
    """Rounds that all runs together have recorded."""
    return sum(path.read_bytes().count(b"\n") for path in root.glob("tiny/*/metrics.jsonl"))


def test_killed_at_any_moment(tmp_path, file, whole):
    """kill -9 at three of ten rounds leaves no process behind; the last call ends like an uninterrupted one."""
    root, log, moments = tmp_path / "killed", tmp_path / "killed.log", random.Random(0)
    for rounds in sorted(moments.sample(range(1, 10), 3)):
        process = comparing(file, root, log, SECONDS_PER_CLIENT="0.1")
        try:
            wait_until(lambda rounds=rounds: rounds_done(root) >= rounds and run_processes(root), process, log)
            time.sleep(moments.uniform(0, 0.25))
        finally:
            process.kill()
        assert process.wait() == -signal.SIGKILL
        wait_until(lambda: not run_processes(root))
    assert ended(file, root, log) == 0, log.read_text()
    assert "resumed" in log.read_text()
    assert ends(root) == whole


def test_interrupted_and_gone_on(tmp_path, file, whole):
    """SIGINT: exit code 130, nothing left at work, and the same command goes on."""
    root, log = tmp_path / "interrupted", tmp_path / "interrupted.log"
    process = comparing(file, root, log, HOLD=f"2 {tmp_path / 'held'}")
    with contextlib.ExitStack() as stack:
        stack.callback(process.kill)
        wait_until((tmp_path / "held").exists, process, log)
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130, log.read_text()
    assert run_processes(root) == []
    assert "interrupted; the same command goes on from here" in log.read_text()
    assert "failed" not in log.read_text()
    assert ended(file, root, log) == 0, log.read_text()
    assert ends(root) == whole
    assert "resumed" in log.read_text()


def test_one_failing_run(tmp_path, file, whole):
    """The next one is run, exit code 1, and the reason is shown; the next call makes up for it."""
    root, log = tmp_path / "failing", tmp_path / "failing.log"
    assert ended(file, root, log, "--jobs", "1", FAILING_RUN=NAMES[0]) == 1
    assert [path.parent.name for path in root.glob("tiny/*/summary.json")] == [NAMES[1]]
    assert "this run was told to fail" in log.read_text()
    assert ended(file, root, log) == 0, log.read_text()
    assert ends(root) == whole


def test_ray_gives_the_same(tmp_path, whole, monkeypatch):
    """A worker of a cluster is killed with the run that it has begun, which another one ends from where it was."""
    pytest.importorskip("ray")
    one, root, log, name = tmp_path / "tiny.yaml", tmp_path / "ray", tmp_path / "ray.log", NAMES[0]
    one.write_text("# The first run alone.\n" + yaml.safe_dump({**MATRIX, "defenses": SLOW}))
    begin(planned_runs(read_spec(str(one)))[0], root, monkeypatch)
    lock = root / "tiny" / ".logs" / f"{name}.lock"
    process = comparing(one, root, log, "--engine", "ray")
    with contextlib.ExitStack() as stack:
        stack.callback(process.kill)
        wait_until(lambda: lock.exists() and lock.read_text().endswith("\n"), process, log)
        run = int(lock.read_text())
        worker = parent_of(parent_of(run))
        assert "ray::" in Path(f"/proc/{worker}/cmdline").read_text()
        os.kill(worker, signal.SIGKILL)
        assert process.wait() == 0, log.read_text()
    assert not Path(f"/proc/{run}").exists()
    assert lock.with_suffix(".log").read_text().count("$ ") == 2
    assert "resuming from round-00001.ckpt" in lock.with_suffix(".log").read_text()
    assert ends(root, [name]) == {name: whole[name]}


def begin(planned, root, monkeypatch):
    """A run that was cut off in its second round."""

    def cut(self, trainer, federation, update):
        if update.round == 1:
            raise EOFError

    with monkeypatch.context() as patch:
        patch.setattr(HoldUp, "on_client_update", cut)
        with pytest.raises(EOFError):
            fit([*planned.arguments, "--run.root", str(root / "tiny"), "--run.name", planned.name])


def parent_of(pid):
    """The process that started a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
