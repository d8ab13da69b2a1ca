"""A run that was stopped ends, once resumed, bit for bit where an uninterrupted one ends."""

import re
import shutil
import signal

import pytest
import torch
from run_kit import INTERRUPTIBLE, UNEQUAL, Interrupter, assert_same_end, command, exit_code, records, train

from app.commands.fit import fit

pytestmark = pytest.mark.usefixtures("no_figures")

CASES = {
    "momentum, unequal clients, threads": (*UNEQUAL, "--model.executor", "threads"),
    "adaptive server, vectorised": ("--config", "fedadam", "--model.executor", "vectorised"),
    "local head, in sequence": (
        "--config",
        "local-head",
        "--model.executor",
        "sequence",
        "--model.participation",
        "0.7",
    ),
    "nothing sent, threads": ("--config", "local", "--model.executor", "threads"),
    "fair server, dropout, schedule": (
        *(
            "--config",
            "qffl",
            "--model.net.dropout",
            "0.3",
            "--model.local.lr_schedule",
            "torch.optim.lr_scheduler.StepLR",
        ),
        *("--model.local.lr_schedule.step_size", "2"),
    ),
}
ROUNDS = 5


class PowerCutError(Exception):
    """The run is over, at once."""


def cut():
    """Raise in the middle of a round."""
    raise PowerCutError


@pytest.fixture
def interrupt(monkeypatch):
    """Start a run that is cut off when the given client of the given round is ready; returns its folder."""

    def start(root, name, *options, when=(4, 3), rounds=ROUNDS):
        monkeypatch.setattr(Interrupter, "when", when)
        monkeypatch.setattr(Interrupter, "act", cut)
        with pytest.raises(PowerCutError):
            fit(command(root, name, *INTERRUPTIBLE, *options, rounds=rounds))
        monkeypatch.setattr(Interrupter, "when", None)
        return root / name

    return start


@pytest.mark.parametrize("case", CASES)
def test_cut_in_the_middle_of_a_round(case, tmp_path, interrupt, capsys):
    """Two of three or more clients of round 4 were done; the round is repeated as if nothing had happened."""
    options = CASES[case]
    whole = train(tmp_path, "whole", *INTERRUPTIBLE, *options, rounds=ROUNDS)
    part = interrupt(tmp_path, "part", *options, when=(4, 2 if "0.7" in options else 3))
    assert [record["round"] for record in records(part)] == [1, 2, 3]
    assert not (part / "summary.json").exists()
    capsys.readouterr()
    train(tmp_path, "part", *INTERRUPTIBLE, *options, rounds=ROUNDS)
    assert "resuming from round-00003.ckpt" in capsys.readouterr().out
    assert_same_end(whole, part)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """An uninterrupted run, and one that was cut off in round 4 of 5."""
    root = tmp_path_factory.mktemp("pair")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("callbacks.recorders.run_recorder.draw_accuracy", lambda *_: None)
        patch.setattr("datamodules.base.FederatedDataModule.write_table", lambda *_: None)
        whole = train(root, "whole", *INTERRUPTIBLE, *UNEQUAL, rounds=ROUNDS)
        patch.setattr(Interrupter, "when", (4, 3))
        patch.setattr(Interrupter, "act", cut)
        with pytest.raises(PowerCutError):
            train(root, "part", *INTERRUPTIBLE, *UNEQUAL, rounds=ROUNDS)
    return whole, root / "part"


@pytest.fixture
def damaged(pair, tmp_path):
    """A fresh copy of the run that was cut off, and the uninterrupted one."""
    whole, part = pair
    return whole, shutil.copytree(part, tmp_path / "part")


def truncate(path):
    """Half the file is gone."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path):
    """One bit in the middle is wrong."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def unsign(path):
    """The checksum is missing."""
    path.with_name(path.name + ".sha256").unlink()


def empty(path):
    """Nothing was written."""
    path.write_bytes(b"")


@pytest.mark.parametrize("harm", [truncate, flip, unsign, empty])
def test_damaged_newest_checkpoint_costs_one_round(harm, damaged, capsys):
    """A warning, and the run goes on from the checkpoint before, to the same end."""
    whole, part = damaged
    harm(part / "checkpoints" / "round-00003.ckpt")
    train(part.parent, "part", *INTERRUPTIBLE, *UNEQUAL, rounds=ROUNDS)
    said = capsys.readouterr()
    assert re.search(r"warning: .*round-00003\.ckpt is damaged .*; going back to the one before", said.err)
    assert "resuming from round-00002.ckpt" in said.out
    assert_same_end(whole, part)


def test_all_checkpoints_damaged(damaged, capsys):
    """A warning for each, and the run starts from the first round, to the same end."""
    whole, part = damaged
    for path in (part / "checkpoints").glob("*.ckpt"):
        flip(path)
    train(part.parent, "part", *INTERRUPTIBLE, *UNEQUAL, rounds=ROUNDS)
    said = capsys.readouterr()
    assert re.search(r"warning: .*round-00003\.ckpt is damaged .*; going back to the one before", said.err)
    assert re.search(r"warning: .*round-00002\.ckpt is damaged .*; starting from the first round", said.err)
    assert "resuming" not in said.out
    assert_same_end(whole, part)


