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
from process_kit import python_path, started
from run_kit import TINY, records

from app.commands.fit import fit
from app.experiments.matrix import planned_runs
from app.experiments.reading import read_spec
from app.federation.hooks import FederatedCallback

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL"),
]
OPTIONS = {option.removeprefix("--"): value for option, value in zip(TINY[::2], TINY[1::2], strict=True)}
SLOW = {"slow": {"configs": [], "set": {"defenses.slow": "test_compare_killed.Slow"}}}
MATRIX = {
    "datasets": ["digits"],
    "methods": ["fedavg"],
    "defenses": {**SLOW, "none": None},
    "set": {**OPTIONS, "trainer.max_epochs": 5},
}
NAMES = ["digits-fedavg-slow-s0", "digits-fedavg-none-s0"]


class Slow(FederatedCallback):
    """Where the environment says so, waits between the clients of a round, or fails in a run of some name."""

    def on_client_update(self, trainer, federation, update):
        """Long enough to be killed here."""
        time.sleep(float(os.environ.get("SECONDS_PER_CLIENT", "0")))
        failing = os.environ.get("FAILING_RUN")
        if failing and failing in trainer.default_root_dir:
            raise ValueError("this run was told to fail")


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """The comparison of two tiny runs."""
    path = tmp_path_factory.mktemp("file") / "tiny.yaml"
    path.write_text("# Two tiny runs.\n" + yaml.safe_dump(MATRIX, sort_keys=False))
    return path


def comparing(file, root, log, *options, **variables):
    """The command at work, with the callbacks of this file in reach."""
    arguments = ["compare", "--config", file, "--root", root, "--jobs", "2", *options]
    return started("-m", "app", *arguments, out=log, PYTHONPATH=python_path(Path(__file__).parent), **variables)


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
        time.sleep(0.02)


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
    process = comparing(file, root, log, SECONDS_PER_CLIENT="0.25")
    with contextlib.ExitStack() as stack:
        stack.callback(process.kill)
        wait_until(lambda: list(root.glob("tiny/*-slow-s0/checkpoints/round-00001.ckpt")), process, log)
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


def test_ray_gives_the_same(tmp_path, whole):
    """A worker of a cluster is killed: its run is made again from where it was."""
    pytest.importorskip("ray")
    one, root, log, name = tmp_path / "tiny.yaml", tmp_path / "ray", tmp_path / "ray.log", NAMES[0]
    one.write_text("# The first run alone.\n" + yaml.safe_dump({**MATRIX, "defenses": SLOW}))
    process = comparing(one, root, log, "--engine", "ray", SECONDS_PER_CLIENT="0.15")
    with contextlib.ExitStack() as stack:
        stack.callback(process.kill)
        wait_until((root / "tiny" / name / "checkpoints" / "round-00001.ckpt").exists, process, log)
        run = int((root / "tiny" / ".logs" / f"{name}.lock").read_text())
        worker = parent_of(parent_of(run))
        assert "ray::" in Path(f"/proc/{worker}/cmdline").read_text()
        os.kill(worker, signal.SIGKILL)
        assert process.wait() == 0, log.read_text()
    assert (root / "tiny" / ".logs" / f"{name}.log").read_text().count("$ ") == 2
    assert "resuming from" in (root / "tiny" / ".logs" / f"{name}.log").read_text()
    assert ends(root, [name]) == {name: whole[name]}


def parent_of(pid):
    """The process that started a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
