"""A run that was stopped ends, once resumed, bit for bit where an uninterrupted one ends."""

import functools
import re
import shutil
import signal

import pytest
import torch
from run_kit import (
    INTERRUPTIBLE,
    UNEQUAL,
    Interrupter,
    assert_same_end,
    command,
    exit_code,
    leave_out_figures,
    records,
    train,
)

from app.results.run.checkpoints import newest_usable

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
OPTIONS = (*INTERRUPTIBLE, *CASES["momentum, unequal clients, threads"])
ROUNDS = 3


class PowerCutError(Exception):
    """The run is over, at once."""


def cut():
    """Raise in the middle of a round."""
    raise PowerCutError


@pytest.fixture(scope="module")
def halves(tmp_path_factory):
    """An uninterrupted run of a case, and one that was cut off in its last round; made when it is asked for first."""

    @functools.cache
    def made(case):
        root, options = tmp_path_factory.mktemp("pair"), (*INTERRUPTIBLE, *CASES[case])
        with pytest.MonkeyPatch.context() as patch:
            leave_out_figures(patch)
            whole = train(root, "whole", *options, rounds=ROUNDS)
            patch.setattr(Interrupter, "when", (ROUNDS, 2 if "0.7" in CASES[case] else 3))
            patch.setattr(Interrupter, "act", cut)
            with pytest.raises(PowerCutError):
                train(root, "part", *options, rounds=ROUNDS)
        return whole, root / "part"

    return made


@pytest.mark.parametrize("case", CASES)
def test_cut_in_the_middle_of_a_round(case, tmp_path, halves, capsys):
    """Some of three or more clients of the last round were done; it is repeated as if nothing had happened."""
    whole, cut_off = halves(case)
    part = shutil.copytree(cut_off, tmp_path / "part")
    assert [record["round"] for record in records(part)] == [1, 2]
    assert not (part / "summary.json").exists()
    capsys.readouterr()
    train(tmp_path, "part", *INTERRUPTIBLE, *CASES[case], rounds=ROUNDS)
    assert "resuming from round-00002.ckpt" in capsys.readouterr().out
    assert_same_end(whole, part)


@pytest.fixture
def pair(halves):
    """An uninterrupted run with unequal clients, and one that was cut off in its last round."""
    return halves("momentum, unequal clients, threads")


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
def test_damaged_newest_checkpoint_is_passed_over(harm, damaged):
    """With a warning; the one before is taken."""
    checkpoints = damaged[1] / "checkpoints"
    harm(checkpoints / "round-00002.ckpt")
    with pytest.warns(UserWarning, match=r"round-00002\.ckpt is damaged .*; going back to the one before"):
        assert newest_usable(checkpoints).name == "round-00001.ckpt"


def test_damaged_newest_checkpoint_costs_one_round(damaged, capsys):
    """A warning, and the run goes on from the checkpoint before, to the same end."""
    whole, part = damaged
    flip(part / "checkpoints" / "round-00002.ckpt")
    train(part.parent, "part", *OPTIONS, rounds=ROUNDS)
    said = capsys.readouterr()
    assert re.search(r"warning: .*round-00002\.ckpt is damaged .*; going back to the one before", said.err)
    assert "resuming from round-00001.ckpt" in said.out
    assert_same_end(whole, part)


def test_all_checkpoints_damaged(damaged, capsys):
    """A warning for each, and the run starts from the first round, to the same end."""
    whole, part = damaged
    for path in (part / "checkpoints").glob("*.ckpt"):
        flip(path)
    train(part.parent, "part", *OPTIONS, rounds=ROUNDS)
    said = capsys.readouterr()
    assert re.search(r"warning: .*round-00002\.ckpt is damaged .*; going back to the one before", said.err)
    assert re.search(r"warning: .*round-00001\.ckpt is damaged .*; starting from the first round", said.err)
    assert "resuming" not in said.out
    assert_same_end(whole, part)


def test_cut_after_the_last_checkpoint(damaged, pair, tmp_path, capsys):
    """All rounds were trained but not summarised: repeating the command only writes the summary."""
    whole, _ = damaged
    late = shutil.copytree(pair[0], tmp_path / "late")
    (late / "summary.json").unlink()
    (late / "transcript" / "released.npz").unlink()
    train(tmp_path, "late", *OPTIONS, rounds=ROUNDS)
    assert "finished after 3 rounds" in capsys.readouterr().out
    assert_same_end(whole, late)
    assert (late / "summary.json").exists()


def test_unfinished_run_can_be_given_more_rounds(damaged):
    """The transcript then holds the last two rounds of the longer run, and nothing of the shorter one's plan."""
    _, part = damaged
    train(part.parent, "part", *OPTIONS, rounds=5)
    kept = sorted(path.name for path in (part / "transcript").glob("round-*"))
    assert kept == ["round-00004.npz", "round-00005.npz"]
    assert [record["round"] for record in records(part)] == [1, 2, 3, 4, 5]


def test_finished_run_can_be_given_more_rounds(pair, tmp_path, capsys):
    """It ends where a run of that length ends; fewer rounds or other settings are refused."""
    longer = train(tmp_path, "longer", *OPTIONS, rounds=2)
    capsys.readouterr()
    train(tmp_path, "longer", *OPTIONS, rounds=3)
    assert "resuming from round-00002.ckpt" in capsys.readouterr().out
    assert_same_end(pair[0], longer)
    assert exit_code("fit", *command(tmp_path, "longer", *OPTIONS, rounds=3)) == 2
    assert exit_code("fit", *command(tmp_path, "longer", *OPTIONS, rounds=2)) == 2
    assert "give it more rounds" in capsys.readouterr().err
    assert exit_code("fit", *command(tmp_path, "longer", *OPTIONS, "--model.seed", "5", rounds=6)) == 2
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
    rounds = ("round-00002.ckpt", "round-00003.ckpt")
    assert names == sorted([*rounds, *(f"{name}.sha256" for name in rounds)])
    assert torch.load(pair[0] / "checkpoints" / rounds[1], weights_only=True)["epoch"] == 2
