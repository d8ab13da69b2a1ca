"""The installed program, killed without warning in the middle of a round."""

import os
import signal
import sys
import time
from contextlib import contextmanager

import pytest
from holdup import HELD
from process_kit import started
from run_kit import UNEQUAL, assert_same_end, command, records, train

from app.results.run.folder import NAME_VARIABLE

OPTIONS = (*UNEQUAL, *HELD, "--model.executor", "threads")
ROUNDS = 6


@contextmanager
def held(arguments, place, round_):
    """`rampart fit` held up in the middle of a round, until a file is deleted: the process and the file."""
    os.environ.pop(NAME_VARIABLE, None)  # which runs of this process leave behind
    log, file = place / "log", place / "held"
    process = started("-m", "app", "fit", *arguments, out=log, HOLD=f"{round_} {file}")
    try:
        deadline = time.monotonic() + 300
        while not file.exists():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield process, file
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_killed_run_ends_like_an_uninterrupted_one(tmp_path):
    """kill -9 in round 4 of 6, then the same command: every file and the optimiser's state are bit for bit the same."""
    whole = train(tmp_path, "whole", *OPTIONS, rounds=ROUNDS)
    folder = tmp_path / "killed"
    with held(command(tmp_path, "killed", *OPTIONS, rounds=ROUNDS), tmp_path, 4) as (process, _):
        process.kill()
        assert process.wait() == -signal.SIGKILL
    assert len(records(folder)) == 3
    assert not (folder / "summary.json").exists()
    train(tmp_path, "killed", *OPTIONS, rounds=ROUNDS)
    assert_same_end(whole, folder)
