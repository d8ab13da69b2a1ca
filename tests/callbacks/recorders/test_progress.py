"""Progress: a line per round in a log, a bar on a terminal."""

import io
import re

import pytest
from run_kit import UNEQUAL, command, records, train

from app.attacks.controls import attack_controls
from app.commands.attack import attack
from app.configuration import expand, run_parser
from app.run import run_of
from callbacks.recorders.progress import FederationProgress

pytestmark = pytest.mark.usefixtures("no_figures")

LINE = re.compile(
    r"round (?P<round>\d)/3  (?P<clients>\d) clients  server (?P<server>[\d.]+)%  "
    r"trained models (?P<mean>[\d.]+)% "
    r"\(worst (?P<worst>[\d.]+)%\)  [\d.]+ s  \d+:\d\d:\d\d left"
)


class Terminal(io.StringIO):
    """Text that claims to be shown on a terminal."""

    def isatty(self):
        """It is."""
        return True


def test_one_line_per_round_in_a_log(tmp_path, capsys):
    """Round, clients, accuracies and the time left; the numbers are those of metrics.jsonl."""
    folder = train(tmp_path, "a", *UNEQUAL)
    output = capsys.readouterr()
    lines = [match for line in output.out.splitlines() if (match := LINE.fullmatch(line))]
    assert [int(line["round"]) for line in lines] == [1, 2, 3]
    for line, record in zip(lines, records(folder), strict=True):
        assert int(line["clients"]) == 4
        assert float(line["server"]) == pytest.approx(100 * record["server/accuracy"], abs=0.051)
        assert float(line["mean"]) == pytest.approx(100 * record["clients/trained_own/mean"], abs=0.051)
        assert float(line["worst"]) == pytest.approx(100 * record["clients/trained_own/worst"], abs=0.051)
    assert "Digits: 6 clients with" in output.out
    assert "widths 1 and 0.5" in output.out
    assert "\r" not in output.out + output.err


def test_bar_on_a_terminal(tmp_path, capsys, monkeypatch):
    """A bar that moves within the round, and no lines besides it."""
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    train(tmp_path, "a", "--model.executor", "sequence")
    assert not [line for line in capsys.readouterr().out.splitlines() if line.startswith("round ")]
    shown = terminal.getvalue()
    assert "3/3 rounds" in shown
    assert re.search(r"3/3 rounds .*server [\d.]+%  trained models [\d.]+% \(worst [\d.]+%\)  0:00:00 left", shown)
    assert re.findall(r"0/3 rounds .*?clients (\d/4)", shown.replace("\r", "\n")) == ["1/4", "2/4", "3/4", "4/4"]


def test_time_left_is_the_pace_so_far(tmp_path, monkeypatch):
    """Three of four rounds in 30 seconds: one more takes 10."""
    parser = run_parser()
    run = run_of(parser, parser.parse_args(expand(command(tmp_path, "a", rounds=4)))).fit()
    [progress] = [callback for callback in run.trainer.callbacks if isinstance(callback, FederationProgress)]
    run.trainer.fit_loop.epoch_progress.current.processed = 2
    run.trainer.fit_loop.epoch_progress.current.completed = 2
    monkeypatch.setattr("callbacks.recorders.progress.time.monotonic", lambda: progress._started + 30)
    assert run.federation.clients_done == 4, "the last round counts as done"
    assert progress._left(run.trainer, run.federation) == "0:00:10"


ATTACKED = ("--attacks.mia", "MembershipInference", "--attacks.mia.attacks", "[yeom, modified-entropy]")
ATTACKED += ("--attacks.mia.calibrate", "false")
AUDITED = ("--data.holdout.clients", "0.3", "--data.holdout.population", "0.2", "--data.holdout.shadow", "0.2")


def test_attacks_and_rounds_are_reported(tmp_path, capsys):
    """Each attack when it begins, also in the folder, where rounds are; nothing on the terminal where that is asked."""
    attack_controls.cache_clear()  # which may have judged these attacks for another test
    folder = train(tmp_path, "a", *ATTACKED, *AUDITED, rounds=2)
    begun = [line for line in capsys.readouterr().out.splitlines() if line.startswith("membership inference: ")]
    assert begun[0] == "membership inference: 1 of 4 attacks, yeom on global, round 2"
    assert begun[3].startswith("membership inference: 4 of 4 attacks, modified-entropy on uploads, round 2")
    lines = [line[20:] for line in (folder / "progress.log").read_text().splitlines()]
    assert [line.split("  ")[0] for line in lines[:2]] == ["round 1/2", "round 2/2"]
    assert [line for line in lines if line.startswith("membership inference: ")] == begun
    assert "controls of yeom" in lines
    silent = ("--trainer.enable_progress_bar", "false", "--attacks.mia.controls", "skip")
    quiet = train(tmp_path, "b", *ATTACKED, *AUDITED, *silent, rounds=1)
    assert "attacks, yeom" not in capsys.readouterr().out
    assert "1 of 4 attacks, yeom on global, round 1" in (quiet / "progress.log").read_text()
    assert attack([str(folder), "--attacks", "yeom", "--targets", "global", "--controls", "skip"]) == 0
    assert "membership inference: 1 of 1 attacks, yeom on global, round 2" in capsys.readouterr().out
