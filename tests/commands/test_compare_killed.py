"""`rampart compare` as a process: killed at any moment, interrupted, with a run that fails, and on a Ray cluster."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from run_kit import TINY, records
from test_fit_killed import program

from app.federation.hooks import FederatedCallback

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL"),
]
OPTIONS = {option.removeprefix("--"): value for option, value in zip(TINY[::2], TINY[1::2], strict=True)}
MATRIX = {
    "datasets": ["digits"],
    "methods": ["fedavg", "fedavgm"],
    "defenses": {"none": None, "slow": {"configs": [], "set": {"defenses.slow": "test_compare_killed.Slow"}}},
    "set": {**OPTIONS, "trainer.max_epochs": 3},
}
NAMES = [f"digits-{method}-{defense}-s0" for method in ("fedavg", "fedavgm") for defense in ("none", "slow")]


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
    """The comparison of four tiny runs."""
    path = tmp_path_factory.mktemp("file") / "tiny.yaml"
    path.write_text("# Four tiny runs.\n" + yaml.safe_dump(MATRIX, sort_keys=False))
    return path


def environment(**variables):
    """Ours, with the callbacks of this file in reach."""
    return {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parent),
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16",
        **variables,
    }


def started(file, root, log, *options, **variables):
    """The command at work."""
    arguments = [*program(), "compare", "--config", str(file), "--root", str(root), "--jobs", "2", *options]
    with log.open("ab") as out:
        return subprocess.Popen(arguments, env=environment(**variables), stdout=out, stderr=out)


def ended(file, root, log, *options, **variables):
    """Exit code of the command."""
    return started(file, root, log, *options, **variables).wait()


def ends(root):
    """What all runs have come to: every round, and the last metrics."""
    summaries = {name: json.loads((root / "tiny" / name / "summary.json").read_text()) for name in NAMES}
    return {name: (records(root / "tiny" / name), summaries[name]["final"]) for name in NAMES}


def run_processes(root):
    """Processes of runs that are there, by the locks they hold."""
    pids = [path.read_text().strip() for path in (root / "tiny" / ".logs").glob("*.lock")]
    return [pid for pid in pids if pid and Path(f"/proc/{pid}").exists()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory, file):
    """Results of an uninterrupted comparison."""
    root = tmp_path_factory.mktemp("whole")
    assert ended(file, root, root / "log") == 0, (root / "log").read_text()
    return ends(root)


def test_killed_at_any_moment(tmp_path, file, whole):
    """kill -9 at five moments leaves no run behind; the last call ends like an uninterrupted one."""
    root, log, moments = tmp_path / "killed", tmp_path / "killed.log", random.Random(0)
    logs = root / "tiny" / ".logs"
    for _ in range(5):
        process = started(file, root, log, SECONDS_PER_CLIENT="0.2")
        try:
            deadline = time.monotonic() + 300
            while not run_processes(root) and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
            time.sleep(moments.uniform(0, 12))
        finally:
            process.kill()
            process.wait()
        deadline = time.monotonic() + 60
        while run_processes(root) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert run_processes(root) == []
    assert list(logs.glob("*.log"))
    assert ended(file, root, log) == 0, log.read_text()
    assert ends(root) == whole


def test_interrupted_and_gone_on(tmp_path, file, whole):
    """SIGINT: exit code 130, nothing left at work, and the same command goes on."""
    root, log = tmp_path / "interrupted", tmp_path / "interrupted.log"
    process = started(file, root, log, SECONDS_PER_CLIENT="0.5")
    with contextlib.ExitStack() as stack:
        stack.callback(process.kill)
        deadline = time.monotonic() + 300
        while not list(root.glob("tiny/*-slow-s0/checkpoints/round-00001.ckpt")) and time.monotonic() < deadline:
            assert process.poll() is None, log.read_text()
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130, log.read_text()
    assert run_processes(root) == []
    assert "interrupted; the same command goes on from here" in log.read_text()
    assert "failed" not in log.read_text()
    assert ended(file, root, log) == 0, log.read_text()
    assert ends(root) == whole
    assert "resumed" in log.read_text()
