"""Two processes that want one run's folder: the second is refused at once, and the first does not notice."""

import signal
import sys

import pytest
from run_kit import command, exit_code, records
from test_fit_killed import fitting, reached

SLOW = ("--defenses.slow", "test_fit_killed.Slow")
ROUNDS = 3


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="the lock is another one there")
def test_the_second_process_is_refused(tmp_path, capsys):
    """Another fit, one that overwrites, and an attack; the first ends as if alone."""
    folder, log = tmp_path / "a", tmp_path / "log"
    process = fitting(command(tmp_path, "a", *SLOW, rounds=ROUNDS), log, "0.2")
    try:
        reached(folder, 1, process, log)
        process.send_signal(signal.SIGSTOP)  # so that it does not end before all others were refused
        for option in ("false", "true"):
            again = command(tmp_path, "a", *SLOW, "--run.overwrite", option, rounds=ROUNDS)
            assert exit_code("fit", *again) == 2
            said = capsys.readouterr().err
            assert f"another process ({process.pid}) is writing to {folder}" in said
            assert "remedy: wait for it or stop it, or choose another --run.name" in said
        assert exit_code("attack", str(folder)) == 2
        assert "is not finished" in capsys.readouterr().err
        process.send_signal(signal.SIGCONT)
        assert process.wait(300) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()
    assert [record["round"] for record in records(folder)] == [1, 2, 3]
