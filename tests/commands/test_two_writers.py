"""Two processes that want one run's folder: the second is refused at once, and the first does not notice."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from process_kit import python_path
from run_kit import command, exit_code, records
from test_fit_killed import program

from app.results.run.folder import NAME_VARIABLE

SLOW = ("--defenses.slow", "test_fit_killed.Slow")
ROUNDS = 4


def started(folder, log):
    """A process that trains a run slowly, when its first round is kept."""
    inherited = {name: value for name, value in os.environ.items() if name != NAME_VARIABLE}
    ours = {"PYTHONPATH": python_path(Path(__file__).parent), "SECONDS_PER_CLIENT": "1", "OMP_NUM_THREADS": "1"}
    arguments = [*program(), "fit", *command(folder.parent, folder.name, *SLOW, rounds=ROUNDS)]
    with log.open("wb") as out:
        process = subprocess.Popen(arguments, env=inherited | ours, stdout=out, stderr=out)
    deadline = time.monotonic() + 300
    while not (folder / "checkpoints" / "round-00001.ckpt").exists():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return process


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="the lock is another one there")
def test_the_second_process_is_refused(tmp_path, capsys):
    """Another fit, one that overwrites, and an attack; the first ends as if alone."""
    folder, log = tmp_path / "a", tmp_path / "log"
    process = started(folder, log)
    try:
        for option in ("false", "true"):
            again = command(tmp_path, "a", *SLOW, "--run.overwrite", option, rounds=ROUNDS)
            assert exit_code("fit", *again) == 2
            said = capsys.readouterr().err
            assert f"another process ({process.pid}) is writing to {folder}" in said
            assert "remedy: wait for it or stop it, or choose another --run.name" in said
        assert exit_code("attack", str(folder)) == 2
        assert "is not finished" in capsys.readouterr().err
        assert process.wait(300) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()
    assert [record["round"] for record in records(folder)] == [1, 2, 3, 4]
