"""A disk without room stops the run with one clear message, and the run goes on once there is room."""

import json
import resource
from contextlib import contextmanager

import pytest
from run_kit import INTERRUPTIBLE, UNEQUAL, Interrupter, assert_same_end, command, exit_code, leave_out_figures, train

from app.common import files
from app.results.run.checkpoints import RoundCheckpoint, damage
from app.results.run.folder import RunFolder

pytestmark = pytest.mark.usefixtures("no_figures")

OPTIONS = (*UNEQUAL, *INTERRUPTIBLE, "--model.net.hidden", "[200]")
ROUNDS = 4


@contextmanager
def largest_file(bytes_):
    """The operating system refuses to let any file grow beyond this size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_, hard))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run with enough room."""
    with pytest.MonkeyPatch.context() as patch:
        leave_out_figures(patch)
        return train(tmp_path_factory.mktemp("whole"), "whole", *OPTIONS, rounds=ROUNDS)


def assert_one_clear_message(said):
    """Cause, consequence and remedy, once, without a traceback."""
    assert said.count("error: ") == 1
    for part in ("cannot write", "consequence: the run stops here", "remedy: free some space"):
        assert part in said
    assert "Traceback" not in said


def assert_no_scraps(folder):
    """No half-written file, and every checkpoint that is there is whole."""
    assert not list(folder.rglob("*.part"))
    assert all(damage(path) is None for path in folder.glob("checkpoints/*.ckpt"))


@pytest.mark.parametrize(("round_", "last"), [(2, 1), (1, None)])
def test_no_room_for_a_checkpoint(round_, last, whole, tmp_path, monkeypatch, capsys):
    """From some round on, files of a checkpoint's size are refused by the operating system."""
    with largest_file(40_000) as limit:
        monkeypatch.setattr(Interrupter, "when", (round_, 1))
        monkeypatch.setattr(Interrupter, "act", limit)
        assert exit_code("fit", *command(tmp_path, "a", *OPTIONS, rounds=ROUNDS)) == 2
    said = capsys.readouterr().err
    assert_one_clear_message(said)
    assert f"round-0000{round_}.ckpt" in said
    folder = tmp_path / "a"
    assert_no_scraps(folder)
    assert len(list(folder.glob("checkpoints/*.ckpt"))) == (last or 0)
    monkeypatch.setattr(Interrupter, "when", None)
    train(tmp_path, "a", *OPTIONS, rounds=ROUNDS)
    assert (f"resuming from round-0000{last}.ckpt" in capsys.readouterr().out) == (last is not None)
    assert_same_end(whole, folder)


def test_no_room_for_the_transcript(whole, tmp_path, monkeypatch, capsys):
    """The broadcast of the last but one round does not fit."""
    with largest_file(40_000) as limit:
        save = RoundCheckpoint.on_train_epoch_end

        def save_then_fill(self, trainer, pl_module):
            save(self, trainer, pl_module)
            if trainer.current_epoch == ROUNDS - 3:
                limit()

        monkeypatch.setattr(RoundCheckpoint, "on_train_epoch_end", save_then_fill)
        assert exit_code("fit", *command(tmp_path, "a", *OPTIONS, rounds=ROUNDS)) == 2
    said = capsys.readouterr().err
    assert_one_clear_message(said)
    assert "transcript" in said
    assert_no_scraps(tmp_path / "a")
    train(tmp_path, "a", *OPTIONS, rounds=ROUNDS)
    assert_same_end(whole, tmp_path / "a")


def test_no_room_for_a_record(whole, tmp_path, monkeypatch, capsys):
    """Whatever file of the run cannot be written, the message is the same and the run can be resumed."""
    missing = set()

    def refuse(method):
        def wrapped(self, file, *arguments):
            if file in missing:
                raise OSError(28, "No space left on device")
            return method(self, file, *arguments)

        return wrapped

    for method in ("append_json", "append_rows", "write_json"):
        monkeypatch.setattr(RunFolder, method, refuse(getattr(RunFolder, method)))
    for name in ("plan.json", "metrics.jsonl", "clients.csv", "cost.json", "summary.json"):
        missing = {name}
        assert exit_code("fit", *command(tmp_path, "a", *OPTIONS, rounds=ROUNDS)) == 2, name
        assert_one_clear_message(capsys.readouterr().err)
        assert not (tmp_path / "a" / "summary.json").exists()
    missing = set()
    train(tmp_path, "a", *OPTIONS, rounds=ROUNDS)
    assert_same_end(whole, tmp_path / "a")


ATTACKED = (
    *("--attacks.mia", "MembershipInference", "--attacks.mia.attacks", "[yeom]", "--attacks.mia.controls", "skip"),
    *("--attacks.mia.calibrate", "false", "--attacks.mia.targets", "[uploads]"),
)
END = ("released.npz", "fairness.json", "everyone.csv", "yeom.uploads.json", "vulnerable.csv", "roc.png")


def test_no_room_for_a_result(whole, tmp_path, monkeypatch, capsys):
    """All rounds are done and saved; the released model, a result, a table or a figure does not fit."""
    write, folder = files.replace_all, tmp_path / "a"

    for name in END:

        def refuse(contents, private=True, name=name):
            if any(path.name == name for path in contents):
                raise OSError(28, "No space left on device")
            write(contents, private)

        with monkeypatch.context() as patch:
            for module in ("common.files", "result", "federation.transcript"):
                patch.setattr(f"app.{module}.replace_all", refuse)
            assert exit_code("fit", *command(tmp_path, "a", *OPTIONS, *ATTACKED, rounds=ROUNDS)) == 2, name
        assert_one_clear_message(capsys.readouterr().err)
        assert_no_scraps(folder)
        assert not (folder / "summary.json").exists()
    train(tmp_path, "a", *OPTIONS, *ATTACKED, rounds=ROUNDS)
    assert f"resuming from round-0000{ROUNDS}.ckpt" in capsys.readouterr().out
    assert_same_end(whole, folder)
    assert all(list(folder.rglob(name)) for name in END)
    assert {"fairness", "attacks"} < set(json.loads((folder / "summary.json").read_text()))


def test_folder_that_cannot_be_made(tmp_path, capsys):
    """The root is a file: nothing starts."""
    (tmp_path / "root").write_text("")
    assert exit_code("fit", *command(tmp_path / "root", "a")) == 2
    assert_one_clear_message(capsys.readouterr().err)
