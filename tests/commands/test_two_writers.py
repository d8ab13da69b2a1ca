"""Two processes that want one run's folder: the second is refused at once, and the first does not notice."""

import sys

import pytest
from holdup import HELD
from run_kit import command, exit_code, records
from test_fit_killed import held

ROUNDS = 3


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="the lock is another one there")
def test_the_second_process_is_refused(tmp_path, capsys):
    """Another fit, one that overwrites, and an attack; the first ends as if alone."""
    folder = tmp_path / "a"
    with held(command(tmp_path, "a", *HELD, rounds=ROUNDS), tmp_path, 2) as (process, file):
        for option in ("false", "true"):
            again = command(tmp_path, "a", *HELD, "--run.overwrite", option, rounds=ROUNDS)
            assert exit_code("fit", *again) == 2
            said = capsys.readouterr().err
            assert f"another process ({process.pid}) is writing to {folder}" in said
            assert "remedy: wait for it or stop it, or choose another --run.name" in said
        assert exit_code("attack", str(folder)) == 2
        assert "is not finished" in capsys.readouterr().err
        file.unlink()
        assert process.wait(300) == 0, (tmp_path / "log").read_text()
    assert [record["round"] for record in records(folder)] == [1, 2, 3]
