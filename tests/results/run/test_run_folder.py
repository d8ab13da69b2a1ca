"""One run, one folder: when it is made, resumed, refused or replaced."""

import json
import math
import os

import pytest
from lightning.pytorch.utilities import rank_zero_only
from run_kit import INTERRUPTIBLE, Interrupter, command, exit_code, records, train

from app.common.errors import UserError
from app.common.files import LIST, finite, write_text
from app.results.run.folder import LOCK, NAME_VARIABLE, RunFolder, RunSettings

CONFIG = {"seed_everything": 0, "trainer": {}, "model": {"a": 1}, "data": {}, "defenses": {}, "tracking": "offline"}


def started(tmp_path, config=CONFIG, checkpoint=True):
    """An unfinished run."""
    folder = RunFolder(tmp_path / "run")
    folder.claim(config, overwrite=False)
    if checkpoint:
        folder.checkpoints.mkdir()
        write_text(folder.checkpoints / "round-00001.ckpt", "")
    return folder


def test_unnamed_runs_get_folders_of_their_own(tmp_path):
    """Dataset and time make the name; a second run of the same process does not land in the first one's folder."""
    settings = RunSettings(root=str(tmp_path))
    first = RunFolder.choose(settings, "digits")
    first.claim(CONFIG, overwrite=False)
    while (second := RunFolder.choose(settings, "digits")).name == first.name:
        pass  # within the same millisecond
    assert first.name.startswith("digits-2")
    assert not second.path.exists()


def test_further_processes_take_the_name_of_the_first(tmp_path, monkeypatch):
    """A process that Lightning started finds the first one's folder."""
    settings = RunSettings(root=str(tmp_path))
    first = RunFolder.choose(settings, "digits")
    assert os.environ[NAME_VARIABLE] == first.name
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    assert RunFolder.choose(settings, "digits").path == first.path


@pytest.mark.parametrize("further", ["rank", "node"])
def test_processes_started_apart_need_a_name(further, tmp_path, monkeypatch):
    """Nobody told them the name, so an unnamed run is refused; a named one is fine."""
    if further == "rank":
        monkeypatch.setattr(rank_zero_only, "rank", 1)
    else:
        monkeypatch.setenv("NODE_RANK", "1")
    with pytest.raises(UserError, match=r"--run\.name"):
        RunFolder.choose(RunSettings(root=str(tmp_path)), "digits")
    assert RunFolder.choose(RunSettings(str(tmp_path), "mine"), "digits").path == tmp_path / "mine"


def test_same_config_may_resume(tmp_path):
    """An unfinished run is claimed again; what it holds stays."""
    folder = started(tmp_path)
    folder.claim(dict(reversed(CONFIG.items())), overwrite=False)
    assert (folder.checkpoints / "round-00001.ckpt").exists()


def test_another_config_is_refused_by_part(tmp_path):
    """The message names what differs and nothing else."""
    folder = started(tmp_path)
    with pytest.raises(UserError, match=r"\(seed_everything, model differ\)"):
        folder.claim(CONFIG | {"seed_everything": 1, "model": {"a": 2}}, overwrite=False)


@pytest.mark.parametrize("part", ["defenses", "defense_order"])
def test_another_order_of_defenses_is_another_experiment(part, tmp_path):
    """Defenses act in their order, so a changed order is refused."""
    names = {"defenses": ({"a": {}, "b": {}}, {"b": {}, "a": {}}), "defense_order": (["a", "b"], ["b", "a"])}[part]
    folder = started(tmp_path, CONFIG | {part: names[0]})
    folder.claim(CONFIG | {part: names[0]}, overwrite=False)
    with pytest.raises(UserError, match=f"{part} differ"):
        folder.claim(CONFIG | {part: names[1]}, overwrite=False)


def test_trainer_and_tracking_may_change(tmp_path):
    """More rounds or another tracker do not make another experiment."""
    folder = started(tmp_path)
    folder.claim(CONFIG | {"trainer": {"max_epochs": 9}, "tracking": "disabled"}, overwrite=False)


def test_another_precision_is_another_experiment(tmp_path):
    """A run that goes on with other rounding would not end where the uninterrupted one does."""
    folder = started(tmp_path)
    with pytest.raises(UserError, match=r"\(trainer.precision differ\)"):
        folder.claim(CONFIG | {"trainer": {"precision": "64-true"}}, overwrite=False)


def test_run_without_a_checkpoint_takes_a_new_config(tmp_path):
    """Nothing was trained yet, so nothing can be mixed."""
    folder = started(tmp_path, checkpoint=False)
    folder.claim(CONFIG | {"model": {"a": 2}}, overwrite=False)
    assert "a: 2" in (folder.path / "config.yaml").read_text()


def test_finished_run_is_refused(tmp_path):
    """Even with the same configuration."""
    folder = started(tmp_path)
    folder.write_json("summary.json", {})
    with pytest.raises(UserError, match="is finished"):
        folder.claim(CONFIG, overwrite=False)


def test_overwrite_deletes_and_restarts(tmp_path):
    """A finished run goes, with all it left."""
    folder = started(tmp_path)
    folder.write_json("summary.json", {})
    folder.claim(CONFIG, overwrite=True)
    assert {path.name for path in folder.path.iterdir()} == {"config.yaml", LOCK, LIST}


@pytest.mark.parametrize("config", [None, "name: another program", "- 1", "a: ["])
def test_foreign_folder_is_never_deleted(config, tmp_path):
    """A folder counts as a run by what its config.yaml says, not by its name."""
    folder = RunFolder(tmp_path / "thesis")
    folder.path.mkdir()
    (folder.path / "chapter.tex").write_text("years of work")
    if config is not None:
        (folder.path / "config.yaml").write_text(config)
    for overwrite in (True, False):
        with pytest.raises(UserError, match="not a run of this program"):
            folder.claim(CONFIG, overwrite)
    assert (folder.path / "chapter.tex").read_text() == "years of work"


