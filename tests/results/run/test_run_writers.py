"""One writer per run folder, private files, and an overwritten run that takes nothing else with it."""

import json
import os
import shutil
import stat
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from run_kit import command, train

from app import audit
from app.commands.fit import fit
from app.common.errors import UserError
from app.common.files import LIST, hold_lock, replace_all, write_text
from app.federation.transcript import Transcript
from app.results.run.checkpoints import CHECKPOINT_VARIABLE, VerifiedCheckpointIO, first_decides
from app.results.run.folder import LOCK, RunFolder

CONFIG = {"seed_everything": 0, "trainer": {}, "model": {"a": 1}, "data": {}, "defenses": {}, "tracking": "offline"}


def mode(path):
    """Who may do what with a file."""
    return stat.S_IMODE(path.stat().st_mode)


# ---- one writer ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run."""
    return train(tmp_path_factory.mktemp("runs"), "mine", rounds=1)


@pytest.mark.usefixtures("no_figures")
def test_two_processes_do_not_train_in_one_folder(trained):
    """The second `fit` is refused at once and changes nothing; when the first ends, it is free."""
    again = command(trained.parent, "mine", rounds=2)
    before = {path: path.read_bytes() for path in trained.glob("*.json*")}
    with hold_lock(trained / LOCK), pytest.raises(UserError, match=rf"another process \({os.getpid()}\) is writing"):
        fit(again)
    assert {path: path.read_bytes() for path in trained.glob("*.json*")} == before
    assert fit(again) == 0
    hold_lock(trained / LOCK).close()  # its end has freed the folder


def test_no_attack_on_a_run_that_another_process_writes(trained):
    """Both would replace the same summary."""
    with hold_lock(trained / LOCK), pytest.raises(UserError, match="is writing to"):
        audit(trained, ["yeom"])
    hold_lock(trained / LOCK).close()


def test_a_killed_process_leaves_no_lock(tmp_path):
    """The system frees it, whatever the process was doing."""
    script = f"from pathlib import Path; import fcntl; f = open({str(tmp_path / LOCK)!r}, 'a+'); "
    script += "fcntl.flock(f, fcntl.LOCK_EX); f.write('7'); f.flush(); print('locked', flush=True); input()"
    folder = RunFolder(tmp_path)
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        with pytest.raises(UserError, match=r"another process \(7\)"):
            folder.claim(CONFIG, overwrite=False)
        holder.kill()
        holder.wait()
    folder.claim(CONFIG, overwrite=False)
    folder.release()


def test_one_process_may_claim_twice(tmp_path):
    """As where a run is built and given up; a folder that was made anew is locked anew."""
    folder = RunFolder(tmp_path / "run")
    folder.claim(CONFIG, overwrite=False)
    RunFolder(tmp_path / "run").claim(CONFIG, overwrite=False)
    (tmp_path / "run").rename(tmp_path / "moved")
    folder.claim(CONFIG, overwrite=False)
    with pytest.raises(BlockingIOError):
        hold_lock(folder.path / LOCK)
    folder.release()
    hold_lock(folder.path / LOCK).close()


def stub(first, apart=True, told=None):
    """A trainer of one of two processes, which were started apart or by the first one."""

    def broadcast(chosen):
        return chosen if first else told

    place = SimpleNamespace(creates_processes_externally=apart)
    strategy = SimpleNamespace(cluster_environment=place, setup_environment=lambda: None, broadcast=broadcast)
    return SimpleNamespace(is_global_zero=first, world_size=2, strategy=strategy)


def test_the_first_process_decides_what_to_resume(tmp_path, monkeypatch):
    """The others take its checkpoint, also where they would find another one, or none, in the folder."""
    monkeypatch.delenv(CHECKPOINT_VARIABLE, raising=False)
    VerifiedCheckpointIO().save_checkpoint({}, tmp_path / "round-00001.ckpt")
    first = first_decides(tmp_path, stub(True, apart=False))
    assert first == tmp_path / "round-00001.ckpt"
    VerifiedCheckpointIO().save_checkpoint({}, tmp_path / "round-00002.ckpt")
    assert first_decides(tmp_path, stub(False)) == first  # started by the first one, with its environment
    monkeypatch.setenv(CHECKPOINT_VARIABLE, "")
    assert first_decides(tmp_path, stub(False)) is None
    monkeypatch.delenv(CHECKPOINT_VARIABLE)
    assert first_decides(tmp_path, stub(False, told=str(first))) == first  # started apart
    assert first_decides(tmp_path, stub(False, told="")) is None


# ---- overwriting -----------------------------------------------------------------------------------------------------


