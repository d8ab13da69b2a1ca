"""Commands on folders that are no runs, or on runs with missing and broken files: one error with a remedy each."""

import shutil

import pytest
from PIL import Image
from run_kit import TINY, exit_code, leave_out_figures, train

from app.common.errors import UserError
from app.results.run.checkpoints import damage
from app.results.run.folder import RunFolder

COMMANDS = {
    "attack": ("--attacks", "yeom", "--controls", "skip"),
    "report": (),
    "validate": (),
    "predict": ("x.png",),
    "export": ("model.pt",),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run."""
    with pytest.MonkeyPatch.context() as patch:
        leave_out_figures(patch)
        return train(tmp_path_factory.mktemp("runs"), "a", rounds=1)


@pytest.fixture
def run(trained, tmp_path, monkeypatch):
    """A copy of a finished run, and an image in the working folder."""
    leave_out_figures(monkeypatch)
    monkeypatch.chdir(tmp_path)
    Image.new("L", (8, 8)).save("x.png")
    shutil.copytree(trained, "run")
    return tmp_path / "run"


def refusal(capsys, *arguments):
    """What a command says that ends with exit code 2."""
    assert exit_code(*map(str, arguments)) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert "  remedy: " in said
    assert len(said) < 1500
    return said


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("folder", ["nowhere", "empty", "x.png", "x" * 5000, "x/" * 2500, "a\0b"], ids=lambda f: f[:5])
def test_what_is_no_run(command, folder, run, capsys):
    """A folder that is missing, empty, a file, or that no system takes the path of."""
    (run.parent / "empty").mkdir()
    refusal(capsys, command, folder, *COMMANDS[command])


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[1]", b"null", b"{}", b'{"final": 3}'])
def test_broken_summaries(command, content, run, capsys):
    """Among them the empty file that a full disk may leave."""
    (run / "summary.json").write_bytes(content)
    assert "summary.json" in refusal(capsys, command, run, *COMMANDS[command])


@pytest.mark.parametrize("command", ["attack", "validate"])
@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[1]", b"a: [", b"model: 3"])
def test_broken_settings(command, content, run, capsys):
    """The run cannot be built again."""
    (run / "config.yaml").write_bytes(content)
    refusal(capsys, command, run, *COMMANDS[command])


@pytest.mark.parametrize("command", ["attack", "validate", "predict", "export"])
@pytest.mark.parametrize("content", [b"", b"PK", None], ids=["empty", "no archive", "gone"])
def test_broken_models(command, content, run, capsys):
    """The transcript holds the model that all of them use."""
    path = run / "transcript" / "released.npz"
    path.unlink() if content is None else path.write_bytes(content)
    assert "released.npz" in refusal(capsys, command, run, *COMMANDS[command])


@pytest.mark.parametrize("content", [b"", b"\xff", b"[1]\n", None], ids=["empty", "bytes", "list", "gone"])
def test_attack_without_rounds(content, run, capsys):
    """Nobody knows how long it was trained."""
    path = run / "metrics.jsonl"
    path.unlink() if content is None else path.write_bytes(content)
    assert "tells no round" in refusal(capsys, "attack", run, *COMMANDS["attack"])


def test_attack_without_a_transcript(run, capsys):
    """Gone, or a file in its place."""
    shutil.rmtree(run / "transcript")
    assert "has no transcript" in refusal(capsys, "attack", run)
    (run / "transcript").write_text("x")
    assert "has no transcript" in refusal(capsys, "attack", run)


def test_odd_checkpoints_are_damaged_ones(tmp_path):
    """A folder in the place of the file, and a checksum that is no text: passed over with the reason."""
    path, checksum = tmp_path / "round-00001.ckpt", tmp_path / "round-00001.ckpt.sha256"
    path.mkdir()
    checksum.write_bytes(b"\xff")
    assert "it cannot be read" in damage(path)
    path.rmdir()
    path.write_bytes(b"x")
    assert damage(path) == "its checksum does not match"


@pytest.mark.parametrize("content", [b"\xff", b"client,own\nx,y\n", b"client\n1\n"])
def test_broken_table_of_clients(content, run, capsys):
    """What the run recorded of the client is unknown."""
    (run / "everyone.csv").write_bytes(content)
    assert "everyone.csv cannot be read" in refusal(capsys, "validate", run, "--client", "1")


def test_broken_plan(run, capsys):
    """A report does without it; what must not be tracked is unknown."""
    (run / "plan.json").write_text("[1]")
    assert exit_code("report", str(run)) == 0
    with pytest.raises(UserError, match="it is unknown which metrics"):
        RunFolder(run).withheld()


def test_unreadable_folders(run, monkeypatch, capsys):
    """As on the folder of another user; the tests may run as root, so the system's answer is pretended."""

    def denied(self):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr("pathlib.Path.is_file", denied)
    assert "Permission denied" in refusal(capsys, "attack", run)


@pytest.mark.parametrize("output", ["x" * 5000, "a\0b", "x/" * 2500 + "m", "x.png/m"], ids=lambda name: name[:5])
def test_files_that_cannot_be_written(output, run, capsys):
    """Of models, tables, pages, plans."""
    refusal(capsys, "export", run, f"{output}.pt")
    refusal(capsys, "predict", run, "x.png", "--static", "--output", f"{output}.csv")
    refusal(capsys, "predict", run, output)
    refusal(capsys, "report", run, "--output", f"{output}.html")
    refusal(capsys, "plan", *TINY, "--trainer.max_epochs", "1", "--plan.folder", output)


@pytest.mark.parametrize("options", [("--trainer.max_epochs", "0"), ("--plan.rounds", "0")])
def test_a_plan_of_no_round(options, run, capsys):
    """There is nothing to show."""
    refusal(capsys, "plan", *TINY, *options)


def test_a_run_that_is_not_finished(run, capsys):
    """The command that finishes it names the folder that it is in."""
    (run / "summary.json").unlink()
    said = refusal(capsys, "attack", run)
    assert f"rampart fit --config {run / 'config.yaml'} --run.root {run.parent} --run.name run" in said
