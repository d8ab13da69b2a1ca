"""The installed program, killed without warning in the middle of a round."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from process_kit import python_path
from run_kit import UNEQUAL, assert_same_end, command, records, train

from app.federation.hooks import FederatedCallback
from app.results.run.folder import NAME_VARIABLE

OPTIONS = (*UNEQUAL, "--defenses.slow", "test_fit_killed.Slow", "--model.executor", "threads")
ROUNDS = 6


class Slow(FederatedCallback):
    """Where the environment says so, waits between the clients of a round."""

    def on_client_update(self, trainer, federation, update):
        """Long enough to be killed here."""
        time.sleep(float(os.environ.get("SECONDS_PER_CLIENT", "0")))


def program():
    """The command line of the product that is tested."""
    return [sys.executable, "-m", "app.cli"]


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_killed_run_ends_like_an_uninterrupted_one(tmp_path):
    """kill -9 in round 4 of 6, then the same command: every file and the optimiser's state are bit for bit the same."""
    whole = train(tmp_path, "whole", *OPTIONS, rounds=ROUNDS)
    folder = tmp_path / "killed"
    here = python_path(Path(__file__).parent)
    environment = {**os.environ, "PYTHONPATH": here, "SECONDS_PER_CLIENT": "0.3", "OMP_NUM_THREADS": "1"}
    environment.pop(NAME_VARIABLE, None)
    arguments = command(tmp_path, "killed", *OPTIONS, rounds=ROUNDS)
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([*program(), "fit", *arguments], env=environment, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + 120
            while not (folder / "checkpoints" / "round-00003.ckpt").exists():
                assert process.poll() is None, (tmp_path / "log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.05)
            time.sleep(0.4)
            process.send_signal(signal.SIGKILL)
        finally:
            process.kill()
            process.wait()
    assert process.returncode == -signal.SIGKILL
    assert len(records(folder)) == 3
    assert not (folder / "summary.json").exists()
    train(tmp_path, "killed", *OPTIONS, rounds=ROUNDS)
    assert_same_end(whole, folder)