USERS = {"notes.txt", "sub/config.yaml", "attacks/draft.md", "attacks/x.csv", "sub/.0123456789abcdef.part"}
"""Files of the user's in a run's folder."""


def copied(trained, tmp_path):
    """A copy of a run."""
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


def overwritten(trained, tmp_path):
    """A copy of a run, with files of the user's in it and a run in a folder of it."""
    run = copied(trained, tmp_path)
    (run / "sub").mkdir()
    for name in USERS:
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text("the user's")
    (run / "checkpoints" / ".0123456789abcdef.part").write_text("of a process that was killed")
    return run


def test_overwriting_keeps_what_no_run_has_written(trained, tmp_path):
    """The files of the run are gone, those of the user and a nested run are there, and a warning names them."""
    run = overwritten(trained, tmp_path)
    with pytest.warns(UserWarning, match=r"it is kept: attacks, notes\.txt, sub"):
        RunFolder(run).claim(CONFIG, overwrite=True)
    RunFolder(run).release()
    left = {path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file()}
    assert left == {LOCK, LIST, "config.yaml", *USERS}
    assert not (run / "checkpoints").exists()


def test_overwriting_keeps_a_run_within_the_run(tmp_path):
    """`exp/sub` is a run of its own, whose files no list but its own names."""
    for name in ("exp", "exp/sub"):
        folder = RunFolder(tmp_path / name)
        folder.claim(CONFIG, overwrite=False)
        folder.write_json("cost.json", {})
        VerifiedCheckpointIO().save_checkpoint({}, folder.checkpoints / "round-00001.ckpt")
        folder.release()
    inner = {path: path.read_bytes() for path in (tmp_path / "exp" / "sub").rglob("*") if path.is_file()}
    with pytest.warns(UserWarning, match="it is kept: sub"):
        RunFolder(tmp_path / "exp").claim(CONFIG, overwrite=True)
    RunFolder(tmp_path / "exp").release()
    assert {path: path.read_bytes() for path in inner} == inner
    assert {path.name for path in (tmp_path / "exp").iterdir()} == {LOCK, LIST, "config.yaml", "sub"}


@pytest.mark.parametrize("name", ["checkpoints/round-00009.ckpt", "attacks/mine.json", "transcript/round-00001/a.npz"])
def test_files_that_a_new_run_would_take_for_its_own(name, trained, tmp_path):
    """Neither deleted nor mixed with the new run: refused, and nothing is deleted at all."""
    run = copied(trained, tmp_path)
    (run / name).parent.mkdir(exist_ok=True, parents=True)
    (run / name).write_text("the user's")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match=f"does not name: {name}"):
        RunFolder(run).claim(CONFIG, overwrite=True)
    RunFolder(run).release()
    changed = {path for path in run.rglob("*") if path.is_file() and before.get(path) != path.read_bytes()}
    assert changed <= {run / LOCK}


@pytest.mark.parametrize("line", ["../victim", "/victim", "sub/../../victim", "a\u0000b", "", "."])
def test_a_list_from_elsewhere_deletes_nothing_outside(line, tmp_path):
    """The list is data: what it names outside of the run's folder stays."""
    (tmp_path / "victim").write_text("the user's")
    folder = RunFolder(tmp_path / "run")
    folder.claim(CONFIG, overwrite=False)
    absolute = line.replace("/victim", str(tmp_path / "victim")) if line.startswith("/") else line
    with (folder.path / LIST).open("a") as file:
        file.write(f'{json.dumps(absolute)}\n{{"cut short')
    folder.claim(CONFIG, overwrite=True)
    folder.release()
    assert (tmp_path / "victim").read_text() == "the user's"


def test_a_run_that_is_killed_between_two_steps_can_be_overwritten(tmp_path, monkeypatch):
    """Every file is listed before it is there, so what was begun goes with the rest."""
    folder = RunFolder(tmp_path / "run")
    folder.claim(CONFIG, overwrite=False)
    monkeypatch.setattr("pathlib.Path.replace", lambda *_: (_ for _ in ()).throw(SystemExit))
    with pytest.raises(SystemExit):
        folder.write_json("cost.json", {})
    monkeypatch.undo()
    assert '"cost.json"' in (folder.path / LIST).read_text()
    folder.append_json("metrics.jsonl", {"round": 1})
    folder.claim(CONFIG, overwrite=True)
    folder.release()
    assert {path.name for path in folder.path.iterdir()} == {LOCK, LIST, "config.yaml"}


