"""The installed program, killed without warning in the middle of a round."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from process_kit import python_path, started
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


def fitting(arguments, log, seconds):
    """`rampart fit` at work, with the callbacks of this file in reach and seconds to wait after each client."""
    os.environ.pop(NAME_VARIABLE, None)  # which runs of this process leave behind
    here = python_path(Path(__file__).parent)
    return started("-m", "app", "fit", *arguments, out=log, PYTHONPATH=here, SECONDS_PER_CLIENT=seconds)


def reached(folder, round_, process, log):
    """Wait until a round is kept."""
    deadline = time.monotonic() + 300
    while not (folder / "checkpoints" / f"round-{round_:05}.ckpt").exists():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_killed_run_ends_like_an_uninterrupted_one(tmp_path):
    """kill -9 in round 4 of 6, then the same command: every file and the optimiser's state are bit for bit the same."""
    whole = train(tmp_path, "whole", *OPTIONS, rounds=ROUNDS)
    folder = tmp_path / "killed"
    process = fitting(command(tmp_path, "killed", *OPTIONS, rounds=ROUNDS), tmp_path / "log", "0.15")
    try:
        reached(folder, 3, process, tmp_path / "log")
        time.sleep(0.2)
    finally:
        process.kill()
    assert process.wait() == -signal.SIGKILL
    assert len(records(folder)) == 3
    assert not (folder / "summary.json").exists()
    train(tmp_path, "killed", *OPTIONS, rounds=ROUNDS)
    assert_same_end(whole, folder)
