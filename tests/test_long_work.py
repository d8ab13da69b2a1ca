"""Progress of long work: lines in a log, a bar on a terminal, silence where it was asked for."""

import io

import pytest

from app.common.progress import Step, in_words, output, reported, track


class Terminal(io.StringIO):
    """Text that claims to be shown on a terminal."""

    def isatty(self):
        """It is."""
        return True


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is moved."""
    now = [100.0]
    monkeypatch.setattr("app.common.progress.time.monotonic", lambda: now[0])
    return now


def test_lines_say_what_is_done_and_how_much_is_left(clock, capsys):
    """At the start, at most every ten seconds, and at the end."""
    with reported(shown=True), Step("shadow federations", 16, delay=0) as step:
        for _ in range(16):
            clock[0] += 4
            step.update()
    assert capsys.readouterr().out.splitlines() == [
        "shadow federations: 0 of 16",
        "shadow federations: 3 of 16, about 52 s left",
        "shadow federations: 6 of 16, about 40 s left",
        "shadow federations: 9 of 16, about 28 s left",
        "shadow federations: 12 of 16, about 16 s left",
        "shadow federations: 15 of 16, about 4 s left",
        "shadow federations: 16 of 16",
    ]


def test_short_work_is_not_reported(clock, capsys):
    """Hundreds of steps that take less than a second each would flood a log."""
    with reported(shown=True):
        for _ in track(range(50), "attack network", "epochs"):
            clock[0] += 0.01
    assert capsys.readouterr().out == ""


def test_every_attack_is_named_when_it_begins(clock, capsys):
    """However short the one before was: a long one must not look like it."""
    with reported(shown=True):
        for _ in track(["yeom", "lira"], "membership inference", "attacks", name=str):
            clock[0] += 5
    assert capsys.readouterr().out.splitlines() == [
        "membership inference: 1 of 2 attacks, yeom",
        "membership inference: 2 of 2 attacks, lira, about 5 s left",
        "membership inference: 2 of 2 attacks",
    ]


def test_the_same_lines_in_a_file(tmp_path, capsys):
    """With the time of day, also where the terminal stays silent; the outer context decides."""
    log = tmp_path / "progress.log"
    with reported(shown=False, log=log), reported(shown=True), Step("controls of yeom", delay=0):
        pass
    assert capsys.readouterr() == ("", "")
    (line,) = log.read_text().splitlines()
    assert line[20:] == "controls of yeom"
    assert log.stat().st_mode & 0o777 == 0o600
    assert output().log is None


def test_a_bar_on_a_terminal(clock, monkeypatch, capsys):
    """Instead of lines; none where progress is not shown."""
    for shown in (True, False):
        terminal = Terminal()
        monkeypatch.setattr("sys.stderr", terminal)
        with reported(shown):
            for _ in track(range(4), "drawing", "figures", delay=0):
                pass
        assert ("drawing" in terminal.getvalue()) is shown
    assert capsys.readouterr().out == ""


def test_the_bar_of_a_single_step_can_be_switched_off(monkeypatch):
    """Off means off, also on a terminal."""
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    with Step("encrypting", 3, delay=0, shown=False) as step:
        step.update(3)
    assert terminal.getvalue() == ""


def test_outside_of_a_run_nothing_is_printed(capsys):
    """Where output goes to a pipe, as for callers of single functions."""
    for _ in track(range(4), "drawing", delay=0):
        pass
    assert capsys.readouterr() == ("", "")


def test_a_log_that_cannot_be_written_ends_no_work(tmp_path, capsys):
    """Its folder is missing."""
    with reported(shown=True, log=tmp_path / "none" / "progress.log"), Step("drawing", delay=0):
        pass
    assert capsys.readouterr().out == "drawing\n"


def test_errors_are_noted_with_what_was_done():
    """From the innermost step outwards."""
    with pytest.raises(MemoryError) as caught, Step("attacks", 3), Step("attack network", 9, "epochs"):
        raise MemoryError
    assert caught.value.__notes__ == [
        "attack network: 0 of 9 epochs",
        "attacks: 0 of 3",
    ]


@pytest.mark.parametrize(("seconds", "words"), [(0.4, "0 s"), (89, "89 s"), (90, "2 min"), (7500, "2 h 5 min")])
def test_durations_in_words(seconds, words):
    """With the unit that suits them."""
    assert in_words(seconds) == words