def test_a_folder_left_by_a_process_that_was_killed_at_once(tmp_path):
    """It holds no settings yet, and is no foreign folder either."""
    (tmp_path / "run").mkdir()
    for name in (LOCK, LIST):
        (tmp_path / "run" / name).touch()
    folder = RunFolder(tmp_path / "run")
    folder.claim(CONFIG, overwrite=False)
    folder.release()


def test_the_lock_of_another_program_stays(tmp_path):
    """A foreign folder is refused before anything is written to it."""
    (tmp_path / LOCK).write_text("of another program")
    (tmp_path / "thesis.tex").write_text("the user's")
    with pytest.raises(UserError, match="not a run of this program"):
        RunFolder(tmp_path).claim(CONFIG, overwrite=True)
    assert (tmp_path / LOCK).read_text() == "of another program"


def test_a_run_in_weights_and_biases_goes_with_its_run(tmp_path):
    """Folders with the run's id are deleted, and links to them; those of other runs stay."""
    folder = RunFolder(tmp_path / "run")
    folder.claim(CONFIG, overwrite=False)
    write_text(folder.path / "wandb-run-id", "abc")
    for name in ("offline-run-20260101_101010-abc", "offline-run-20260101_101010-other"):
        (folder.path / "wandb" / name).mkdir(parents=True)
        (folder.path / "wandb" / name / "run.wandb").touch()
    (folder.path / "wandb" / "latest-run").symlink_to("offline-run-20260101_101010-abc")
    with pytest.warns(UserWarning, match="it is kept: wandb"):
        folder.claim(CONFIG, overwrite=True)
    folder.release()
    assert [path.name for path in (folder.path / "wandb").iterdir()] == ["offline-run-20260101_101010-other"]


@pytest.mark.parametrize("name", [".cache", ".cache/shadows"])
def test_a_cache_elsewhere_is_refused(name, trained, tmp_path):
    """Shadow models would be read and written through the link, by runs and by attacks."""
    run = copied(trained, tmp_path)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="is a link to"):
        RunFolder(tmp_path / "new").claim(CONFIG, overwrite=False)
    RunFolder(tmp_path / "new").release()
    with pytest.raises(UserError, match="is a link to"):
        audit(run, ["yeom"])
    assert not list((tmp_path / "elsewhere").iterdir())


def test_overwriting_fails_loudly(trained, tmp_path, monkeypatch):
    """Files that cannot be deleted stop the run, which would otherwise go on from an old checkpoint."""
    run = overwritten(trained, tmp_path)

    def refuse(self, missing_ok=False):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr("pathlib.Path.unlink", refuse)
    with pytest.raises(UserError, match="cannot write"):
        RunFolder(run).claim(CONFIG, overwrite=True)
    RunFolder(run).release()


def test_half_written_files_go_with_the_next_start(tmp_path):
    """Their names are random, so nothing would ever replace them."""
    folder = RunFolder(tmp_path / "run")
    folder.claim(CONFIG, overwrite=False)
    folder.checkpoints.mkdir()
    (folder.checkpoints / ".0123456789abcdef.part").touch()
    folder.claim(CONFIG, overwrite=False)
    folder.release()
    assert not list(folder.checkpoints.iterdir())


# ---- who may read ----------------------------------------------------------------------------------------------------


def test_files_are_private_whatever_the_umask(tmp_path):
    """Transcripts, checkpoints and what is appended to; a page or an exported model is as the umask says."""
    before = os.umask(0)
    try:
        folder = RunFolder(tmp_path / "run")
        folder.claim(CONFIG, overwrite=False)
        folder.append_json("metrics.jsonl", {"round": 1})
        folder.release()
        transcript = Transcript(tmp_path / "apart" / "transcript")
        transcript.record_broadcast(1, torch.zeros(2))
        VerifiedCheckpointIO().save_checkpoint({}, folder.checkpoints / "round-00001.ckpt")
        replace_all({tmp_path / "page.html": b""}, private=False)
    finally:
        os.umask(before)
    made = [*folder.path.rglob("*"), folder.path, *(tmp_path / "apart" / "transcript").rglob("*")]
    made.append(tmp_path / "apart" / "transcript")
    assert {(path.is_dir(), mode(path)) for path in made} == {(True, 0o700), (False, 0o600)}
    assert mode(tmp_path / "page.html") == 0o666


def test_names_are_on_the_disk_before_a_write_counts(tmp_path, monkeypatch):
    """The folder is synced after the files were renamed, else a power cut could take a checkpoint back."""
    synced = []
    monkeypatch.setattr("os.fsync", lambda file: synced.append(stat.S_ISDIR(os.fstat(file).st_mode)))
    replace_all({tmp_path / "a": b"a", tmp_path / "b": b"b"})
    assert synced == [False, False, True]