def test_cut_after_the_last_checkpoint(damaged, pair, tmp_path, capsys):
    """All rounds were trained but not summarised: repeating the command only writes the summary."""
    whole, _ = damaged
    late = shutil.copytree(pair[0], tmp_path / "late")
    (late / "summary.json").unlink()
    (late / "transcript" / "released.npz").unlink()
    train(tmp_path, "late", *INTERRUPTIBLE, *UNEQUAL, rounds=ROUNDS)
    assert "finished after 5 rounds" in capsys.readouterr().out
    assert_same_end(whole, late)
    assert (late / "summary.json").exists()


def test_unfinished_run_can_be_given_more_rounds(damaged):
    """The transcript then holds the last two rounds of the longer run, and nothing of the shorter one's plan."""
    _, part = damaged
    train(part.parent, "part", *INTERRUPTIBLE, *UNEQUAL, rounds=7)
    kept = sorted(path.name for path in (part / "transcript").glob("round-*"))
    assert kept == ["round-00006.npz", "round-00007.npz"]
    assert [record["round"] for record in records(part)] == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.usefixtures("no_figures")
def test_finished_run_can_be_given_more_rounds(tmp_path, capsys):
    """It ends where a run of that length ends; fewer rounds or other settings are refused."""
    whole, longer = (train(tmp_path, name, *UNEQUAL, rounds=rounds) for name, rounds in (("whole", 4), ("longer", 2)))
    capsys.readouterr()
    train(tmp_path, "longer", *UNEQUAL, rounds=4)
    assert "resuming from round-00002.ckpt" in capsys.readouterr().out
    assert_same_end(whole, longer)
    assert exit_code("fit", *command(tmp_path, "longer", *UNEQUAL, rounds=4)) == 2
    assert exit_code("fit", *command(tmp_path, "longer", *UNEQUAL, rounds=3)) == 2
    assert "give it more rounds" in capsys.readouterr().err
    assert exit_code("fit", *command(tmp_path, "longer", *UNEQUAL, "--model.seed", "5", rounds=6)) == 2
    assert (longer / "summary.json").exists(), "a refused run stays finished"


def test_keyboard_interrupt_tells_how_to_resume(tmp_path, monkeypatch, capsys):
    """Ctrl+C: exit code 130, a hint, no summary; the run then resumes."""
    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(Interrupter, "when", (2, 1))
    monkeypatch.setattr(Interrupter, "act", lambda: signal.raise_signal(signal.SIGINT))
    try:
        assert exit_code("fit", *command(tmp_path, "a", *INTERRUPTIBLE)) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    said = capsys.readouterr()
    assert "--run.name a resumes the run" in said.out
    assert "Traceback" not in said.err
    assert not (tmp_path / "a" / "summary.json").exists()
    monkeypatch.setattr(Interrupter, "when", None)
    train(tmp_path, "a", *INTERRUPTIBLE)
    assert len(records(tmp_path / "a")) == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_request_to_terminate_ends_a_run_after_its_round(number, tmp_path, monkeypatch, capsys):
    """SIGTERM, and SIGHUP of a closed terminal: exit code 130, the round is kept, and the run then resumes."""
    monkeypatch.setattr(Interrupter, "when", (2, 1))
    monkeypatch.setattr(Interrupter, "act", lambda: signal.raise_signal(number))
    assert exit_code("fit", *command(tmp_path, "exp/a", *INTERRUPTIBLE)) == 130
    assert "--run.name exp/a resumes the run" in capsys.readouterr().out
    assert len(records(tmp_path / "exp" / "a")) == 2
    monkeypatch.setattr(Interrupter, "when", None)
    train(tmp_path, "exp/a", *INTERRUPTIBLE)
    assert len(records(tmp_path / "exp" / "a")) == 3


def test_a_request_to_terminate_in_the_last_round(tmp_path, monkeypatch):
    """What follows the last round is left to the next start."""
    monkeypatch.setattr(Interrupter, "when", (3, 1))
    monkeypatch.setattr(Interrupter, "act", lambda: signal.raise_signal(signal.SIGHUP))
    assert exit_code("fit", *command(tmp_path, "a", *INTERRUPTIBLE)) == 130
    assert not (tmp_path / "a" / "summary.json").exists()
    monkeypatch.setattr(Interrupter, "when", None)
    train(tmp_path, "a", *INTERRUPTIBLE)
    assert len(records(tmp_path / "a")) == 3


def test_two_checkpoints_are_kept_and_hold_no_code(pair):
    """The last two rounds, each with its checksum, readable as plain data."""
    names = sorted(path.name for path in (pair[0] / "checkpoints").iterdir())
    rounds = ("round-00004.ckpt", "round-00005.ckpt")
    assert names == sorted([*rounds, *(f"{name}.sha256" for name in rounds)])
    assert torch.load(pair[0] / "checkpoints" / rounds[1], weights_only=True)["epoch"] == 4