def test_file_in_place_of_the_folder_is_refused(tmp_path):
    """A file of that name is neither deleted nor a reason for a traceback."""
    (tmp_path / "run").write_text("mine")
    for overwrite in (True, False):
        with pytest.raises(UserError):
            RunFolder(tmp_path / "run").claim(CONFIG, overwrite)
    assert (tmp_path / "run").read_text() == "mine"


def test_forget_after_drops_later_rounds_and_torn_lines(tmp_path):
    """What a crash cut short goes, in the middle of any number; rounds up to the given one stay byte for byte."""
    folder = started(tmp_path)
    for round_ in range(1, 13):
        folder.append_json("metrics.jsonl", {"round": float(round_), "a": 0.5})
        folder.append_json("cost.jsonl", {"round": round_})
        folder.append_rows("clients.csv", ["round", "client", "loss"], [[round_, client, 0.25] for client in range(2)])
    names = ("metrics.jsonl", "cost.jsonl", "clients.csv")
    whole = {name: (folder.path / name).read_bytes() for name in names}
    for cut in range(1, 12):
        for name in names:
            (folder.path / name).write_bytes(whole[name][:-cut])
        folder.forget_after(10)
        for name in names:
            kept = whole[name].splitlines(keepends=True)
            length = 1 + 2 * 10 if name == "clients.csv" else 10
            assert (folder.path / name).read_bytes() == b"".join(kept[:length]), (name, cut)


def test_forget_after_a_crash_in_the_header(tmp_path):
    """A CSV file that ends in its header, or is empty, is no obstacle."""
    folder = started(tmp_path)
    for text in ("", "round,cli"):
        (folder.path / "clients.csv").write_text(text)
        folder.forget_after(0)
        folder.append_rows("clients.csv", ["round", "client"], [[1, 0]])
        assert (folder.path / "clients.csv").read_text().splitlines() == ["round,client", "1,0"]
        (folder.path / "clients.csv").unlink()


def test_json_holds_no_nan(tmp_path):
    """NaN and infinities become null, at any depth; everything else stays."""
    record = {"a": math.nan, "b": [1.5, math.inf, {"c": -math.inf}], "d": (1, "x", None, True)}
    assert finite(record) == {"a": None, "b": [1.5, None, {"c": None}], "d": [1, "x", None, True]}
    folder = started(tmp_path)
    folder.append_json("metrics.jsonl", record)
    assert json.loads((folder.path / "metrics.jsonl").read_text(), parse_constant=pytest.fail)["a"] is None


def test_write_text_leaves_the_old_file_when_it_fails(tmp_path, monkeypatch):
    """A crash before the last step leaves the file as it was."""
    path = tmp_path / "a.json"
    write_text(path, "old")
    monkeypatch.setattr("pathlib.Path.replace", lambda *_: (_ for _ in ()).throw(OSError("crash")))
    with pytest.raises(OSError, match="crash"):
        write_text(path, "new")
    assert [file.read_text() for file in tmp_path.iterdir()] == ["old"]


# ---- through the command line --------------------------------------------------------------------------------------


@pytest.fixture
def stopped(tmp_path, monkeypatch, no_figures):
    """An unfinished run of three rounds that died in its second."""
    monkeypatch.setattr(Interrupter, "when", (2, 1))
    monkeypatch.setattr(Interrupter, "act", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train(tmp_path, "a", *INTERRUPTIBLE)
    monkeypatch.setattr(Interrupter, "when", None)
    return tmp_path / "a"


def test_named_run_resumes_then_refuses(stopped, capsys):
    """The same command goes on after the crash; once finished, it is refused with exit code 2."""
    assert not (stopped / "summary.json").exists()
    train(stopped.parent, "a", *INTERRUPTIBLE)
    assert "resuming from round-00001.ckpt" in capsys.readouterr().out
    assert [record["round"] for record in records(stopped)] == [1, 2, 3]
    before = (stopped / "summary.json").read_bytes()
    assert exit_code("fit", *command(stopped.parent, "a", *INTERRUPTIBLE)) == 2
    said = capsys.readouterr().err
    assert "is finished" in said
    assert "--run.overwrite true" in said
    assert (stopped / "summary.json").read_bytes() == before


def test_resuming_with_other_settings_is_refused(stopped, capsys):
    """An unfinished run keeps its experiment."""
    assert exit_code("fit", *command(stopped.parent, "a", *INTERRUPTIBLE, "--model.local.epochs", "2")) == 2
    said = capsys.readouterr().err
    assert "(model differ)" in said
    assert "--config" in said[said.index("remedy") :]


def test_overwrite_starts_afresh(stopped, capsys):
    """Nothing is resumed, and the settings may differ."""
    train(stopped.parent, "a", "--model.local.epochs", "2", "--run.overwrite", "true", rounds=1)
    assert "resuming" not in capsys.readouterr().out
    assert [record["round"] for record in records(stopped)] == [1]


@pytest.mark.usefixtures("no_figures")
def test_default_folder(tmp_path, monkeypatch):
    """Without a name or root: runs/digits-TIME, twice in one process."""
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        arguments = command(tmp_path, "x", rounds=1)
        at = arguments.index("--run.root")
        assert exit_code("fit", *arguments[:at], *arguments[at + 4 :]) == 0
    names = [path.name for path in (tmp_path / "runs").iterdir()]
    assert len(names) == 2
    assert all(name.startswith("digits-") for name in names)
