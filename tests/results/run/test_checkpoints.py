"""Checkpoints are whole, or recognised as broken, or refused."""

import hashlib
import os
import pickle
import zipfile

import pytest
import torch

from app.common.errors import UserError
from app.results.run.checkpoints import VerifiedCheckpointIO, damage, newest_usable


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return (os.mkdir, (self.path,))


@pytest.fixture
def saved(tmp_path):
    """Two checkpoints."""
    for number in (1, 2):
        VerifiedCheckpointIO().save_checkpoint({"a": torch.tensor([number])}, tmp_path / f"round-0000{number}.ckpt")
    return tmp_path


def test_what_is_saved_is_loaded(saved):
    """Tensors come back, the checksum is that of the file."""
    path = saved / "round-00002.ckpt"
    assert VerifiedCheckpointIO().load_checkpoint(path)["a"].tolist() == [2]
    assert (saved / "round-00002.ckpt.sha256").read_text() == hashlib.sha256(path.read_bytes()).hexdigest()
    assert newest_usable(saved) == path


@pytest.mark.parametrize("legacy", [True, False])
@pytest.mark.parametrize("weights_only", [None, False, True])
def test_hidden_code_is_never_run(legacy, weights_only, tmp_path):
    """A checkpoint that would execute something is refused, whatever the caller asks for."""
    path, mark = tmp_path / "round-00001.ckpt", tmp_path / "executed"
    if legacy:
        path.write_bytes(pickle.dumps({"state_dict": Trap(mark)}))
    else:
        torch.save({"state_dict": Trap(mark)}, path)
    with pytest.raises(pickle.UnpicklingError):
        VerifiedCheckpointIO().load_checkpoint(path, weights_only=weights_only)
    assert not mark.exists()
    if not legacy:  # the trap is armed: whoever trusts the file runs the code
        assert zipfile.is_zipfile(path)
        torch.load(path, weights_only=False)
        assert mark.exists()


def test_damage_is_named(saved):
    """Every byte counts, and so does the checksum."""
    path = saved / "round-00002.ckpt"
    assert damage(path) is None
    data = path.read_bytes()
    for at in (0, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert damage(path) == "its checksum does not match"
    path.write_bytes(data)
    path.with_name(path.name + ".sha256").unlink()
    assert damage(path) == "its checksum is missing"


def test_no_folder_no_checkpoint(tmp_path):
    """A new run has nothing to resume."""
    assert newest_usable(tmp_path / "none") is None


@pytest.mark.parametrize("written", [0, 1])
def test_failed_write_leaves_nothing_behind(written, saved, monkeypatch):
    """Whichever file the disk has no room for, the earlier checkpoints are as they were and no scrap is left."""
    before = {path: path.read_bytes() for path in saved.iterdir()}
    synced, sync = [], os.fsync

    def full(descriptor):
        if len(synced) == written:
            raise OSError(28, "No space left on device")
        synced.append(descriptor)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="No space left on device"):
        VerifiedCheckpointIO().save_checkpoint({}, saved / "round-00003.ckpt")
    monkeypatch.undo()
    assert {path: path.read_bytes() for path in saved.iterdir()} == before


def test_removal_takes_the_checksum_along(saved):
    """No orphans."""
    VerifiedCheckpointIO().remove_checkpoint(saved / "round-00001.ckpt")
    assert sorted(path.name for path in saved.iterdir()) == ["round-00002.ckpt", "round-00002.ckpt.sha256"]
