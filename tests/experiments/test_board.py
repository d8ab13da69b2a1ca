"""What the terminal shows while runs are at work."""

import io
import re

from comparison_kit import board_of, fake_job

from app.experiments.board import Board


class Terminal(io.StringIO):
    """A text that claims to be a terminal."""

    def isatty(self):
        return True


def leave(folder, name, rounds, finished=False):
    """Rounds of a run."""
    folder.run(name).mkdir(exist_ok=True)
    (folder.run(name) / "metrics.jsonl").write_text("{}\n" * rounds)
    if finished:
        (folder.run(name) / "summary.json").touch()


def test_lines_in_a_log(folder):
    """One for every start and end."""
    jobs = [fake_job(folder, name) for name in "ab"]
    board, out = board_of(folder, jobs)
    board.started(jobs[0])
    leave(folder, "a", 1, finished=True)
    board.tick()
    board.ended(jobs[0], 0)
    leave(folder, "b", 1)
    board.started(jobs[1])
    board.ended(jobs[1], 0)  # without a summary, it has not finished
    lines = out.getvalue().splitlines()
    assert lines[:3] == [
        "started a",
        "finished a in 0 s; 1 of 2 done; about 0 s left",
        "resumed b after round 1",
    ]
    assert lines[3].startswith("failed b (exit code 0)")
    assert board.status() == "1 of 2 done; 1 failed"


def test_attacks_after_the_last_round(folder):
    """What a run says that it is doing, where it says so."""
    job = fake_job(folder, "a")
    board, _ = board_of(folder, [job])
    board.started(job)
    leave(folder, "a", 1)
    log = folder.run("a") / "progress.log"
    for line, shown in (("round 1/1  4 clients", "closing"), ("controls of yeom", "controls of yeom")):
        log.write_text(f"2030-01-01 12:00:00 {line}\n")
        assert board.status().endswith(f"running a ({shown})")


def test_one_line_on_a_terminal(folder, monkeypatch):
    """It is redrawn in place, no wider than the terminal, and gone at the end; failures stay."""
    monkeypatch.setenv("COLUMNS", "40")
    jobs = [fake_job(folder, "a"), fake_job(folder, "a-run-with-a-very-long-name-indeed")]
    out = Terminal()
    board = Board(folder, jobs, 3, 2, out)
    for job in jobs:
        board.started(job)
    board.tick()
    assert re.fullmatch(r"\r\x1b\[K.{39}", out.getvalue())
    assert out.getvalue().endswith("3 of 5 done; running a (round 0 of 1), "[:39])
    board.ended(jobs[0], 3)
    assert "\x1b[Kfailed a (exit code 3)" in out.getvalue()
    board.close()
    assert out.getvalue().endswith("\r\x1b[K")


def test_progress_of_running_ones(folder):
    """Rounds as they are recorded; attacks and pictures come after the last."""
    job = fake_job(folder, "a")
    board, _ = board_of(folder, [job])
    board.started(job)
    assert board.status() == "0 of 1 done; running a (round 0 of 1)"
    leave(folder, "a", 1)
    assert board.status().endswith("running a (closing)")


def test_interrupted_runs_are_no_failures(folder):
    """They were asked to stop."""
    job = fake_job(folder, "a")
    board, out = board_of(folder, [job])
    board.started(job)
    board.ended(job, 130, stopping=True)
    assert (board.failures, board.interrupted) == ([], [job])
    assert "failed" not in out.getvalue()
